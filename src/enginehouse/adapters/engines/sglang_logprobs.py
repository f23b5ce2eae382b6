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

    __slots__ = ("_own", "_prompt", "_prompt_length", "_reader", "_tops")

    def __init__(self, incremental: bool | None, request: EngineRequest) -> None:
        super().__init__(incremental)
        self._own = request.sampling.logprobs
        self._prompt = request.sampling.prompt_logprobs
        """None: not asked for, or told already."""
        self._prompt_length = len(request.token_ids)
        self._tops = _List("output_top_logprobs")
        # While a message is written the ids may run ahead of the lists: what has no probability yet waits for it.
        self._parse = self._reader = _Reader(own=self._own is not None, cumulative=incremental is False)

    def decode(self, message: bytes) -> Delta | None:
        before = self._seen
        delta = super().decode(message)
        if delta is None:
            return None
        reader, ids = self._reader, delta.token_ids
        reader.cumulative = self._incremental is False
        if self._own is not None:
            first = reader.entries.length - len(ids) if self._incremental else before
            entries = reader.entries.taken(first, len(ids))
            if [token for _, token, _ in entries] != list(ids):
                raise EngineBroken(LEFT_OUT)
            tops: Sequence[Sequence[_Entry] | None] = ()
            if self._own:
                self._tops.read(reader.meta, grows=reader.cumulative)
                tops = self._tops.taken(first, len(ids))
            delta.logprobs = _likely(entries, tops, self._own)
        if self._prompt is not None and (ids or delta.finish is not None):
            delta.prompt_logprobs = self._of_prompt(reader.meta, self._prompt)
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

    __slots__ = ("_clips", "_own", "cumulative", "entries", "meta")

    def __init__(self, *, own: bool, cumulative: bool) -> None:
        self._own = own
        self._clips = own and cumulative
        self.cumulative = cumulative
        """Messages repeat what earlier ones said."""
        self.entries = _List("output_token_logprobs")
        self.meta: Mapping[str, str] = {}

    def __call__(self, message: bytes) -> GenerateResponse:
        response = GenerateResponse.FromString(message)
        self.meta = response.meta_info
        if self._own:
            self.entries.read(self.meta, grows=self.cumulative)
            if self._clips and not response.finished:
                del response.output_ids[self.entries.length :]
        return response


class _List:
    """A list for the ids of an answer, as far as it is not taken yet.

    Where each message repeats all of it, only what is new is read: the rest may be megabytes for each token.
    """

    __slots__ = ("_end", "_first", "_name", "_rows")

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows: list[Any] = []
        self._first = 0
        """Rows before those that are kept."""
        self._end = 0
        """Characters of the text up to the last row's end."""

    @property
    def length(self) -> int:
        return self._first + len(self._rows)

    def read(self, meta: Mapping[str, str], *, grows: bool) -> None:
        """grows: the text begins as the last one did."""
        text = meta.get(self._name, "null")
        new = _continued(text, self._end) if grows and self._end else None
        if new is None:
            self._first, self._rows = 0, json.loads(text) or []
        else:
            self._rows += new
        self._end = len(text) - 1 if text.endswith("]") else 0

    def taken(self, first: int, count: int) -> list[Any]:
        """So many rows, which with all before them are not kept any longer."""
        at = first - self._first
        rows = self._rows[at : at + count]
        del self._rows[: at + count]
        self._first = first + count
        return rows


def _continued(text: str, end: int) -> list[Any] | None:
    """The rows from there on; None: no row ends there."""
    match text[end : end + 1]:
        case "]" if len(text) == end + 1:
            return []
        case ",":
            try:
                return list(json.loads("[" + text[end + 1 :]))
            except ValueError:
                return None
    return None


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
