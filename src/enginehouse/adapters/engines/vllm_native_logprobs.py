"""Log probabilities out of the messages of vLLM's native protocol: the prompt's first, then those beside the ids."""

from __future__ import annotations

from collections.abc import Sequence

from enginehouse._proto.vllm_native_pb2 import CandidateTokenInfo, PromptInfo
from enginehouse.adapters.engines.likely import LEFT_OUT, Keeping, sound
from enginehouse.adapters.engines.vllm_native_stream import VllmNativeDecoder
from enginehouse.domain.errors import EngineBroken
from enginehouse.domain.request import EngineRequest
from enginehouse.domain.stream import Delta, TokenLogprob


class VllmNativeLogprobDecoder(VllmNativeDecoder):
    """A VllmNativeDecoder for a request that asks for log probabilities."""

    __slots__ = ("_ids", "_own", "_prompt", "_reader", "_told")

    def __init__(self, request: EngineRequest) -> None:
        super().__init__()
        self._own = request.sampling.logprobs
        self._prompt = request.sampling.prompt_logprobs
        """None: not asked for, or handed on already."""
        self._ids = request.token_ids
        self._told: Sequence[TokenLogprob | None] | None = None
        """The prompt's, until there is news that they go with."""
        self._parse = self._reader = Keeping(self._parse)

    def decode(self, message: bytes) -> Delta | None:
        delta = super().decode(message)
        response = self._reader.last
        if self._prompt is not None and response.HasField("prompt_info"):
            self._told = self._of_prompt(response.prompt_info, self._prompt)
        if delta is None:
            return None
        if self._own is not None:
            ids, output = delta.token_ids, response.output
            if len(output.logprobs) != len(ids):
                raise EngineBroken(LEFT_OUT)
            delta.logprobs = _likely(ids, output.logprobs, output.candidate_tokens, self._own)
        if self._prompt is not None:
            if self._told is None:
                raise EngineBroken(LEFT_OUT)
            delta.prompt_logprobs, self._told, self._prompt = self._told, None, None
        return delta

    def _of_prompt(self, sent: PromptInfo, most: int) -> Sequence[TokenLogprob | None]:
        """What stands for the first token is a placeholder."""
        if len(sent.logprobs) != len(self._ids):
            raise EngineBroken(LEFT_OUT)
        return [None, *_likely(self._ids[1:], sent.logprobs[1:], sent.candidate_tokens[1:], most)]


def _likely(
    ids: Sequence[int], logprobs: Sequence[float], candidates: Sequence[CandidateTokenInfo], most: int
) -> list[TokenLogprob]:
    if not most:
        return [TokenLogprob(token, sound(logprob)) for token, logprob in zip(ids, logprobs, strict=True)]
    return [
        TokenLogprob(token, sound(logprob), tuple((one.id, sound(one.logprob)) for one in info.tokens[:most]))
        for token, logprob, info in zip(ids, logprobs, candidates, strict=True)
    ]
