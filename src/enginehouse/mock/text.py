"""Ids to text and back, for the one front that speaks text; loaded only when a request asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


@cache
def _tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def encode(folder: Path, text: str) -> list[int]:
    """Ids of a text, without special tokens of the tokenizer's own."""
    return list(_tokenizer(folder).encode(text, add_special_tokens=False).ids)


def decoder(folder: Path) -> Callable[[Sequence[int]], str]:
    """A function that is fed an answer's ids piece by piece and returns the text that is certain."""
    tokenizer, stream = _tokenizer(folder), DecodeStream(skip_special_tokens=True)

    def feed(ids: Sequence[int]) -> str:
        return "".join(stream.step(tokenizer, number) or "" for number in ids)

    return feed
