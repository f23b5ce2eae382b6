"""Which requests belong together, as the client says it: routing may send them to the engine that had the others."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from enginehouse.core.openai.requests import Request
from enginehouse.core.routing.settings import AffinityKey
from enginehouse.domain.errors import InvalidRequest
from enginehouse.http.exchange import Scope

MAX_KEY: Final = 512
"""Bytes of a key. Those that clients make are ids of some kind."""

SessionOf = Callable[[Scope, Request], str | None]
"""The session that a request belongs to; None: to none. Raises InvalidRequest for a key that is no key."""


def session_source(affinity: AffinityKey, header: str) -> SessionOf:
    """Where the operator wants the key to be taken from; header: the name of the one that may hold it."""
    if affinity == "header":
        name = header.lower()
        return lambda scope, request: _session(f"the header {name}", None, _header(scope, name.encode()))
    if affinity == "user":
        return lambda scope, request: _session("'user'", "user", _bytes(request.user))
    if affinity == "prompt-cache-key":
        key = "prompt_cache_key"
        return lambda scope, request: _session(f"'{key}'", key, _bytes(request.prompt_cache_key))
    return no_session


def no_session(scope: Scope, request: Request) -> str | None:
    """Every request stands alone."""
    return None


def _session(what: str, param: str | None, key: bytes | None) -> str | None:
    """A digest: the key itself may be somebody's name, and goes no further than here."""
    if not key:
        return None
    if len(key) > MAX_KEY:
        raise InvalidRequest(f"{what} has {len(key)} bytes; a session's key may have at most {MAX_KEY}", param=param)
    return blake2b(key, digest_size=16).hexdigest()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((bytes(value) for given, value in scope["headers"] if given == name), None)
