"""Where a request ends, as its headers say it. Names are in lower case, as uvicorn gives them."""

from __future__ import annotations

from enginehouse.http.exchange import Headers

_FRAMING = (b"content-length", b"transfer-encoding")


class BadFraming(Exception):
    """Headers that leave it open where the request ends, or for whom it is. The parser passes it on as its own."""


def check(headers: Headers, version: str) -> None:
    """Raise BadFraming for what proxies and servers are known to understand differently."""
    names = [name for name, _ in headers]
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if names.count(b"host") > 1 or (version == "1.1" and b"host" not in names):
        raise BadFraming
    if codings and (codings != [b"chunked"] or version == "1.0"):
        raise BadFraming


def has_body(headers: Headers) -> bool:
    """Whether anything may follow the head."""
    return any(name in _FRAMING and value.strip() != b"0" for name, value in headers)


def same_body(headers: Headers) -> bytes:
    """The head of a plain request whose body ends where that of these headers does."""
    framing = b"".join(b"%b: %b\r\n" % pair for pair in headers if pair[0] in _FRAMING)
    return b"POST / HTTP/1.1\r\n%b\r\n" % framing
