"""What the header blocks of a gRPC answer say: go on, the end is well, or which failure this is.

Pure functions over decoded header fields, after the gRPC-over-HTTP/2 description.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote_to_bytes

from enginehouse.domain.link import GrpcStatus, LinkError, LinkErrorKind

Fields = Mapping[bytes, bytes]

_FROM_HTTP = {
    400: GrpcStatus.INTERNAL,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.UNIMPLEMENTED,
    429: GrpcStatus.UNAVAILABLE,
    502: GrpcStatus.UNAVAILABLE,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.UNAVAILABLE,
}


def collect(fields: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Fields by name; of a repeated one the last counts. Upper-case names break HTTP/2 and raise ValueError."""
    found: dict[bytes, bytes] = {}
    for name, value in fields:
        if name != name.lower():
            raise ValueError(f"header name {name!r} is not lower case")
        found[bytes(name)] = bytes(value)
    return found


def is_interim(fields: Fields) -> bool:
    """An informational (1xx) block, after which the true one comes."""
    return fields.get(b":status", b"").startswith(b"1")


def judge_opening(fields: Fields) -> LinkError | None:
    """A first block that is not the last: None when messages may follow."""
    if fields.get(b":status") != b"200":
        return _foreign(fields)
    kind = fields.get(b"content-type", b"")
    if not _is_grpc(kind):
        return _protocol(f"the answer's content type is {_show(kind)}, not application/grpc: no gRPC service here")
    return None


def judge_end(fields: Fields, *, only_block: bool) -> LinkError | None:
    """The last block, which is also the first in a trailers-only answer: None for status OK."""
    raw = fields.get(b"grpc-status")
    if raw is None:
        if only_block and judge_opening(fields) is not None:
            return judge_opening(fields)
        return LinkError(
            LinkErrorKind.TRUNCATED, "the answer ended without a gRPC status", may_have_been_processed=True
        )
    if not raw.isdigit() or len(raw) > 9:
        return _protocol(f"grpc-status is {_show(raw)}, not a number")
    if int(raw) == 0:
        return None
    try:
        status = GrpcStatus(int(raw))
    except ValueError:
        status = GrpcStatus.UNKNOWN
    text = decode_message(fields.get(b"grpc-message", b""))
    return _status(status, text or f"{status.name} with no message")


def decode_message(raw: bytes) -> str:
    """`grpc-message`: percent-coded UTF-8, read leniently because it is only for people."""
    return unquote_to_bytes(raw).decode("utf-8", "replace")


def _foreign(fields: Fields) -> LinkError:
    """An answer whose HTTP status is not 200; a gRPC status beside it has the last word."""
    if b"grpc-status" in fields and fields[b"grpc-status"] != b"0":
        error = judge_end(fields, only_block=False)
        if error is not None:
            return error
    raw = fields.get(b":status", b"")
    if not re.fullmatch(rb"[2-9]\d\d", raw):
        return _protocol(f"the answer's HTTP status is {_show(raw)}")
    status = _FROM_HTTP.get(int(raw), GrpcStatus.UNKNOWN)
    return _status(status, f"HTTP status {raw.decode()} instead of a gRPC answer")


def _is_grpc(content_type: bytes) -> bool:
    return re.match(rb"application/grpc($|[+;])", content_type) is not None


def _show(raw: bytes) -> str:
    return repr(raw[:80].decode("ascii", "backslashreplace")) if raw else "missing"


def _protocol(text: str) -> LinkError:
    return LinkError(LinkErrorKind.PROTOCOL, text, may_have_been_processed=True)


def _status(status: GrpcStatus, text: str) -> LinkError:
    return LinkError(LinkErrorKind.STATUS, text, may_have_been_processed=True, status=status)
