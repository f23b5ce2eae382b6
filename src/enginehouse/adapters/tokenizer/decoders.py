"""Ids to text for one answer, piece by piece: what has come out so far is never taken back, and the whole is exact.

Exact means: the joined pieces equal what the `tokenizers` library makes of all the ids at once. Two families cover
nearly every model and are decoded by table here; the rest goes through the library's own stream.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.decoders import DecodeStream

from enginehouse.adapters.tokenizer.tables import ByteFallbackTable, ByteLevelTable


class ByteLevelDecoder:
    """Tokens are bytes, joined and read as UTF-8; what is not UTF-8 becomes U+FFFD."""

    __slots__ = ("_open", "_pieces")

    def __init__(self, table: ByteLevelTable) -> None:
        self._pieces = table.pieces
        self._open = b""
        """The beginning of a character that is not complete: at most three bytes."""

    def push(self, token_ids: Sequence[int]) -> str:
        pieces = self._pieces
        if not self._open and len(token_ids) == 1 and token_ids[0] < len(pieces):
            piece = pieces[token_ids[0]]
            if type(piece) is str:
                return piece
        parts = [self._open]
        for number in token_ids:
            if number < len(pieces):
                piece = pieces[number]
                parts.append(piece if isinstance(piece, bytes) else piece.encode())
        data = b"".join(parts)
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._open = data[used:]
        return text

    def flush(self) -> str:
        text = self._open.decode(errors="replace")
        self._open = b""
        return text


class ByteFallbackDecoder:
    """Tokens are text, or one byte each where the vocabulary has no text for a character.

    A run of byte tokens is text only if all of it is UTF-8: else each of its bytes becomes U+FFFD. So a run is held
    until it ends.
    """

    __slots__ = ("_pieces", "_run", "_strip")

    def __init__(self, table: ByteFallbackTable, *, continues: bool = False) -> None:
        """continues: the beginning is that of no text."""
        self._pieces = table.pieces
        self._run = bytearray()
        self._strip = 0 if continues else table.strip
        """How many leading spaces may still be dropped."""

    def push(self, token_ids: Sequence[int]) -> str:
        pieces = self._pieces
        out = ""
        for number in token_ids:
            piece = pieces[number] if number < len(pieces) else None
            if type(piece) is int:
                self._run.append(piece)
            elif type(piece) is str:
                out += self._end_run() + piece
        return self._stripped(out)

    def flush(self) -> str:
        return self._stripped(self._end_run())

    def _end_run(self) -> str:
        if not self._run:
            return ""
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            text = "\ufffd" * len(self._run)
        self._run.clear()
        return text

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
            else:
                self._strip -= 1
                text = text[1:]
        return text


class LibraryDecoder:
    """Any other decoder, through the library's stream. Keeps the ids of the answer, to know at its end what is held."""

    __slots__ = ("_ids", "_out", "_skipped", "_stream", "_tokenizer")

    def __init__(
        self, tokenizer: LibraryTokenizer, skipped: frozenset[int], before: tuple[int, str] | None = None
    ) -> None:
        """before: a token and its text to stand in front, where the beginning is that of no text."""
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._stream: Any = DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []
        self._out = ""
        if before is not None:
            number, self._out = before
            self._ids.append(number)
            self._stream.step(tokenizer, number)

    def push(self, token_ids: Sequence[int]) -> str:
        if self._skipped:
            token_ids = [token for token in token_ids if token not in self._skipped]
        self._ids.extend(token_ids)
        piece = "".join([self._stream.step(self._tokenizer, token) or "" for token in token_ids])
        self._out += piece
        return piece

    def flush(self) -> str:
        whole: str = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        return whole[len(self._out) :] if whole.startswith(self._out) else ""
