"""Messages of `vllm.grpc.engine` Generate into news.

Chunks are deltas, and their `completion_tokens` counts only the delta. The closing message repeats the last delta, so
its ids are taken only where they cannot be that repetition.
"""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto.generated.vllm_engine_pb2 import GenerateComplete, GenerateResponse

from enginehouse.domain.errors import EngineBroken, EngineFailed
from enginehouse.domain.stream import Delta, Finish

_FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH}
_FAILURES = ("abort", "error")


class VllmDecoder:
    """State of one answer."""

    __slots__ = ("_last", "_parse", "_seen")

    def __init__(self) -> None:
        self._seen = 0
        self._last: Sequence[int] = ()
        self._parse = GenerateResponse.FromString

    def decode(self, message: bytes) -> Delta | None:
        response = self._parse(message)
        chunk = response.chunk
        ids = chunk.token_ids[:]
        if ids:  # asked first: nearly every message is such a chunk
            self._last = ids
            seen = self._seen
            self._seen = seen + len(ids)
            return Delta(ids) if seen else Delta(ids, None, chunk.prompt_tokens, chunk.cached_tokens)
        if response.HasField("complete"):
            return self._close(response.complete)
        self._last = ids
        return None

    def _close(self, complete: GenerateComplete) -> Delta:
        finish = _FINISHES.get(complete.finish_reason)
        if finish is None:
            if complete.finish_reason in _FAILURES:
                raise EngineFailed("the engine failed this request")
            raise EngineBroken("the engine ended its answer without saying why")
        ids = self._unseen(complete.output_ids[:])
        return Delta(
            ids, finish, complete.prompt_tokens, complete.cached_tokens, _kept(complete.kv_transfer_params_json)
        )

    def _unseen(self, ids: Sequence[int]) -> Sequence[int]:
        if len(ids) == len(self._last) and ids == self._last:
            return ()  # the repetition
        if self._seen and len(ids) >= self._seen:
            return ids[self._seen :]  # the whole answer
        return ids


def _kept(text: str) -> bytes | None:
    """What a prefill engine kept, in JSON as it came; None where there is nothing in it."""
    return None if text in ("", "{}", "null") else text.encode()
