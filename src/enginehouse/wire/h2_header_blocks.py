"""Header blocks put together from HEADERS and CONTINUATION, and decoded.

Holds the decoder's state, so every block must pass here, also those of calls that have ended.
"""

from __future__ import annotations

from hpack import Decoder, HPACKError

from enginehouse.wire.h2_frames import CONTINUATION, END_HEADERS, END_STREAM, HEAD_SIZE, ErrorCode, Violation

_LIMIT = 256 * 1024
"""Bytes of one block, frame headers counted, so that endless or empty CONTINUATIONs end."""


class HeaderBlocks:
    """The block that is being received, if any."""

    __slots__ = ("_block", "_cost", "_decoder", "_last", "_stream_id")

    def __init__(self) -> None:
        self._decoder = Decoder()
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
        try:
            decoded = self._decoder.decode(bytes(self._block), raw=True)
        except (HPACKError, IndexError, ValueError) as error:
            raise Violation(ErrorCode.COMPRESSION_ERROR, f"a header block cannot be decoded: {error}") from error
        whole = self._stream_id, self._last, [(bytes(name), bytes(value)) for name, value in decoded]
        self._stream_id = 0
        self._block = bytearray()
        self._cost = 0
        return whole
