"""A small cluster for measuring churn: a real API server, a proxy before it, and mock engines that are its pods."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.contestants import free_port
from tests.rigs.kube_pod import Pods

RIGS = Path(__file__).parents[1] / "tests" / "rigs"


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """The rig's kube-apiserver and etcd for the length of a with block. The first use ever compiles it (minutes)."""
    server = ApiServer(folder, _three_free_ports())
    server.rig("start", str(folder), str(server.port))
    try:
        yield server
    finally:
        server.rig("stop", str(folder))


class ApiServer:
    """Handles of a running API server."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port

    def rig(self, *arguments: str) -> None:
        """Run the rig's script."""
        done = subprocess.run([RIGS / "kube_apiserver.sh", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"kube_apiserver.sh {arguments[0]}: {done.stderr.strip()[-500:]}")

    def restart(self) -> None:
        """A new API server on the same etcd: its watch cache is empty."""
        self.rig("restart", str(self.folder))

    def pods(self) -> Pods:
        """Plays the kubelet, past the proxy."""
        return Pods(str(self.folder))

    def kubeconfig_through(self, proxy: int) -> Path:
        """A kubeconfig of the user who may only read pods, by way of the proxy."""
        text = (self.folder / "kubeconfig").read_text()
        path = self.folder / "kubeconfig-proxy"
        path.write_text(text.replace(f"https://127.0.0.1:{self.port}", f"https://127.0.0.1:{proxy}"))
        return path


def _three_free_ports() -> int:
    while True:
        first = free_port()
        try:
            for port in range(first, first + 3):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


class Proxy:
    """TCP between the frontend and the API server. It can go away, and its connections can fall silent."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.Event] = {}
        self.port = free_port()

    async def back(self) -> None:
        """Listen (again)."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def away(self) -> None:
        """Refuse new connections and break those that are open."""
        assert self._server is not None
        self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    def hush(self) -> None:
        """Open connections stay open and carry nothing any more, as after a NAT lost them; new ones work."""
        for open_ in self._connections.values():
            open_.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_ = self._connections[task] = asyncio.Event()
        open_.set()
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, up_writer, open_), name="proxy up")
                    both.create_task(_copy(up_reader, writer, open_), name="proxy down")
            finally:
                up_writer.transport.abort()
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # one side went away, or `away` was called: so does the other
        finally:
            del self._connections[task]
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open_: asyncio.Event) -> None:
    while data := await reader.read(65536):
        await open_.wait()
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError


class PodEngine:
    """A mock engine process on an address of its own, with what it has seen."""

    def __init__(self, name: str, address: str, port: int, folder: Path, *options: str, protocol: str = "vllm") -> None:
        self.name, self.address = name, address
        self._log = folder / f"{name}.jsonl"
        self._output = (folder / f"{name}.log").open("wb")
        command = [sys.executable, "-m", "enginehouse", "mock", "--protocol", protocol, "--host", address]
        self.process = subprocess.Popen(
            [*command, "--port", str(port), "--log", str(self._log), *options],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )

    def events(self, kind: str) -> list[float]:
        """Unix times of one kind of event so far."""
        if not self._log.exists():
            return []
        lines = self._log.read_text().splitlines(keepends=True)
        events = (json.loads(line) for line in lines if line.endswith("\n"))
        return [float(event["t"]) for event in events if event["event"] == kind]

    def first_request_after(self, moment: float) -> float | None:
        """Seconds from then to the first request that it saw."""
        return next((seen - moment for seen in self.events("request") if seen >= moment), None)

    def last_request_after(self, moment: float) -> float:
        """Seconds from then to the last request that it saw; 0 if there was none."""
        return max((seen - moment for seen in self.events("request") if seen >= moment), default=0.0)

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self._output.close()
