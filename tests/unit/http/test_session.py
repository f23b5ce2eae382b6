"""Which session a request belongs to: taken from where the operator says, bounded, and never kept as it came."""

from __future__ import annotations

from typing import Any

import pytest

from enginehouse.core.openai.parse import parse_chat, parse_completion
from enginehouse.core.openai.requests import Request
from enginehouse.domain.errors import InvalidRequest
from enginehouse.http.session import MAX_KEY, session_source


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"headers": list(headers)}


def request(more: str = "") -> Request:
    return parse_completion(b'{"model": "m", "prompt": "x"%s}' % more.encode())


KEYS: list[Any] = [
    ("header", [(b"x-chat", b"KEY")], ""),
    ("user", [], ', "user": "KEY"'),
    ("prompt-cache-key", [], ', "prompt_cache_key": "KEY"'),
]


@pytest.mark.parametrize(("affinity", "headers", "more"), KEYS)
def test_the_same_key_is_the_same_session_and_is_not_kept(affinity: Any, headers: Any, more: str) -> None:
    session_of = session_source(affinity, "X-Chat")
    first = session_of(scope(*headers), request(more))
    assert first is not None
    assert "KEY" not in first
    assert session_of(scope(*headers), request(more)) == first
    changed = [(name, b"other") for name, _ in headers]
    assert session_of(scope(*changed), request(more.replace("KEY", "other"))) != first
    assert session_of(scope(), request()) is None
    assert session_of(scope((b"x-chat", b"")), request(more.replace("KEY", ""))) is None, "an empty key is none"


@pytest.mark.parametrize(("affinity", "headers", "more"), KEYS)
def test_only_the_one_that_is_set_counts(affinity: Any, headers: Any, more: str) -> None:
    for other in ("off", "header", "user", "prompt-cache-key"):
        found = session_source(other, "x-chat")(scope(*headers), request(more))  # type: ignore[arg-type]
        assert (found is not None) is (other == affinity)


@pytest.mark.parametrize(("affinity", "headers", "more"), KEYS)
def test_a_key_that_is_far_too_long_is_refused_and_not_repeated(affinity: Any, headers: Any, more: str) -> None:
    session_of = session_source(affinity, "x-chat")
    for size, right in ((MAX_KEY, True), (MAX_KEY + 1, False)):
        key = "k" * size
        given = scope(*[(name, key.encode()) for name, _ in headers]), request(more.replace("KEY", key))
        if right:
            assert len(session_of(*given) or "") == 32
        else:
            with pytest.raises(InvalidRequest, match=f"has {size} bytes") as caught:
                session_of(*given)
            assert "kkk" not in caught.value.message


def test_chats_have_sessions_too() -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "user": "somebody"}'
    assert session_source("user", "")(scope(), parse_chat(body))
