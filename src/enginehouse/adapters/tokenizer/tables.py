"""The text or the bytes of each id, worked out once for a model, and which of the known decoders its file describes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from enginehouse.adapters.tokenizer.content import Content

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_characters() -> dict[str, int]:
    """The character that byte-level vocabularies write for each byte: itself if it prints, else one from U+0100 on."""
    printing = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + at): byte for at, byte in enumerate(others)}


class ByteLevelTable:
    """Each id's text, or its bytes where they are no text by themselves. Unknown and skipped ids give nothing."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: list[str | bytes]) -> None:
        self.pieces = pieces
        """By id; ids beyond its end are unknown."""

    def without(self, skipped: Iterable[int]) -> ByteLevelTable:
        """The same, with these ids giving nothing; the texts are shared."""
        pieces = self.pieces.copy()
        for number in skipped:
            pieces[number] = ""
        return ByteLevelTable(pieces)


class ByteFallbackTable:
    """Each id's text, or its byte. None: unknown or skipped, which does not end a run of bytes."""

    __slots__ = ("pieces", "strip")

    def __init__(self, pieces: list[str | int | None], strip: int) -> None:
        self.pieces = pieces
        """By id; ids beyond its end are unknown."""
        self.strip = strip
        """Spaces that are dropped from the beginning of the text, if they are there."""

    def without(self, skipped: Iterable[int]) -> ByteFallbackTable:
        """The same, with these ids giving nothing; the texts are shared."""
        pieces = self.pieces.copy()
        for number in skipped:
            pieces[number] = None
        return ByteFallbackTable(pieces, self.strip)


Table = ByteLevelTable | ByteFallbackTable


def table_for(content: Content) -> Table | None:
    """The table, special tokens shown, for a model whose decoder is one of the two known families; else None."""
    steps = _steps(content.decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        characters = _byte_characters()
        return ByteLevelTable([_bytes_or_text(token, characters) for token in content.tokens])
    replacements: list[tuple[str, str]] = []
    while kinds and kinds[0] == "Replace":
        old = steps[0].get("pattern", {}).get("String")
        if not isinstance(old, str) or not isinstance(steps[0].get("content"), str):
            return None
        replacements.append((old, steps[0]["content"]))
        steps, kinds = steps[1:], kinds[1:]
    strip = 0
    if kinds == ["ByteFallback", "Fuse", "Strip"]:
        end = steps[2]
        if end.get("content") != " " or end.get("stop") != 0 or not isinstance(end.get("start"), int):
            return None
        strip = end["start"]
    elif kinds != ["ByteFallback", "Fuse"]:
        return None
    return ByteFallbackTable([_text_or_byte(token, replacements) for token in content.tokens], strip)


def piece_of(decoder: Any, token: str) -> bytes | None:
    """The bytes of a token that a decoder of any shape reads as bytes; None: it is text, or stands for something."""
    kinds = {step.get("type") for step in _steps(decoder)}
    if "ByteLevel" in kinds:
        piece = _bytes_or_text(token, _byte_characters())
        return piece if isinstance(piece, bytes) else piece.encode()
    if "ByteFallback" in kinds and (byte := _BYTE_TOKEN.fullmatch(token)):
        return bytes([int(byte[1], 16)])
    return None


def _bytes_or_text(token: str | None, characters: dict[str, int]) -> str | bytes:
    if token is None:
        return ""
    try:
        data = bytes([characters[character] for character in token])
    except KeyError:  # an added token that is written as it is
        return token
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _text_or_byte(token: str | None, replacements: list[tuple[str, str]]) -> str | int | None:
    if token is None:
        return None
    for old, new in replacements:
        token = token.replace(old, new)
    byte = _BYTE_TOKEN.fullmatch(token)
    return int(byte[1], 16) if byte else token


def _steps(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder.get("decoders", []) for step in _steps(inner)]
    return [decoder]
