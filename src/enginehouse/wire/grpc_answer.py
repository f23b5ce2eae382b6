"""What the header blocks of a gRPC answer say: go on, the end is well, or which failure this is.

Pure functions over decoded header fields, after the gRPC-over-HTTP/2 description. Also writes what goes out: the
request's fields and its deadline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote_to_bytes

from hpack import HeaderTuple

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
_TIMEOUT_UNITS = ((1e-6, "u"), (1e-3, "m"), (1.0, "S"), (3600.0, "H"))
_NAME = re.compile(r"[0-9a-z_.\-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")


def request_fields(*, scheme: str, authority: str, path: str, user_agent: str) -> list[HeaderTuple]:
    """Header fields that every call has, in the order that the protocol asks for."""
    fields = (
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", user_agent),
    )
    return [HeaderTuple(name, value) for name, value in fields]


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
