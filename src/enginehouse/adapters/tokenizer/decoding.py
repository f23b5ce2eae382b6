"""Ids to text for one model: by table where one of ours is exact, else by the library; and what each token is alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import structlog
from tokenizers import Tokenizer as LibraryTokenizer

from enginehouse.adapters.tokenizer.content import Content
from enginehouse.adapters.tokenizer.decoders import ByteFallbackDecoder, ByteLevelDecoder, LibraryDecoder
from enginehouse.adapters.tokenizer.tables import ByteLevelTable, Table, piece_of, table_for
from enginehouse.ports import TextDecoder

log = structlog.get_logger("enginehouse.tokenizer")


class Decoding:
    """Made once for a model. Keeps the library only where there is no table."""

    def __init__(self, content: Content, library: LibraryTokenizer) -> None:
        self._special = {token: number for number in sorted(content.special) if (token := content.tokens[number])}
        self._all: Table | None = None
        """Special tokens shown."""
        self._tables: dict[frozenset[int], Table] = {}
        """By the ids that are skipped."""
        self._skipped: dict[frozenset[str], frozenset[int]] = {frozenset(): content.special}
        """By the tokens that are shown; there are as many as there are formats in use: a handful."""
        self._alone: _Alone | None = None
        table = table_for(content)
        if table is not None:
            without = table.without(content.special)
            if _agrees(table, library, content, False) and _agrees(without, library, content, True):
                self._all = table
                self._tables = {frozenset(): table, content.special: without}
        if self._all is None:
            log.info("text is decoded by the library", decoder=_kind(content.decoder))
            self._alone = _Alone(content, library)

    def decoder(self, skip_special_tokens: bool, shown: frozenset[str], continues: bool) -> TextDecoder:
        skipped = self._hidden(shown) if skip_special_tokens else frozenset[int]()
        if self._alone is not None:
            return LibraryDecoder(self._alone.library, skipped, self._alone.before if continues else None)
        return _decoder(self._table(skipped), continues=continues)

    def token_bytes(self, token_id: int) -> bytes:
        if self._alone is not None:
            return self._alone.token_bytes(token_id)
        assert self._all is not None
        pieces = self._all.pieces
        piece = pieces[token_id] if token_id < len(pieces) else None
        if isinstance(piece, str):
            return piece.encode()
        return bytes([piece]) if isinstance(piece, int) else piece or b""

    def _hidden(self, shown: frozenset[str]) -> frozenset[int]:
        found = self._skipped.get(shown)
        if found is None:
            found = frozenset(number for token, number in self._special.items() if token not in shown)
            self._skipped[shown] = found
        return found

    def _table(self, skipped: frozenset[int]) -> Table:
        found = self._tables.get(skipped)
        if found is None:
            assert self._all is not None
            found = self._tables[skipped] = self._all.without(skipped)
        return found


class _Alone:
    """Single tokens of a model that the library decodes."""

    def __init__(self, content: Content, library: LibraryTokenizer) -> None:
        self.library = library
        self._content = content
        self.before: tuple[int, str] | None = None
        """A word to stand before the token: what a decoder does at the beginning of a text is not the token's."""
        for number, token in enumerate(content.tokens):
            if token is not None and number not in content.special and token.isalpha() and token.isascii():
                self.before = number, library.decode([number])
                break

    def token_bytes(self, token_id: int) -> bytes:
        tokens = self._content.tokens
        token = tokens[token_id] if token_id < len(tokens) else None
        if token is None:
            return b""
        if token_id in self._content.special:
            return token.encode()
        if (data := piece_of(self._content.decoder, token)) is not None:
            return data
        if self.before is not None:
            number, word = self.before
            text: str = self.library.decode([number, token_id], skip_special_tokens=False)
            if text.startswith(word):
                return text[len(word) :].encode()
        alone: str = self.library.decode([token_id], skip_special_tokens=False)
        return alone.encode()


def _decoder(table: Table, *, continues: bool = False) -> ByteLevelDecoder | ByteFallbackDecoder:
    if isinstance(table, ByteLevelTable):
        return ByteLevelDecoder(table)
    return ByteFallbackDecoder(table, continues=continues)


def _agrees(table: Table, library: LibraryTokenizer, content: Content, skip: bool) -> bool:
    """Decoding by table gives the library's text, for id sequences of every kind."""
    rng = random.Random(20261130)
    size = len(content.tokens)
    special = sorted(content.special)
    short = [number for number, token in enumerate(content.tokens) if token is not None and len(token) <= 6][:2000]
    for turn in range(96):
        pool: Sequence[int] = (range(size), short or range(size), range(min(size, 600)))[turn % 3]
        ids = [rng.choice(special) if special and rng.random() < 0.05 else rng.choice(pool) for _ in range(turn)]
        decoder = _decoder(table)
        if "".join([decoder.push((number,)) for number in ids]) + decoder.flush() != library.decode(
            ids, skip_special_tokens=skip
        ):
            return False
    return True


def _kind(decoder: Any) -> str:
    return str(decoder.get("type")) if isinstance(decoder, dict) else "none"
