import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.output.json_scan import JsonScan

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def scan(pieces: list[str], *, ended: bool = True) -> tuple[str, bool]:
    """(what was taken as the value, whether it is whole)."""
    found, taken = JsonScan(), ""
    for piece in pieces:
        end = found.feed(piece, 0, ended=False)
        taken += piece if end is None else piece[:end]
        if end is not None:
            return taken, found.whole
    if ended:
        found.feed("", 0, ended=True)
    return taken, found.whole


@given(VALUES, st.sampled_from(["", "}", " x", "</tool_call>", "\n{}", ","]), st.booleans(), st.integers(1, 7))
def test_a_value_ends_where_it_ends(value: object, rest: str, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    whole = text + rest
    assert scan([whole[at : at + size] for at in range(0, len(whole), size)]) == (text, True)


@pytest.mark.parametrize(
    ("text", "taken", "whole"),
    [
        ('{"a": "}"', '{"a": "}"', False),
        ('{"a": "\\"}"} x', '{"a": "\\"}"}', True),
        ('"\\\\" x', '"\\\\"', True),
        ("[1, 2", "[1, 2", False),
        ("12", "12", True),
        ("-1.5e+3,", "-1.5e+3", True),
        ("", "", False),
        ("<", "", False),
        # What is in no JSON outside of strings ends it: a model that forgot a bracket shall not swallow the rest.
        ('{"a": 1</tool_call>', '{"a": 1', False),
        ('{"a": "</tool_call>"', '{"a": "</tool_call>"', False),
    ],
)
def test_scan(text: str, taken: str, whole: bool) -> None:
    assert scan([text]) == (taken, whole)
    assert scan(list(text)) == (taken, whole)
