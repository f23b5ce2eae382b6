"""Messages of SGLang's Generate into news: only ids not delivered before.

Depending on a server flag a message repeats the whole answer so far (cumulative, SGLang's default) or holds what is new
(delta). `completion_tokens` is cumulative in both; with the flag unknown it tells them apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from enginehouse._proto.sglang_runtime_v1_pb2 import GenerateResponse
from enginehouse.adapters.engines.failures import rejected
from enginehouse.domain.errors import EngineBroken, EngineError, EngineFailed, EngineOverloaded, HandoverFailed
from enginehouse.domain.stream import Delta, Finish

_STOPS = ("stop", "eos")
_HANDOVER_TEXTS = ("bootstrap", "handshake failed", "transfer failed", "kvtransfererror")
"""How SGLang words it; most name the `bootstrap_room`."""


class SglangDecoder:
    """State of one answer. incremental: the server's flag; None where it does not tell."""

    __slots__ = ("_incremental", "_parse", "_seen")

    def __init__(self, incremental: bool | None) -> None:
        self._incremental = incremental
        self._seen = 0
        self._parse: Callable[[bytes], GenerateResponse] = GenerateResponse.FromString

    def decode(self, message: bytes) -> Delta | None:
        response = self._parse(message)
        meta = response.meta_info
        reason = meta.get("finish_reason", "null")
        if reason == "null" and not response.finished:
            seen = self._seen
            if seen and self._incremental is False:  # the usual message: nothing else of it is looked at
                new: Sequence[int] = response.output_ids[seen:]
                self._seen = seen + len(new)
            else:
                new = self._news(response.output_ids, meta.get("completion_tokens"), last=False)
            if not new:
                return None
            if seen:
                return Delta(new)
            return Delta(new, None, _number(meta.get("prompt_tokens")), _number(meta.get("cached_tokens")))
        finish = _finish(reason)  # raises where the end is none
        new = self._news(response.output_ids, meta.get("completion_tokens"), last=True)
        return Delta(new, finish, _number(meta.get("prompt_tokens")), _number(meta.get("cached_tokens")))

    def _news(self, ids: Sequence[int], completion_tokens: str | None, *, last: bool) -> Sequence[int]:
        seen, length = self._seen, len(ids)
        count = _number(completion_tokens)
        incremental = self._incremental
        if incremental is None:
            incremental = self._tell(seen, length, count)
        if incremental:
            fresh = length if count is None else min(length, max(0, count - seen))
            new = ids[length - fresh :]  # what is beyond the count repeats what came before
            self._seen = seen + fresh
            return new
        # The list may have grown past the count while the message was written, but not after the end.
        end = length if count is None or not last else min(length, count)
        if end <= seen:
            return ()
        self._seen = end
        return ids[seen:end]

    def _tell(self, seen: int, length: int, count: int | None) -> bool:
        """Delta or not, decided at the first message that can tell, and kept."""
        if seen == 0 or count is None:  # both look the same yet
            return False
        if length + seen == count:
            self._incremental = True
        elif length >= count:
            self._incremental = False
        return bool(self._incremental)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _finish(reason: str) -> Finish:
    """The finish, or the error that an end of another kind is."""
    try:
        found = json.loads(reason)
    except ValueError:
        found = None
    kind = found.get("type") if isinstance(found, dict) else found
    if kind in _STOPS:
        return Finish.STOP
    if kind == "length":
        return Finish.LENGTH
    if kind is None:
        raise EngineBroken("the engine ended its answer without saying why")
    raise _unasked_end(found if isinstance(found, dict) else {})


def _unasked_end(reason: dict[str, object]) -> EngineError:
    """An abort or error that we did not ask for, by the HTTP status that the scheduler gives it."""
    status, text = reason.get("status_code"), str(reason.get("message") or "")
    if (failed := handover_failed(text)) is not None:
        return failed
    if status in (400, "400"):
        return rejected(text)
    if status in (429, 503, "429", "503"):
        return EngineOverloaded("the engine takes no more requests for now")
    error = EngineFailed("the engine failed this request")
    error.__cause__ = RuntimeError(text) if text else None
    return error


def handover_failed(text: str) -> HandoverFailed | None:
    """The error for an end whose text tells of the hand-over, whatever status it has: no client caused it."""
    lower = text.lower()
    if not any(words in lower for words in _HANDOVER_TEXTS):
        return None
    error = HandoverFailed("the KV cache did not pass from the prefill to the decode engine")
    error.__cause__ = RuntimeError(text)
    return error
