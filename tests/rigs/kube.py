"""A real kube-apiserver for the length of a test session: `from tests.rigs.kube import kube` in a test module.

Tests share one server, one after the other, and take labels of their own. Mark them `rig("kube")`.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.kube_pod import Pods
from tests.support import ROOT, free_ports

_SCRIPT = ROOT / "tests" / "rigs" / "kube_apiserver.sh"


class KubeServer:
    """kube-apiserver with etcd, in a folder."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.kubeconfig = folder / "kubeconfig"
        try:
            self.start()
        except AssertionError:
            self.stop()
            raise
        self.pods = Pods(str(folder))

    def restart(self) -> None:
        """Another API server on the same etcd: its watch cache begins empty, so that older versions answer 410."""
        self._run("restart", str(self.folder))

    def stop(self) -> None:
        self._run("stop", str(self.folder))

    def start(self) -> None:
        self._run("start", str(self.folder), str(self.port))

    def compact(self) -> None:
        """Forget all history in etcd, as it does by itself every five minutes."""
        version = int(self.pods.call("GET", self.pods.pods)["metadata"]["resourceVersion"])
        body = json.dumps({"revision": version, "physical": True}).encode()
        urllib.request.urlopen(f"http://127.0.0.1:{self.port + 1}/v3/kv/compaction", body).close()

    def names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods.call("GET", self.pods.pods)["items"]]

    def _run(self, *arguments: str) -> None:
        done = subprocess.run([_SCRIPT, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"kube_apiserver.sh {arguments[0]}: {done.stderr[-2000:]}"


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeServer]:
    server = KubeServer(tmp_path_factory.mktemp("kube"), free_ports(3))
    try:
        yield server
    finally:
        server.stop()
