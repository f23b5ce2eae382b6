"""An engine that was probed: one implementation of the port, whatever protocol is spoken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError

from enginehouse.adapters.engines.failures import engine_error, probe_failed
from enginehouse.adapters.engines.protocol import Decoder, EngineProtocol, ProbeSettings
from enginehouse.domain.engine import EngineInfo, Target
from enginehouse.domain.errors import EngineBroken, EngineError, EngineRejected
from enginehouse.domain.link import LinkError
from enginehouse.domain.request import EngineRequest
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

    def generate(self, request: EngineRequest, sink: DeltaSink) -> Call:
        answer = Answer(self._protocol, sink)
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
        self.info = info
        return info

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

    __slots__ = ("_decode", "_ended", "_protocol", "_sink", "call")

    def __init__(self, protocol: EngineProtocol, sink: DeltaSink) -> None:
        decoder: Decoder = protocol.decoder()
        self._decode = decoder.decode
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
        if self.call is not None:
            self.call.cancel()

    def _break_off(self, error: EngineError) -> None:
        if self.call is not None:
            self.call.cancel()
        self._end(error)

    def _end(self, error: EngineError | None) -> None:
        self._ended = True
        self._sink.on_end(error)
