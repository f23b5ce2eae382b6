"""The same legs sent with no frontend between: what engines need to meet, whoever sends them.

Requests are encoded before the clock starts, as far as they can be, so that encoding a second leg counts as the
frontend's.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from dataclasses import replace

from enginehouse.adapters.engines.legs import as_sent
from enginehouse.adapters.engines.protocol import Decoder, EngineProtocol, ProbeSettings
from enginehouse.adapters.engines.sglang import SglangProtocol
from enginehouse.adapters.engines.vllm import VllmProtocol
from enginehouse.adapters.engines.vllm_native import VllmNativeProtocol
from enginehouse.adapters.link.link import Link
from enginehouse.adapters.link.settings import LinkSettings
from enginehouse.core.handover import meeting_point
from enginehouse.core.routing.room import room
from enginehouse.domain.engine import Target
from enginehouse.domain.handover import Fetch, Handover, Keep, Rendezvous
from enginehouse.domain.link import LinkError
from enginehouse.domain.request import EngineRequest, Sampling

_KINDS: dict[str, type[EngineProtocol]] = {
    "sglang": SglangProtocol,
    "vllm": VllmProtocol,
    "vllm-native": VllmNativeProtocol,
}
_PROMPT = 400
"""Tokens; about what `bench.load` asks with."""


class Bare:
    """A client of an engine alone and of a pair, all of one protocol."""

    def __init__(self, protocol: str, alone: int, prefill: int, decode: int) -> None:
        """Ports on this machine."""
        targets = [Target("127.0.0.1", port) for port in (alone, prefill, decode)]
        self._links = [Link(target, LinkSettings()) for target in targets]
        self._alone, self._prefill, self._decode = (
            (link, _KINDS[protocol](link, target, ProbeSettings()))
            for link, target in zip(self._links, targets, strict=True)
        )
        self._target = targets[1]
        self._meets = protocol == "sglang"
        self._point: tuple[str, int] | None = None

    async def open(self) -> None:
        """Learn where the legs meet. Raises LinkError."""
        infos = [await protocol.describe() for _, protocol in (self._alone, self._prefill, self._decode)]
        self._point = meeting_point(self._target, infos[1]) if self._meets else None

    async def close(self) -> None:
        for link in self._links:
            await link.close()

    async def aggregated(self) -> float:
        """Seconds to the first token of one request."""
        link, protocol = self._alone
        asked = _request(None)
        message = protocol.encode(asked)
        heard = _Heard(protocol.decoder(asked))
        began = time.perf_counter()
        link.stream(protocol.generate_path, message, heard)
        await heard.ended
        return heard.first - began

    async def apart(self) -> float:
        """Seconds to the decode engine's first token of one request in two legs."""
        (to_prefill, prefill), (to_decode, decode) = self._prefill, self._decode
        place = Rendezvous(*self._point, room(random.getrandbits(64), None, 1)) if self._point is not None else Keep()
        second = _request(place)
        first = replace(second, request_id=uuid.uuid4().hex, prefill_only=True)
        first_message = prefill.encode(as_sent(first))
        second_message = decode.encode(second) if self._meets else b""
        kept, answer = _Heard(prefill.decoder(first)), _Heard(decode.decoder(second))
        began = time.perf_counter()
        to_prefill.stream(prefill.generate_path, first_message, kept)
        if not self._meets:
            await kept.ended
            assert kept.kept is not None
            second_message = decode.encode(replace(second, handover=Fetch(kept.kept)))
        to_decode.stream(decode.generate_path, second_message, answer)
        await answer.ended
        await kept.ended
        return answer.first - began


class _Heard:
    """Sink of one answer."""

    def __init__(self, decoder: Decoder) -> None:
        self._decode = decoder.decode
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first = 0.0
        self.kept: bytes | None = None

    def on_message(self, message: bytes) -> None:
        delta = self._decode(message)
        if delta is None:
            return
        if delta.token_ids and not self.first:
            self.first = time.perf_counter()
        if delta.finish is not None:
            self.kept = delta.kept
            if not self.ended.done():
                self.ended.set_result(None)

    def on_end(self, error: LinkError | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or RuntimeError("an answer without a finish"))


def _request(handover: Handover | None) -> EngineRequest:
    tokens = [random.randrange(300, 3000) for _ in range(_PROMPT)]
    return EngineRequest(uuid.uuid4().hex, tokens, 2, Sampling(ignore_eos=True), handover=handover)
