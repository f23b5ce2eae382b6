"""Fleets with a prefill and a decode pool, and traffic that notices what it loses."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.kube import Cluster
from tests.e2e.support import WITHIN, Answer, Engine, Front, Stream, ask, chat
from tests.support import until

PROTOCOLS = ["sglang", "vllm", "vllm-native"]
VLLM = ["vllm", "vllm-native"]


class Makes:
    """Makes engines of one protocol, each with its role."""

    def __init__(self, protocol: str, engine: MakeEngine) -> None:
        self.protocol = protocol
        self._engine = engine
        self._roles: dict[str, str] = {}

    def prefill(self, name: str, **options: Any) -> Engine:
        return self._make(name, "prefill", **options)

    def decode(self, name: str, **options: Any) -> Engine:
        return self._make(name, "decode", **options)

    def aggregated(self, name: str, **options: Any) -> Engine:
        return self._make(name, "aggregated", **options)

    def _make(self, name: str, role: str, **options: Any) -> Engine:
        """options: `believes` is the role that the engine itself reports, where that is another."""
        self._roles[name] = role
        own = options.pop("believes", role)
        return self._engine(name, protocol=self.protocol, role=own, **options)

    def role(self, engine: Engine) -> str:
        return self._roles[engine.name]

    def address(self, engine: Engine) -> str:
        """With the role, which vLLM does not report."""
        role = self.role(engine)
        return engine.url if role == "aggregated" else f"{engine.url}?role={role}"


class Pools(Protocol):
    """A fleet of two pools that a test changes."""

    def prefill(self, name: str, **options: Any) -> Engine: ...

    def decode(self, name: str, **options: Any) -> Engine: ...

    def front(self, *options: object, **more: Any) -> Front: ...

    def join(self, engine: Engine) -> None:
        """Start it and say so."""

    def leave(self, engine: Engine) -> None:
        """Say that it goes. Its process stays until its streams have ended."""


class FlagPools(Makes):
    """All engines are named at the start; they join by starting, and leave by SIGTERM."""

    def __init__(self, protocol: str, engine: MakeEngine, front: MakeFront) -> None:
        super().__init__(protocol, engine)
        self._front = front
        self._known: list[Engine] = []

    def _make(self, name: str, role: str, **options: Any) -> Engine:
        made = super()._make(name, role, **{"shutdown_grace": 5, **options})
        self._known.append(made)
        return made

    def front(self, *options: object, **more: Any) -> Front:
        named = [part for engine in self._known for part in ("--engine", self.address(engine))]
        return self._front(*named, "--probe-retry-max", 0.3, *options, **more)

    def join(self, engine: Engine) -> None:
        engine.run()

    def leave(self, engine: Engine) -> None:
        assert engine.child is not None
        engine.child.signal(signal.SIGTERM)


class FilePools(Makes):
    """Engines are lines of the engines file."""

    def __init__(self, protocol: str, engine: MakeEngine, front: MakeFront, folder: Path) -> None:
        super().__init__(protocol, engine)
        self._path = folder / "engines.yaml"
        self._front = front
        self._named: list[str] = []
        self._write()

    def front(self, *options: object, **more: Any) -> Front:
        quick = ("--engines-file-poll-interval", 0.05, "--engines-file-settle-time", 0.02)
        return self._front("--engines-file", self._path, *quick, *options, **more)

    def join(self, engine: Engine) -> None:
        engine.run()
        self._named.append(self.address(engine))
        self._write()

    def leave(self, engine: Engine) -> None:
        self._named.remove(self.address(engine))
        self._write()

    def _write(self) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text("".join(f"- {address}\n" for address in self._named) or "[]\n")
        fresh.replace(self._path)


class PodPools(Makes):
    """Engines are pods of a real API server; a selector for each pool says which role they have."""

    def __init__(self, protocol: str, engine: MakeEngine, front: MakeFront, cluster: Cluster) -> None:
        super().__init__(protocol, engine)
        self._cluster = cluster
        self._front = front
        self._port = cluster.pool_port()
        self.label = cluster.fresh_label()

    def _make(self, name: str, role: str, **options: Any) -> Engine:
        return super()._make(name, role, host=self._cluster.fresh_address(), port=self._port, **options)

    def front(self, *options: object, **more: Any) -> Front:
        where = ("--kubeconfig", self._cluster.kubeconfig, "--kube-context", "frontend")
        pools = [
            ("--pods", f"app={self.label},pool=decode", "--pod-port", self._port),
            ("--prefill-pods", f"app={self.label},pool=prefill", "--prefill-pod-port", self._port),
        ]
        return self._front(*pools[0], *pools[1], *where, *options, **more)

    def join(self, engine: Engine, **labels: str) -> None:
        engine.run()
        labels = {"app": self.label, "pool": self.role(engine), **labels}
        self._cluster.pods.create(self.pod(engine), ip=engine.host, labels=labels)

    def leave(self, engine: Engine) -> None:
        self._cluster.pods.delete(self.pod(engine))

    def pod(self, engine: Engine) -> str:
        return f"{self.label}-{engine.name}"


@dataclass
class Traffic:
    """What came of requests that were sent all the while."""

    answers: list[Answer] = field(default_factory=list)

    def wait(self, more: int) -> None:
        """Until so many more requests were answered."""
        wanted = len(self.answers) + more
        until(lambda: len(self.answers) >= wanted, within=WITHIN)

    def check(self) -> None:
        """Nothing was lost, cut or mixed up: each answer is the right one, from its first to its last token."""
        wrong = [answer for answer in self.answers if not answer.whole]
        assert not wrong, f"{len(wrong)} of {len(self.answers)}: {wrong[:3]}"
        assert len({answer.text for answer in self.answers}) == 1
        assert len(self.answers[0].text.split()) == 8


_CLIENTS = 3


@contextmanager
def traffic(front: Front) -> Iterator[Traffic]:
    """Clients that ask and ask; at the end all they got is checked."""
    seen, stop = Traffic(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            seen.answers.append(ask(front))

    workers = [threading.Thread(target=work, name=f"client {number}") for number in range(_CLIENTS)]
    for worker in workers:
        worker.start()
    try:
        yield seen
    finally:
        stop.set()
        for worker in workers:
            worker.join(WITHIN)
    seen.check()


def named(front: Front, *engines: Engine) -> None:
    """Wait until all of these serve."""
    for engine in engines:
        front.wait_state(engine, "serving")


def unused(front: Front, engine: Engine) -> None:
    """Wait until no request has it any more: neither on a stream nor chosen for a leg that is yet to leave."""
    until(
        lambda: not any(row["streams"] or row["pairs"] for row in front.page()["engines"] if row["url"] == engine.url),
        within=WITHIN,
        saying=f"{engine.name} is still in use",
    )


def met(*engines: Engine, number: int = 1) -> None:
    """Wait until so many hand-overs have begun on these engines together."""
    until(lambda: sum(len(engine.seen("met")) for engine in engines) >= number, within=WITHIN)


def begun(*engines: Engine, number: int = 1) -> Engine:
    """Wait until these engines together have seen so many requests; returns the one that saw the last of them."""
    until(lambda: sum(engine.requests for engine in engines) >= number, within=WITHIN)
    return max(engines, key=lambda engine: engine.seen("request")[-1]["t"] if engine.requests else 0.0)


def idle(front: Front, *engines: Engine) -> None:
    """Wait until nothing runs any more, on any engine and in the frontend's books."""
    for engine in engines:
        until(lambda engine=engine: engine.open == 0, within=WITHIN, saying=f"{engine.name} still works")
    front.wait_idle()


def stopped(engine: Engine) -> list[dict[str, Any]]:
    """Its legs that were told to stop, by us or by the other engine."""
    return [end for end in engine.seen("end") if end["outcome"] in ("abort", "handover")]


def unanswered(front: Front) -> None:
    """Wait until the frontend knows that nobody waits for an answer any more."""

    def waiting() -> float:
        page = front.get("/metrics")[1].decode()
        rows = [line for line in page.splitlines() if line.startswith("enginehouse_requests_in_flight")]
        return sum(float(row.split()[-1]) for row in rows)

    until(lambda: waiting() == 0, within=WITHIN)


def stream(front: Front, **more: Any) -> Stream:
    """A request that is on its way; nothing of the answer is read yet."""
    return Stream(front, chat(**more))
