"""Ids to text and back, for the front that speaks text and for what an engine is told to say; loaded only then."""

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
    """Ids of a text; special tokens only as they are written in it."""
    return list(_tokenizer(folder).encode(text, add_special_tokens=False).ids)


def decode(folder: Path, ids: Sequence[int]) -> str:
    """The text of ids, special tokens too."""
    return str(_tokenizer(folder).decode(list(ids), skip_special_tokens=False))


def decoder(folder: Path) -> Callable[[Sequence[int]], str]:
    """A function that is fed an answer's ids piece by piece and returns the text that is certain."""
    tokenizer, stream = _tokenizer(folder), DecodeStream(skip_special_tokens=True)

    def feed(ids: Sequence[int]) -> str:
        return "".join(stream.step(tokenizer, number) or "" for number in ids)

    return feed
