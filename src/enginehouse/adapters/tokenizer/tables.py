"""The text or the bytes of each id, worked out once for a model, and which of the known decoders its file describes."""

from __future__ import annotations

import re
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

    __slots__ = ("_pieces",)

    def __init__(self, content: Content, *, skip_special_tokens: bool) -> None:
        characters = _byte_characters()
        self._pieces: list[str | bytes] = []
        for number, token in enumerate(content.tokens):
            if token is None or (skip_special_tokens and number in content.special):
                self._pieces.append("")
                continue
            try:
                data = bytes([characters[character] for character in token])
            except KeyError:  # an added token that is written as it is
                data = token.encode()
            try:
                self._pieces.append(data.decode())
            except UnicodeDecodeError:
                self._pieces.append(data)

    def get(self, number: int) -> str | bytes:
        """Text or bytes of an id."""
        try:
            return self._pieces[number]
        except IndexError:
            return ""


class ByteFallbackTable:
    """Each id's text, or its byte. None: unknown or skipped, which does not end a run of bytes."""

    __slots__ = ("_pieces", "strip")

    def __init__(
        self, content: Content, replacements: list[tuple[str, str]], strip: int, *, skip_special_tokens: bool
    ) -> None:
        self.strip = strip
        """Spaces that are dropped from the beginning of the text, if they are there."""
        self._pieces: list[str | int | None] = []
        for number, token in enumerate(content.tokens):
            if token is None or (skip_special_tokens and number in content.special):
                self._pieces.append(None)
                continue
            for old, new in replacements:
                token = token.replace(old, new)
            byte = _BYTE_TOKEN.fullmatch(token)
            self._pieces.append(int(byte[1], 16) if byte else token)

    def get(self, number: int) -> str | int | None:
        """Text or byte of an id."""
        try:
            return self._pieces[number]
        except IndexError:
            return None


Table = ByteLevelTable | ByteFallbackTable


def table_for(content: Content, *, skip_special_tokens: bool) -> Table | None:
    """The table for a model whose decoder is one of the two known families; None for any other."""
    steps = _steps(content.decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevelTable(content, skip_special_tokens=skip_special_tokens)
    replacements: list[tuple[str, str]] = []
    while kinds and kinds[0] == "Replace":
        old = steps[0].get("pattern", {}).get("String")
        if not isinstance(old, str) or not isinstance(steps[0].get("content"), str):
            return None
        replacements.append((old, steps[0]["content"]))
        steps, kinds = steps[1:], kinds[1:]
    if kinds == ["ByteFallback", "Fuse"]:
        return ByteFallbackTable(content, replacements, 0, skip_special_tokens=skip_special_tokens)
    if kinds == ["ByteFallback", "Fuse", "Strip"]:
        strip = steps[2]
        if strip.get("content") == " " and strip.get("stop") == 0 and isinstance(strip.get("start"), int):
            return ByteFallbackTable(content, replacements, strip["start"], skip_special_tokens=skip_special_tokens)
    return None


def _steps(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder.get("decoders", []) for step in _steps(inner)]
    return [decoder]
