"""Bodies read by declaration: what is wrong is said in words, with its place."""

import json
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from enginehouse.core.api.body import Body, convert, renamed
from enginehouse.core.openai.bounds import MAX_FIELD_BYTES, MAX_KEYS, MAX_VALUES
from enginehouse.domain.errors import ContextLengthExceeded, InvalidRequest


class Left(Struct, tag="left", tag_field="type", forbid_unknown_fields=True):
    x: int


class Right(Struct, tag="right", tag_field="type", forbid_unknown_fields=True):
    y: list[Annotated[str, Meta(min_length=1)]]
    x: str | None = None


class Fields(Struct, kw_only=True):
    name: str
    both: str | list[Left | Right] | None = None
    count: Annotated[int, Meta(ge=1, le=9)] | None = None
    part: Annotated[float, Meta(ge=0)] | None = None
    word: Literal["a", "b"] | Left | None = None
    on: bool | None = None
    counts: dict[str, Annotated[int, Meta(ge=1)]] | None = None
    free: dict[str, Any] | None = None
    few: Annotated[list[int], Meta(min_length=1, max_length=2)] | None = None


BODY = Body(
    Fields,
    harmless={"old": (False, 1), "never": ()},
    large=frozenset({"both"}),
    ignored=frozenset({"note"}),
    reasons={"never": "it is dangerous"},
)


def read(**fields: Any) -> Fields:
    return BODY.read(json.dumps({"name": "n", **fields}).encode())


def refusal(body: bytes) -> tuple[str, str | None, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        BODY.read(body)
    return caught.value.message, caught.value.param, caught.value.code


def test_what_is_right_is_taken() -> None:
    got = read(
        both=[{"type": "left", "x": 1}, {"type": "right", "y": ["z"]}],
        count=9,
        word="b",
        counts={"k": 1},
        note={"anything": [1]},
        old=False,
        never=None,
        on=None,
    )
    assert got.both == [Left(1), Right(["z"])]
    assert (got.count, got.word, got.counts, got.on) == (9, "b", {"k": 1}, None)


@pytest.mark.parametrize(
    ("fields", "message", "param", "code"),
    [
        ({"name": 3}, "'name' is 3; it must be a string", "name", None),
        ({"name": None}, "'name' is missing; it must be a string", "name", None),
        ({"both": 1}, "'both' is 1; it must be a string or a list", "both", None),
        ({"both": [1]}, "'both[0]' is 1; it must be an object", "both[0]", None),
        (
            {"both": [{"type": "up"}]},
            "'both[0].type' is 'up'; it must be one of 'left', 'right'",
            "both[0].type",
            "unsupported_value",
        ),
        ({"both": [{}]}, "'both[0].type' is missing; it must be one of 'left', 'right'", "both[0].type", None),
        ({"both": [{"type": 1}]}, "'both[0].type' is 1; it must be one of 'left', 'right'", "both[0].type", None),
        (
            {"both": [{"type": "left", "x": "secret"}]},
            "'both[0].x' is a string of 6 characters; it must be a whole number",
            "both[0].x",
            None,
        ),
        (
            {"both": [{"type": "left", "x": 1, "y": 2}]},
            "'both[0].y' is not a known parameter",
            "both[0].y",
            "unknown_parameter",
        ),
        ({"both": [{"type": "left"}]}, "'both[0].x' is missing; it must be a whole number", "both[0].x", None),
        (
            {"both": [{"type": "right", "y": ["a", ""]}]},
            "'both[0].y[1]' is an empty string; it must be a string of at least 1 characters",
            "both[0].y[1]",
            None,
        ),
        ({"count": 0}, "'count' is 0; it must be a whole number from 1 to 9", "count", None),
        ({"count": 1.5}, "'count' is 1.5; it must be a whole number from 1 to 9", "count", None),
        ({"part": -1}, "'part' is -1; it must be a number from 0 on", "part", None),
        ({"word": "c"}, "'word' is 'c'; it must be one of 'a', 'b' or an object", "word", "unsupported_value"),
        ({"word": {"type": "up"}}, "'word.type' is 'up'; it must be 'left'", "word.type", "unsupported_value"),
        ({"on": 1}, "'on' is 1; it must be true or false", "on", None),
        (
            {"counts": {"secret": 0}},
            "'counts' has a value that is none; each must be a whole number from 1 on",
            "counts",
            None,
        ),
        ({"few": []}, "'few' is a list of 0; it must be a list of 1 to 2 items", "few", None),
        ({"old": True}, "'old' is not supported; leave it out or give false, 1", "old", "unsupported_parameter"),
        ({"old": 1.0}, "'old' is not supported; leave it out or give false, 1", "old", "unsupported_parameter"),
        (
            {"old": " " * 20_000},
            "'old' is not supported; leave it out or give false, 1",
            "old",
            "unsupported_parameter",
        ),
        (
            {"never": 0},
            "'never' is not supported: it is dangerous; leave it out",
            "never",
            "unsupported_parameter",
        ),
        ({"new\n": 1}, "'new\\n' is not a known parameter", "new\\n", "unknown_parameter"),
    ],
)
def test_o8_what_is_wrong_is_said_with_its_place(
    fields: dict[str, Any], message: str, param: str, code: str | None
) -> None:
    assert refusal(json.dumps({"name": "n", **fields}).encode()) == (message, param, code)


def test_null_is_the_same_as_leaving_out_wherever_it_stands() -> None:
    got = read(
        both=[{"type": "left", "x": 1, "new": None}, {"type": "right", "y": ["z"], "new": None, "x": None}],
        word={"type": "left", "x": 2, "new": None},
    )
    assert got.both == [Left(1), Right(["z"])]
    assert got.word == Left(2)
    assert read(free={"a": None, "b": [{"c": None}]}, both=[{"type": "left", "x": 1, "new": None}]).free == {
        "a": None,
        "b": [{"c": None}],
    }
    assert convert({"type": "left", "x": 3, "new": None}, Left, "items[0]") == Left(3)
    message, param, _ = refusal(
        b'{"name": "n", "both": [{"type": "left", "x": 1, "a": null}, {"type": "left", "x": 1, "a": 1}]}'
    )
    assert (message, param) == ("'both[1].a' is not a known parameter", "both[1].a")
    message, param, _ = refusal(b'{"name": "n", "both": [{"type": "left", "x": null}]}')
    assert (message, param) == ("'both[0].x' is null; it must be a whole number", "both[0].x")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b"[]",
        b"3",
        b'"x"',
        b"{",
        b'{"name": "\xff"}',
        b'{"name": 1e999}',
        b'{"name":' + b"[" * 9000,
        b"nul",
    ],
)
def test_o8_what_is_no_json_object(body: bytes) -> None:
    message, param, code = refusal(body)
    assert message.startswith("the body is")
    assert (param, code) == (None, "invalid_json")


def test_what_is_too_much() -> None:
    assert refusal(json.dumps({"name": "x" * MAX_FIELD_BYTES}).encode())[1:] == ("name", "too_large")
    assert refusal(json.dumps({f"k{at}": None for at in range(MAX_KEYS + 1)}).encode())[0].startswith("the body has")
    many = b'{"name":"n","both":[' + b",".join([b"[]"] * (MAX_VALUES + 1)) + b"]}"
    assert refusal(many)[1:] == ("both", "too_large")
    texts = b'{"name":"n","both":[' + b",".join([b'"ab"'] * (2 * MAX_VALUES)) + b"]}"
    assert "200000" in refusal(texts)[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "x", "y"]), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*Fields.__struct_fields__, "old", "other"]), JSON))
def test_whatever_it_is_it_is_read_or_refused_by_name(fields: dict[str, Any]) -> None:
    error: InvalidRequest | None = None
    try:
        read(**fields)
    except InvalidRequest as caught:
        error = caught
    if error is not None:
        assert "it must be " in error.message or "each must be " in error.message or error.code is not None
        assert not error.message.endswith("must be ")


def test_an_error_keeps_its_kind_under_another_name() -> None:
    error = renamed(ContextLengthExceeded("'a.b' is long", param="a.b"), ("a.b", "c"))
    assert (type(error), error.message, error.param, error.code) == (
        ContextLengthExceeded,
        "'c' is long",
        "c",
        "context_length_exceeded",
    )
