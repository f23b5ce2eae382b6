"""Owns the canary: a few generated tokens, the proof of life of an engine that was mute while its health was fine."""

from __future__ import annotations

import asyncio
import uuid

from enginehouse.domain.engine import ProtocolName, Role
from enginehouse.domain.errors import EngineError, EngineOverloaded, EngineRejected, ProbeFailed
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Delta
from enginehouse.ports import Engine

_TOKENS = 4
"""More than one: engines have been seen to fail with the second."""


async def canary(engine: Engine) -> None:
    """Let the engine generate a few tokens and end well. Raises ProbeFailed.

    A refusal of the engine's own counts as life. SGLang's prefill and decode engines wait for each other in every
    request, so one alone cannot be asked; for them health has to do. vLLM's can do all of one, whatever their role.
    """
    if engine.info.protocol is ProtocolName.SGLANG and engine.info.role in (Role.PREFILL, Role.DECODE):
        return
    sink = _Ending(asyncio.get_running_loop())
    call = engine.generate(EngineRequest(f"canary-{uuid.uuid4().hex}", (1,), _TOKENS, Sampling(temperature=0.0)), sink)
    try:
        await sink.over
    finally:
        call.cancel()


class _Ending:
    """A DeltaSink that waits for the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.over: asyncio.Future[None] = loop.create_future()

    def on_delta(self, delta: Delta) -> None:
        if delta.finish is not None:
            self._settle(None)

    def on_end(self, error: EngineError | None) -> None:
        alive = error is None or isinstance(error, EngineOverloaded | EngineRejected)
        self._settle(None if alive else ProbeFailed(f"the canary failed: {error}"))

    def _settle(self, failure: ProbeFailed | None) -> None:
        if self.over.done():
            return
        if failure is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(failure)
