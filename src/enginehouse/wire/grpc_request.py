"""The header block of a gRPC request as bytes: fields, deadline and metadata, in HPACK (RFC 7541).

Nothing enters the peer's table: the first block of a connection sets its size to zero, which any limit of the peer's
allows, and from then on a block means the same wherever it stands. So what all calls of a method have in common is
written once, and an indexed field, which would save the wire a hundred bytes, is not looked up for each call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpack.hpack import encode_integer

_TIMEOUT_UNITS = ((1e-6, "u"), (1e-3, "m"), (1.0, "S"), (3600.0, "H"))
_NAME = re.compile(r"[0-9a-z_.\-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")

_FORGET_ALL = b"\x20"
"""Sets the size of the peer's table to zero. Has to come before all fields of a block."""
_PLAIN, _SECRET = 0x00, 0x10
"""How a field begins that is not indexed, and one that nobody on its way may index either."""
_STATIC = {(":method", "POST"): b"\x83", (":scheme", "http"): b"\x86", (":scheme", "https"): b"\x87"}
_STATIC_NAMES = {":authority": 1, ":path": 4, "content-type": 31, "user-agent": 58}
"""Places in the table that HPACK itself defines."""
_MOST_PATHS = 64
"""Methods that are remembered. There are about ten; a caller who makes paths up is not to fill the memory."""


class RequestBlocks:
    """Writes the header blocks of one connection. They have to be sent in the order in which they were made."""

    def __init__(self, *, scheme: str, authority: str, user_agent: str) -> None:
        self._scheme = scheme
        self._authority = authority
        self._user_agent = user_agent
        self._first = _FORGET_ALL
        self._common: dict[str, bytes] = {}

    def block(self, path: str, metadata: Sequence[tuple[str, str]] = (), timeout: float | None = None) -> bytes:
        """The block of one call. timeout: seconds."""
        block = self._common.get(path)
        if block is None:
            if len(self._common) >= _MOST_PATHS:
                self._common.clear()
            block = self._common[path] = self._for_all_calls(path)
        if self._first:
            block, self._first = self._first + block, b""
        if timeout is not None:
            block += _field("grpc-timeout", encode_timeout(timeout))
        for name, value in metadata:
            block += _field(name, value, _SECRET)
        return block

    def _for_all_calls(self, path: str) -> bytes:
        """Fields that every call of a method has, in the order that the protocol asks for."""
        fields = (
            (":method", "POST"),
            (":scheme", self._scheme),
            (":path", path),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", self._user_agent),
        )
        return b"".join(_STATIC.get(field) or _field(*field) for field in fields)


def encode_timeout(seconds: float) -> str:
    """`grpc-timeout`: at most eight digits, in the finest unit that holds them."""
    for unit, letter in _TIMEOUT_UNITS:
        count = max(1, round(seconds / unit))
        if count < 10**8:
            return f"{count}{letter}"
    return "99999999H"


def check_metadata(metadata: Sequence[tuple[str, str]]) -> None:
    """Raise ValueError for metadata that must not go on the wire: the caller's bug, so not a LinkError."""
    for name, value in metadata:
        if not _NAME.fullmatch(name) or name.startswith("grpc-") or name.endswith("-bin"):
            raise ValueError(f"metadata name {name!r} is not allowed")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"metadata {name!r} has a value that is not printable ASCII")


def _field(name: str, value: str, kind: int = _PLAIN) -> bytes:
    place = _STATIC_NAMES.get(name)
    if place is None:
        return bytes((kind,)) + _text(name) + _text(value)
    return _number(place, 4, kind) + _text(value)


def _text(text: str) -> bytes:
    """Not Huffman coded: that would cost more than it saves."""
    raw = text.encode()
    return _number(len(raw), 7, 0) + raw


def _number(number: int, bits: int, first: int) -> bytes:
    """first: what stands in the first byte before a number of `bits` bits."""
    if number < (1 << bits) - 1:
        return bytes((first | number,))
    coded = encode_integer(number, bits)
    coded[0] |= first
    return bytes(coded)
