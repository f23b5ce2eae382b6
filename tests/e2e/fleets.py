"""Frontends with the engines that they know: by flags, through the engines file, as pods of an API server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.kube import Cluster
from tests.e2e.support import Engine, Front

if TYPE_CHECKING:
    from tests.e2e.conftest import MakeEngine, MakeFront


def urls(*engines: Engine) -> list[str]:
    return [part for engine in engines for part in ("--engine", engine.url)]


def two(
    engine: MakeEngine, front: MakeFront, *options: object, policy: str = "round-robin", **faults: Any
) -> tuple[Engine, Engine, Front]:
    """Two engines of one pace, the first with faults, and a frontend that knows both."""
    pace = {name: faults[name] for name in ("tokens_per_second",) if name in faults}
    a, b = engine("a", **faults), engine("b", **pace)
    for one in (a, b):
        one.run(wait=False)
    for one in (a, b):
        assert one.child is not None
        one.child.wait_line("on grpc://")
    running = front(*urls(a, b), *options, policy=policy)
    for one in (a, b):
        running.wait_state(one, "serving")
    return a, b, running


class FileFleet:
    """Engines are lines of the engines file."""

    def __init__(self, folder: Path, make_engine: MakeEngine, make_front: MakeFront) -> None:
        self._path = folder / "engines.yaml"
        self._urls: list[str] = []
        self._engine = make_engine
        self._front = make_front
        self._write()

    def engine(self, name: str, **options: Any) -> Engine:
        return self._engine(name, **options)

    def front(self, *options: object, **more: Any) -> Front:
        quick = ("--engines-file-poll-interval", 0.05, "--engines-file-settle-time", 0.02)
        return self._front("--engines-file", self._path, *quick, *options, **more)

    def add(self, engine: Engine) -> None:
        self._urls.append(engine.url)
        self._write()

    def remove(self, engine: Engine) -> None:
        self._urls.remove(engine.url)
        self._write()

    def _write(self) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text("".join(f"- {url}\n" for url in self._urls) or "[]\n")
        fresh.replace(self._path)


class PodFleet:
    """Engines are pods with addresses of their own and one pool-wide port."""

    def __init__(self, cluster: Cluster, make_engine: MakeEngine, make_front: MakeFront, leave: str = "delete") -> None:
        self._cluster = cluster
        self._engine = make_engine
        self._front = make_front
        self._leave = leave
        self.label = cluster.fresh_label()
        self.port = cluster.pool_port()

    def engine(self, name: str, **options: Any) -> Engine:
        return self._engine(name, host=self._cluster.fresh_address(), port=self.port, **options)

    def front(self, *options: object, kubeconfig: Path | None = None, **more: Any) -> Front:
        config = kubeconfig or self._cluster.kubeconfig
        where = ("--kubeconfig", config, "--kube-context", "frontend")
        return self._front("--pods", f"app={self.label}", "--pod-port", self.port, *where, *options, **more)

    def name(self, engine: Engine) -> str:
        return f"{self.label}-{engine.name}"

    def add(self, engine: Engine, *, ready: bool = True) -> None:
        self._cluster.pods.create(self.name(engine), ip=engine.host, labels={"app": self.label}, ready=ready)

    def set(self, engine: Engine, **more: Any) -> None:
        self._cluster.pods.set(self.name(engine), **more)

    def remove(self, engine: Engine) -> None:
        name, pods = self.name(engine), self._cluster.pods
        match self._leave:
            case "delete":  # terminating: it stays, Ready, with a deletion timestamp
                pods.delete(name)
            case "gone":  # a bare DELETED event
                pods.gone(name)
            case "unready":
                pods.set(name, ready=False)
            case "label":
                pods.set(name, labels={"app": "something-else"})


Fleet = FileFleet | PodFleet


def each_way(*ways: str) -> pytest.MarkDecorator:
    """Run a test once for each way that engines come to its `fleet`: "file", or "pods:" and how a pod leaves."""
    kube = pytest.mark.rig("kube")
    params = [pytest.param(way, marks=kube) if way.startswith("pods:") else way for way in ways]
    return pytest.mark.parametrize("fleet", params, indirect=True)
