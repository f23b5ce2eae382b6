"""A real API server for the end-to-end tests, and a gate on the way to it that can be shut or go silent."""

from __future__ import annotations

import itertools
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.rigs.kube_pod import Pods
from tests.support import ROOT, free_port, free_ports, own_address

_SCRIPT = ROOT / "tests" / "rigs" / "kube_apiserver.sh"


class Cluster:
    """One API server. Tests share it, each under a label and addresses of its own."""

    _addresses = itertools.count(2)
    _labels = itertools.count(1)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods = Pods(str(folder))
        self.kubeconfig = folder / "kubeconfig"

    def fresh_label(self) -> str:
        return f"mock{next(self._labels)}"

    def fresh_address(self) -> str:
        """Each its own host, so that pods can share a port."""
        return own_address(next(self._addresses))

    def pool_port(self) -> int:
        return free_ports(1)

    @contextmanager
    def gate(self) -> Iterator[Gate]:
        """A way to the API server of which a frontend is told instead of the server itself."""
        port = int((self.folder / "port").read_text())
        gate = Gate(port)
        config = self.folder / f"kubeconfig-{gate.port}"
        config.write_text(self.kubeconfig.read_text().replace(f"127.0.0.1:{port}", f"127.0.0.1:{gate.port}"))
        gate.kubeconfig = config
        try:
            yield gate
        finally:
            gate.shut()


@contextmanager
def api_server(folder: Path) -> Iterator[Cluster]:
    """A running API server that keeps its data in a folder."""
    started = subprocess.run(
        [_SCRIPT, "start", folder, str(free_ports(3))], capture_output=True, text=True, check=False
    )
    assert started.returncode == 0, started.stderr[-2000:]
    try:
        yield Cluster(folder)
    finally:
        subprocess.run([_SCRIPT, "stop", folder], capture_output=True, check=True)


class Gate:
    """Passes TCP on to a port. shut: refuse and cut; freeze: hold the open connections and pass nothing on."""

    kubeconfig: Path

    def __init__(self, target: int) -> None:
        self._target = target
        self._pairs: list[tuple[socket.socket, socket.socket, threading.Event]] = []
        self._lock = threading.Lock()
        self.port = free_port()  # it is given up for a while and taken again
        self._listener: socket.socket | None = None
        self.open()

    def open(self) -> None:
        """Let new connections pass."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="gate", daemon=True).start()

    def shut(self) -> None:
        """Refuse new connections and cut those that are open."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for near, far, _ in pairs:
            for sock in (near, far):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    def freeze(self) -> None:
        """The connections that are open stay so and carry nothing from now on; new ones pass."""
        with self._lock:
            for _, _, frozen in self._pairs:
                frozen.set()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            frozen = threading.Event()
            with self._lock:
                self._pairs.append((near, far, frozen))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pass, args=(source, sink, frozen), name="gate", daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket, frozen: threading.Event) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            if not frozen.is_set():
                sink.sendall(data)
    if frozen.is_set():
        return  # half open: the end is not passed on either
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
