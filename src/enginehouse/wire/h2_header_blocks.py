"""Header blocks put together from HEADERS and CONTINUATION, and decoded.

Holds the decoder's state, so every block must pass here, also those of calls that have ended.
"""

from __future__ import annotations

from hpack import Decoder, HPACKError

from enginehouse.wire.h2_frames import CONTINUATION, END_HEADERS, END_STREAM, HEAD_SIZE, ErrorCode, Violation

_LIMIT = 256 * 1024
"""Bytes of one block, frame headers counted, so that endless or empty CONTINUATIONs end."""
_MOST_KNOWN = 32
_LONGEST_KNOWN = 256
"""Blocks that are remembered, and bytes of one. Servers begin and end nearly all answers in the same few words."""


class HeaderBlocks:
    """The block that is being received, if any."""

    __slots__ = ("_block", "_cost", "_decoder", "_known", "_last", "_stream_id")

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._known: dict[bytes, list[tuple[bytes, bytes]]] = {}
        """What blocks say that leave the decoder's table as it is, for as long as it is what it is now."""
        self._stream_id = 0
        self._last = False
        self._block = bytearray()
        self._cost = 0

    @property
    def pending(self) -> bool:
        """A block has begun and is not whole: only its CONTINUATION may come."""
        return self._stream_id != 0

    @property
    def largest_list(self) -> int:
        """Bytes of decoded fields that are accepted in one block."""
        return self._decoder.max_header_list_size

    def check(self, kind: int, stream_id: int) -> None:
        """Nothing may come between the frames of one block, and no block may begin in its middle."""
        if self._stream_id:
            if kind != CONTINUATION or stream_id != self._stream_id:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "another frame inside a header block")
        elif kind == CONTINUATION:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "CONTINUATION with nothing to continue")

    def begin(self, stream_id: int, flags: int) -> None:
        """HEADERS came; its content goes to `add`."""
        self._stream_id = stream_id
        self._last = bool(flags & END_STREAM)

    def add(self, flags: int, part: bytes) -> tuple[int, bool, list[tuple[bytes, bytes]]] | None:
        """Take a part of the block; when it is whole: stream, whether the stream ends with it, and the fields."""
        self._block += part
        self._cost += HEAD_SIZE + len(part)
        if self._cost > _LIMIT:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if not flags & END_HEADERS:
            return None
        whole = self._stream_id, self._last, self._decoded(bytes(self._block))
        self._stream_id = 0
        self._block = bytearray()
        self._cost = 0
        return whole

    def _decoded(self, block: bytes) -> list[tuple[bytes, bytes]]:
        known = self._known.get(block)
        if known is not None:
            return known
        before = self._table()
        try:
            decoded = self._decoder.decode(block, raw=True)
        except (HPACKError, IndexError, ValueError) as error:
            raise Violation(ErrorCode.COMPRESSION_ERROR, f"a header block cannot be decoded: {error}") from error
        fields = [(bytes(name), bytes(value)) for name, value in decoded]
        if self._table() != before or len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        elif len(block) <= _LONGEST_KNOWN:
            self._known[block] = fields
        return fields

    def _table(self) -> tuple[object, ...]:
        """All that the meaning of the next block depends on."""
        table = self._decoder.header_table
        return table.maxsize, *table.dynamic_entries
