"""Owns fake engines: processes at addresses that can be slow, sick, mute, restarted or gone, without a socket.

`FakeEngines` is the port; `listen` puts a `FakeProcess` behind an address; probing it opens a `FakeEngine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from enginehouse.domain.engine import EngineInfo, ProtocolName, Target
from enginehouse.domain.errors import EngineError, EngineTimeout, EngineUnavailable, ProbeFailed
from enginehouse.domain.handover import Keep
from enginehouse.domain.request import EngineRequest
from enginehouse.domain.stream import Delta, Embedding, Finish
from enginehouse.ports import DeltaSink, EngineLoad, KvSink, KvSubscription
from enginehouse.testing.kv import FakePublisher, FakeSubscription


def fake_info(model: str = "m", **fields: object) -> EngineInfo:
    """Information as an engine gives it; name only what the test is about."""
    values: dict[str, object] = {
        "protocol": ProtocolName.VLLM,
        "context_length": 4096,
        "block_size": 16,
        "tokenizer_digest": "d" * 64,
    }
    return EngineInfo(model=model, **(values | fields))  # type: ignore[arg-type]


@dataclass(eq=False)
class FakeProcess:
    """One engine process. Change its fields to make it behave."""

    info: EngineInfo
    refuses: ProbeFailed | None = None
    """Raised by probe and check."""
    hangs: bool = False
    """Probe and check never answer."""
    mute: bool = False
    """Generate never answers."""
    fails: Callable[[EngineRequest], EngineError | None] | None = None
    """How generate fails at once, where it does."""
    answers: bool = True
    """Generate answers at once with the tokens asked for. False: the test delivers through `calls`."""
    lives: bool = False
    """A canary is answered, whatever becomes of requests."""
    kv: dict[int, FakePublisher] = field(default_factory=dict)
    """KV events over its own link, by rank; none: its protocol has nothing of the kind."""
    opened: list[FakeEngine] = field(default_factory=list)
    """Every engine that a probe of this process opened."""

    def break_links(self, reason: str = "connection reset") -> None:
        """Every open connection breaks."""
        for engine in self.opened:
            engine.lose(reason)

    @property
    def links(self) -> int:
        """Engines that are open."""
        return sum(not engine.closed for engine in self.opened)


class FakeEngines:
    """The Engines port."""

    def __init__(self) -> None:
        self.processes: dict[str, FakeProcess] = {}
        """By `host:port`."""
        self.probed: list[Target] = []
        """Every probe that was started."""
        self.probing = 0
        """Probes under way."""

    def listen(self, authority: str, info: EngineInfo | None = None, **fields: object) -> FakeProcess:
        """A process now listens there, in place of what did before. `fields` are the information's."""
        process = FakeProcess(info or fake_info(**fields))  # type: ignore[arg-type]
        self.processes[authority] = process
        return process

    def stop(self, authority: str) -> None:
        """The process there dies: its connections break, and nothing listens."""
        self.processes.pop(authority).break_links("connection closed by the engine")

    def at(self, authority: str) -> FakeProcess | None:
        """The process that listens there now."""
        return self.processes.get(authority)

    async def probe(self, target: Target) -> FakeEngine:
        self.probed.append(target)
        self.probing += 1
        try:
            process = await self._reach(target)
        finally:
            self.probing -= 1
        engine = FakeEngine(self, target, process)
        process.opened.append(engine)
        return engine

    async def _reach(self, target: Target) -> FakeProcess:
        await asyncio.sleep(0)
        process = self.at(target.authority)
        if process is None:
            raise ProbeFailed("connection refused")
        if process.hangs:
            await asyncio.Event().wait()
        if process.refuses is not None:
            raise process.refuses
        return process


class FakeEngine:
    """An open engine. It keeps a record of all that was asked of it."""

    def __init__(self, engines: FakeEngines, target: Target, process: FakeProcess) -> None:
        self._engines = engines
        self._lost: list[Callable[[str], None]] = []
        self.target = target
        self.info = process.info
        self.process = process
        self.calls: list[FakeCall] = []
        self.embedded: list[list[int]] = []
        """Prompts that `embed` was asked for."""
        self.checks = 0
        self.closed = False
        self.heard = 0

    def generate(self, request: EngineRequest, sink: DeltaSink) -> FakeCall:
        call = FakeCall(request, sink)
        self.calls.append(call)
        process = self._engines.at(self.target.authority)
        if process is None or self.closed:
            error = EngineUnavailable("link closed" if self.closed else "connection refused")
            asyncio.get_running_loop().call_soon(call.end, error)
        elif process.fails is not None and (failure := process.fails(request)) is not None:
            asyncio.get_running_loop().call_soon(call.end, failure)
        elif (process.answers and not process.mute) or (process.lives and is_canary(request)):
            asyncio.get_running_loop().call_soon(call.deliver, [7] * request.max_tokens, Finish.LENGTH)
        return call

    async def embed(self, request_id: str, token_ids: Sequence[int], *, timeout: float) -> Embedding:
        """A vector of the prompt's length and sum. Fails and hangs as generate does."""
        self.embedded.append(list(token_ids))
        await asyncio.sleep(0)
        process = self._engines.at(self.target.authority)
        if process is None or self.closed:
            raise EngineUnavailable("link closed" if self.closed else "connection refused")
        request = EngineRequest(request_id, token_ids, 1)
        if process.fails is not None and (failure := process.fails(request)) is not None:
            raise failure
        if process.mute or not process.answers:
            await asyncio.sleep(timeout)
            raise EngineTimeout("the engine took too long")
        return Embedding([float(len(token_ids)), float(sum(token_ids))], len(token_ids))

    async def check(self) -> EngineInfo:
        self.checks += 1
        self.info = (await self._engines._reach(self.target)).info
        return self.info

    async def load(self) -> Mapping[int, EngineLoad]:
        return {}

    async def tokenizer_files(self) -> Mapping[str, bytes]:
        return {}

    def kv_events(self, sink: KvSink) -> KvSubscription | None:
        return FakeSubscription(self.process.kv, sink) if self.process.kv else None

    def on_lost(self, callback: Callable[[str], None]) -> None:
        self._lost.append(callback)

    def lose(self, reason: str) -> None:
        """Its connection breaks: running calls fail, then whoever asked is told."""
        if self.closed:
            return
        for call in self.calls:
            call.end(EngineUnavailable(reason))
        for callback in self._lost:
            callback(reason)

    async def close(self) -> None:
        self.closed = True
        for call in self.calls:
            call.end(EngineUnavailable("link closed"))


def is_canary(request: EngineRequest) -> bool:
    """Whether it is no client's, but to see whether the engine lives."""
    return request.request_id.startswith("canary-")


class FakeCall:
    """One generate call; the test plays the engine."""

    def __init__(self, request: EngineRequest, sink: DeltaSink) -> None:
        self.request = request
        self.sink = sink
        self.paused = False
        self.over = False
        self.cancelled = False

    def deliver(self, token_ids: list[int], finish: Finish | None = None, cached: int | None = None) -> None:
        """News for the sink; with `finish` also the end, and with that what was asked to be kept.

        cached: prompt tokens that were in the engine's cache.
        """
        if not self.over:
            kept = b"kept" if finish is not None and isinstance(self.request.handover, Keep) else None
            self.sink.on_delta(Delta(token_ids, finish, cached_tokens=cached, kept=kept))
            if finish is not None:
                self.end(None)

    def end(self, error: EngineError | None) -> None:
        """The end, once."""
        if not self.over:
            self.over = True
            self.sink.on_end(error)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def cancel(self) -> None:
        if not self.over:
            self.over = self.cancelled = True
