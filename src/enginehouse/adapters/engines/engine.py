"""An engine that was probed: one implementation of the port, whatever protocol is spoken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from enginehouse.adapters.engines.failures import engine_error, probe_failed
from enginehouse.adapters.engines.kv_link import LinkKvSubscription
from enginehouse.adapters.engines.kv_sources import KvSourceSettings, with_sources
from enginehouse.adapters.engines.legs import as_sent
from enginehouse.adapters.engines.protocol import Decoder, EngineProtocol, ProbeSettings
from enginehouse.domain.engine import EngineInfo, Target
from enginehouse.domain.errors import EngineBroken, EngineError, EngineFailed, EngineRejected, HandoverFailed
from enginehouse.domain.handover import Fetch, Keep
from enginehouse.domain.link import LinkError
from enginehouse.domain.request import EngineRequest
from enginehouse.domain.stream import Embedding
from enginehouse.ports import Call, DeltaSink, EngineLoad, KvSink, KvSubscription, Link

_UNWRITABLE = (ValueError, OverflowError, TypeError)
"""What encoding raises: a number that the protocol has no room for, or a wish that it has no words for."""
_UNCARRIED = "the engine's protocol cannot carry this request"


class Engine:
    """Implements ports.Engine."""

    def __init__(
        self,
        link: Link,
        target: Target,
        info: EngineInfo,
        protocol: EngineProtocol,
        settings: ProbeSettings,
        kv_sources: KvSourceSettings,
    ) -> None:
        self.target = target
        self._link = link
        self._protocol = protocol
        self._settings = settings
        self._kv_sources = kv_sources
        self.info = self._with_sources(info)
        self.heard = 0

    def generate(self, request: EngineRequest, sink: DeltaSink) -> Call:
        request = as_sent(request)
        answer = Answer(self._protocol, sink, self, request)
        try:
            message = self._protocol.encode(request)
        except _UNWRITABLE:
            asyncio.get_running_loop().call_soon(answer.fail, EngineRejected(_UNCARRIED))
            return answer
        # No deadline on the call: first-token and between-token limits are the caller's, who cancels.
        answer.call = self._link.stream(
            self._protocol.generate_path, message, answer, metadata=self._protocol.metadata(request)
        )
        return answer

    async def embed(self, request_id: str, token_ids: Sequence[int], *, timeout: float) -> Embedding:
        try:
            found = await self._protocol.embed(request_id, token_ids, timeout)
        except _UNWRITABLE as error:
            raise EngineRejected(_UNCARRIED) from error
        except LinkError as error:
            raise self._protocol.failure(error) from error
        self.heard += 1
        if not found.values:
            raise EngineBroken("the engine gave an embedding without values")
        return found

    async def abort(self, request_id: str) -> None:
        """End a request by its id. Only for requests whose stream is not ours to cancel. Raises EngineError."""
        try:
            await self._protocol.abort(request_id)
        except LinkError as error:
            raise engine_error(error) from error

    async def check(self) -> EngineInfo:
        try:
            await self._protocol.health()
            info = self._with_sources(await self._protocol.describe())
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

    def kv_events(self, sink: KvSink) -> KvSubscription | None:
        path = self._protocol.kv_events_path
        return LinkKvSubscription(self._link, path, sink, self.info.first_rank) if path is not None else None

    def on_lost(self, callback: Callable[[str], None]) -> None:
        self._link.on_lost(lambda error: callback(error.text))

    async def close(self) -> None:
        await self._link.close()

    def _with_sources(self, info: EngineInfo) -> EngineInfo:
        over_link = self._protocol.kv_events_path is not None
        return with_sources(info, self.target, self._kv_sources, over_link=over_link)


class Answer:
    """One answer on its way: sink of the link's messages, and the caller's handle on the call.

    It ends with the message that carries the finish. What the transport says after that no longer matters, but its
    call is open until it says so, and is the caller's to cancel if it never does.
    """

    __slots__ = ("_begun", "_decode", "_engine", "_handover", "_protocol", "_sink", "call")

    def __init__(self, protocol: EngineProtocol, sink: DeltaSink, engine: Engine, request: EngineRequest) -> None:
        decoder: Decoder = protocol.decoder(request)
        self._decode = decoder.decode
        self._engine = engine
        self._protocol = protocol
        self._handover = request.handover
        self._begun = False
        self._sink: DeltaSink | None = sink  # None: it has heard its last, and is not kept alive by a late transport
        self.call: Call | None = None

    def on_message(self, message: bytes) -> None:
        self._engine.heard += 1
        sink = self._sink
        if sink is None:
            return
        try:
            delta = self._decode(message)
        except EngineError as error:
            self._break_off(error)
            return
        except Exception as error:  # whatever a parser may trip over in bytes that others wrote
            broken = EngineBroken("the engine sent a message that cannot be read")
            broken.__cause__ = error
            self._break_off(broken)
            return
        if delta is None:
            return
        finish = delta.finish
        if finish is not None and delta.kept is None and isinstance(self._handover, Keep):
            self._break_off(
                HandoverFailed("the prefill engine kept nothing for a decode engine: has it a KV connector?")
            )
            return
        self._begun = True
        sink.on_delta(delta)
        if finish is not None:
            self._end(None)

    def on_end(self, error: LinkError | None) -> None:
        self.call = None
        if self._sink is None:
            return
        if error is None:
            self._end(EngineBroken("the engine ended its answer without saying why"))
        else:
            self._end(self._protocol.failure(error))

    def fail(self, error: EngineError) -> None:
        """End before the call was made."""
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
        self._sink = None
        self._reset()

    def _break_off(self, error: EngineError) -> None:
        self._reset()
        self._end(error)

    def _reset(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            call.cancel()

    def _end(self, error: EngineError | None) -> None:
        sink, self._sink = self._sink, None
        if sink is None:
            return
        if type(error) is EngineFailed and not self._begun and isinstance(self._handover, Fetch):
            # vLLM does not say why. Before the first token it is most likely what it had to fetch.
            failed, error = error, HandoverFailed("the decode engine could not take over the prompt's KV cache")
            error.__cause__ = failed
        sink.on_end(error)
