"""Owns the canary: a few generated tokens, the proof of life of an engine that was mute while its health was fine."""

from __future__ import annotations

import asyncio
import uuid

from enginehouse.domain.engine import Ability, ProtocolName, Role
from enginehouse.domain.errors import EngineError, EngineOverloaded, EngineRejected, ProbeFailed
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Delta
from enginehouse.ports import Engine

_LONG = 3600.0
"""Seconds; whoever waits for a canary does not wait so long."""
_TOKENS = 4
"""More than one: engines have been seen to fail with the second."""


async def canary(engine: Engine) -> None:
    """Let the engine generate a few tokens and end well, or embed one if that is what it does. Raises ProbeFailed.

    A refusal of the engine's own counts as life. SGLang's prefill and decode engines wait for each other in every
    request, so one alone cannot be asked; for them health has to do. vLLM's can do all of one, whatever their role.
    """
    if engine.info.protocol is ProtocolName.SGLANG and engine.info.role in (Role.PREFILL, Role.DECODE):
        return
    name = f"canary-{uuid.uuid4().hex}"
    if Ability.GENERATE not in engine.info.abilities:
        try:
            await engine.embed(name, (1,), timeout=_LONG)
        except EngineError as error:
            if (failure := _failure(error)) is not None:
                raise failure from error
        return
    sink = _Ending(asyncio.get_running_loop())
    call = engine.generate(EngineRequest(name, (1,), _TOKENS, Sampling(temperature=0.0)), sink)
    try:
        await sink.over
    finally:
        call.cancel()


def _failure(error: EngineError | None) -> ProbeFailed | None:
    """What an end says against the engine."""
    alive = error is None or isinstance(error, EngineOverloaded | EngineRejected)
    return None if alive else ProbeFailed(f"the canary failed: {error}")


class _Ending:
    """A DeltaSink that waits for the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.over: asyncio.Future[None] = loop.create_future()

    def on_delta(self, delta: Delta) -> None:
        if delta.finish is not None:
            self._settle(None)

    def on_end(self, error: EngineError | None) -> None:
        self._settle(_failure(error))

    def _settle(self, failure: ProbeFailed | None) -> None:
        if self.over.done():
            return
        if failure is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(failure)
