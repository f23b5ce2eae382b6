"""An engine that was probed: one implementation of the port, whatever protocol is spoken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import uuid4

from google.protobuf.message import DecodeError

from enginehouse.adapters.engines.failures import engine_error, probe_failed
from enginehouse.adapters.engines.protocol import Decoder, EngineProtocol, ProbeSettings
from enginehouse.domain.engine import EngineInfo, Role, Target
from enginehouse.domain.errors import EngineBroken, EngineError, EngineOverloaded, EngineRejected, ProbeFailed
from enginehouse.domain.link import LinkError
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Delta
from enginehouse.ports import Call, DeltaSink, EngineLoad, Link


class Engine:
    """Implements ports.Engine."""

    def __init__(
        self, link: Link, target: Target, info: EngineInfo, protocol: EngineProtocol, settings: ProbeSettings
    ) -> None:
        self.target = target
        self.info = info
        self._link = link
        self._protocol = protocol
        self._settings = settings
        self.in_doubt = False
        """The last answer ended without a finish. Health calls are answered by another part of the engine than
        generation, so the next check must see it generate."""

    def generate(self, request: EngineRequest, sink: DeltaSink) -> Call:
        answer = Answer(self, self._protocol, sink)
        try:
            message = self._protocol.encode(request)
        except (ValueError, OverflowError, TypeError):  # a number that the protocol has no room for
            asyncio.get_running_loop().call_soon(
                answer.fail, EngineRejected("the engine's protocol cannot carry this request")
            )
            return answer
        # No deadline on the call: first-token and between-token limits are the caller's, who cancels.
        answer.call = self._link.stream(
            self._protocol.generate_path, message, answer, metadata=self._protocol.metadata(request)
        )
        return answer

    async def abort(self, request_id: str) -> None:
        """End a request by its id. Only for requests whose stream is not ours to cancel. Raises EngineError."""
        try:
            await self._protocol.abort(request_id)
        except LinkError as error:
            raise engine_error(error) from error

    async def check(self) -> EngineInfo:
        try:
            await self._protocol.health()
            info = await self._protocol.describe()
        except LinkError as error:
            raise probe_failed(error, "the health check", self._settings.call_timeout) from error
        if self.in_doubt and info.role not in (Role.PREFILL, Role.DECODE):  # half an engine generates nothing alone
            await self._see_it_generate()
        if info.tokenizer_digest is None:  # read when it was probed, not at each check
            info = replace(info, tokenizer_digest=self.info.tokenizer_digest)
        self.info = info
        return info

    async def _see_it_generate(self) -> None:
        """One token for a prompt of one token. Raises ProbeFailed unless it comes in time."""
        canary = _Canary()
        token = self.info.eos_token_ids[0] if self.info.eos_token_ids else 1
        call = self.generate(EngineRequest(uuid4().hex, [token], 1, Sampling(temperature=0.0, ignore_eos=True)), canary)
        try:
            await asyncio.wait_for(canary.ended, self._settings.call_timeout)
        except TimeoutError:
            reason = f"healthy by its own account, but no token within {self._settings.call_timeout:g} s"
            raise ProbeFailed(reason) from None
        except EngineError as error:
            raise ProbeFailed(f"healthy by its own account, but cannot generate: {error.message}") from error
        finally:
            call.cancel()
        self.in_doubt = False

    async def load(self) -> Mapping[int, EngineLoad]:
        try:
            return await self._protocol.load()
        except LinkError as error:
            raise engine_error(error) from error

    async def tokenizer_files(self) -> Mapping[str, bytes]:
        try:
            return await self._protocol.tokenizer_files()
        except LinkError as error:
            raise engine_error(error) from error

    def on_lost(self, callback: Callable[[str], None]) -> None:
        self._link.on_lost(lambda error: callback(error.text))

    async def close(self) -> None:
        await self._link.close()


class Answer:
    """One answer on its way: sink of the link's messages, and the caller's handle on the call.

    It ends with the message that carries the finish; what the transport says after that no longer matters.
    """

    __slots__ = ("_decode", "_ended", "_engine", "_protocol", "_sink", "call")

    def __init__(self, engine: Engine, protocol: EngineProtocol, sink: DeltaSink) -> None:
        decoder: Decoder = protocol.decoder()
        self._decode = decoder.decode
        self._engine = engine
        self._protocol = protocol
        self._sink = sink
        self._ended = False
        self.call: Call | None = None

    def on_message(self, message: bytes) -> None:
        if self._ended:
            return
        try:
            delta = self._decode(message)
        except EngineError as error:
            self._break_off(error)
            return
        except (DecodeError, ValueError, TypeError, KeyError, AttributeError) as error:
            broken = EngineBroken("the engine sent a message that cannot be read")
            broken.__cause__ = error
            self._break_off(broken)
            return
        if delta is None:
            return
        self._sink.on_delta(delta)
        if delta.finish is not None and not self._ended:
            self._end(None)

    def on_end(self, error: LinkError | None) -> None:
        if self._ended:
            return
        if error is None:
            self._end(EngineBroken("the engine ended its answer without saying why"))
        else:
            self._end(self._protocol.failure(error))

    def fail(self, error: EngineError) -> None:
        """End before the call was made."""
        if not self._ended:
            self._end(error)

    def pause(self) -> None:
        if self.call is not None:
            self.call.pause()

    def resume(self) -> None:
        if self.call is not None:
            self.call.resume()

    def cancel(self) -> None:
        # Resetting the stream is the abort: all three engines end the request then. A second word by the Abort method
        # could only hit a later request.
        if self._ended:
            return
        self._ended = True
        self._engine.in_doubt = True
        if self.call is not None:
            self.call.cancel()

    def _break_off(self, error: EngineError) -> None:
        if self.call is not None:
            self.call.cancel()
        self._end(error)

    def _end(self, error: EngineError | None) -> None:
        self._ended = True
        if not isinstance(error, EngineRejected | EngineOverloaded):  # a refusal says nothing of generation
            self._engine.in_doubt = error is not None
        self._sink.on_end(error)


class _Canary:
    """Sink that only wants to know whether something came."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_delta(self, delta: Delta) -> None:
        if delta.token_ids and not self.ended.done():
            self.ended.set_result(None)

    def on_end(self, error: EngineError | None) -> None:
        if not self.ended.done():
            if error is not None:
                self.ended.set_exception(error)
            else:
                self.ended.set_exception(EngineBroken("it ended without a token"))
