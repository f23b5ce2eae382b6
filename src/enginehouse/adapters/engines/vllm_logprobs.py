"""Log probabilities out of the messages of vLLM's servicer: they stand beside the ids, and are repeated with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from enginehouse.adapters.engines.likely import LEFT_OUT, Keeping, sound
from enginehouse.adapters.engines.vllm_stream import VllmDecoder
from enginehouse.domain.errors import EngineBroken
from enginehouse.domain.request import EngineRequest
from enginehouse.domain.stream import Delta, TokenLogprob

_MOST: Final = 20
"""What the engine takes unless it is told otherwise (`--max-logprobs`)."""


def to_ask(most: int) -> int:
    """How many of the most likely tokens to ask for. One that was drawn though it is not among them takes the place of
    the last: one more is asked for, where that is allowed."""
    return most + 1 if 0 < most < _MOST else most


class VllmLogprobDecoder(VllmDecoder):
    """A VllmDecoder for a request that asks for log probabilities."""

    __slots__ = ("_own", "_prompt", "_prompt_length", "_reader", "_told")

    def __init__(self, request: EngineRequest) -> None:
        super().__init__()
        self._own = request.sampling.logprobs
        self._prompt = request.sampling.prompt_logprobs
        """None: not asked for, or handed on already."""
        self._prompt_length = len(request.token_ids)
        self._told: Sequence[TokenLogprob | None] | None = None
        """The prompt's, until there is news that they go with."""
        self._parse = self._reader = Keeping(self._parse)

    def decode(self, message: bytes) -> Delta | None:
        delta = super().decode(message)
        response = self._reader.last
        sent = response.chunk if response.HasField("chunk") else response.complete
        if self._prompt is not None and self._told is None and sent.HasField("input_logprobs"):
            self._told = self._of_prompt(sent.input_logprobs, self._prompt)
        if delta is None:
            return None
        if self._own is not None:
            delta.logprobs = _of_answer(sent.output_logprobs, delta.token_ids, self._own)
        if self._prompt is not None:
            if self._told is None:
                raise EngineBroken(LEFT_OUT)
            delta.prompt_logprobs, self._told, self._prompt = self._told, None, None
        return delta

    def _of_prompt(self, sent: Any, most: int) -> Sequence[TokenLogprob | None]:
        ids, values, tops = sent.token_ids, sent.token_logprobs, sent.top_logprobs
        if len(ids) != self._prompt_length or len(values) != self._prompt_length:
            raise EngineBroken(LEFT_OUT)
        return [
            TokenLogprob(token, sound(value.value), _top(tops, at, token, most)) if value.HasField("value") else None
            for at, (token, value) in enumerate(zip(ids, values, strict=True))
        ]


def _of_answer(sent: Any, ids: Sequence[int], most: int) -> Sequence[TokenLogprob]:
    """Of these ids, the last of those that were sent."""
    values, tops = sent.token_logprobs, sent.top_logprobs
    first = len(values) - len(ids)
    if first < 0 or list(sent.token_ids[first:]) != list(ids):
        raise EngineBroken(LEFT_OUT)
    return [
        TokenLogprob(token, sound(values[at]), _top(tops, at, token, most)) for at, token in enumerate(ids, start=first)
    ]


def _top(tops: Any, at: int, token: int, most: int) -> tuple[tuple[int, float], ...]:
    """The most likely ones. Where the token is not one of them it stands before them."""
    if not most or at >= len(tops):
        return ()
    values, ids = tops[at].values, tops[at].token_ids
    first = 1 if len(values) > 1 and ids[0] == token and values[0] < values[1] else 0
    return tuple((other, sound(its)) for other, its in zip(ids[first : first + most], values[first:], strict=False))
