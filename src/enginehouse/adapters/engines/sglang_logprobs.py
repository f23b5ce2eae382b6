"""Log probabilities out of SGLang's messages: JSON lists beside the ids, cut as the ids are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from enginehouse._proto.sglang_runtime_v1_pb2 import GenerateResponse
from enginehouse.adapters.engines.likely import LEFT_OUT, sound
from enginehouse.adapters.engines.sglang_stream import SglangDecoder
from enginehouse.domain.errors import EngineBroken
from enginehouse.domain.request import EngineRequest
from enginehouse.domain.stream import Delta, TokenLogprob

_Entry: TypeAlias = tuple[float | None, int, str | None]


class SglangLogprobDecoder(SglangDecoder):
    """A SglangDecoder for a request that asks for log probabilities."""

    __slots__ = ("_own", "_prompt", "_prompt_length", "_reader")

    def __init__(self, incremental: bool | None, request: EngineRequest) -> None:
        super().__init__(incremental)
        self._own = request.sampling.logprobs
        self._prompt = request.sampling.prompt_logprobs
        """None: not asked for, or told already."""
        self._prompt_length = len(request.token_ids)
        # While a message is written the ids may run ahead of the lists: what has no probability yet waits for it.
        self._parse = self._reader = _Reader(own=self._own is not None, cumulative=incremental is False)

    def decode(self, message: bytes) -> Delta | None:
        before = self._seen
        delta = super().decode(message)
        if delta is None:
            return None
        meta, ids = self._reader.meta, delta.token_ids
        if self._own is not None:
            first = self._reader.length - len(ids) if self._incremental else before
            entries = self._reader.entries[first : first + len(ids)]
            if [token for _, token, _ in entries] != list(ids):
                raise EngineBroken(LEFT_OUT)
            tops = _rows(meta, "output_top_logprobs")[first : first + len(ids)] if self._own else ()
            delta.logprobs = _likely(entries, tops, self._own)
        if self._prompt is not None and (ids or delta.finish is not None):
            delta.prompt_logprobs = self._of_prompt(meta, self._prompt)
            self._prompt = None
        return delta

    def _of_prompt(self, meta: Mapping[str, str], most: int) -> Sequence[TokenLogprob | None]:
        """Older releases leave the first token out."""
        entries, rest = _rows(meta, "input_token_logprobs"), self._prompt_length - 1
        if rest > len(entries):
            raise EngineBroken(LEFT_OUT)
        tops = _rows(meta, "input_top_logprobs") if most else ()
        return [None, *_likely(entries[len(entries) - rest :], tops[len(tops) - rest :] if tops else (), most)]


class _Reader:
    """Reads a message, and keeps what there is besides the ids."""

    __slots__ = ("_clips", "_own", "entries", "length", "meta")

    def __init__(self, *, own: bool, cumulative: bool) -> None:
        self._own = own
        self._clips = own and cumulative
        self.entries: Sequence[_Entry] = ()
        self.length = 0
        self.meta: Mapping[str, str] = {}

    def __call__(self, message: bytes) -> GenerateResponse:
        response = GenerateResponse.FromString(message)
        self.meta = response.meta_info
        if self._own:
            self.entries = _rows(self.meta, "output_token_logprobs")
            if self._clips and not response.finished:
                del response.output_ids[len(self.entries) :]
        self.length = len(response.output_ids)
        return response


def _rows(meta: Mapping[str, str], name: str) -> Any:
    """A list as the engine wrote it; an empty one where there is none."""
    return json.loads(meta.get(name, "null")) or []


def _likely(entries: Sequence[_Entry], tops: Sequence[Sequence[_Entry] | None], most: int) -> list[TokenLogprob]:
    if not tops:
        return [TokenLogprob(token, sound(logprob)) for logprob, token, _ in entries]
    return [
        TokenLogprob(token, sound(logprob), tuple((other, sound(its)) for its, other, _ in (top or ())[:most]))
        for (logprob, token, _), top in zip(entries, tops, strict=True)
    ]
