"""Messages of `vllm.Inference` GenerateStream into news: the prompt first, then deltas, the last with the finish."""

from __future__ import annotations

from collections.abc import Callable

from enginehouse._proto.vllm_native_pb2 import ABORTED, LENGTH, STOP, GenerateResponse
from enginehouse.domain.errors import EngineBroken, EngineFailed
from enginehouse.domain.stream import Delta, Finish

_FINISHES = {int(STOP): Finish.STOP, int(LENGTH): Finish.LENGTH}


class VllmNativeDecoder:
    """State of one answer."""

    __slots__ = ("_parse", "_prompt_tokens")

    def __init__(self) -> None:
        self._prompt_tokens: int | None = None
        self._parse: Callable[[bytes], GenerateResponse] = GenerateResponse.FromString

    def decode(self, message: bytes) -> Delta | None:
        response = self._parse(message)
        output = response.output
        ids = output.token_ids[:]
        if response.HasField("prompt_info"):
            self._prompt_tokens = response.prompt_info.num_prompt_tokens
        if output.num_tokens > len(ids):
            raise EngineBroken("the engine left out token ids that it was asked for")
        if output.HasField("finish_info"):
            info = output.finish_info
            finish = _FINISHES.get(info.finish_reason)
            if finish is not None:
                cached = info.cached_tokens if info.HasField("cached_tokens") else None
                return Delta(ids, finish, self._prompt_tokens, cached, info.kv_transfer_params or None)
            if info.finish_reason == ABORTED:
                raise EngineFailed("the engine failed this request")  # an abort that we did not ask for
            if info.finish_reason:
                raise EngineBroken("the engine ended its answer without saying why")
        if not ids:
            return None
        prompt_tokens, self._prompt_tokens = self._prompt_tokens, None
        return Delta(ids, None, prompt_tokens) if prompt_tokens is not None else Delta(ids)
