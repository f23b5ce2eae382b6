import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enginehouse.core.output.marks import Marks

TEXTS = st.text("ab<", max_size=12)
MARKS = st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4)


def naive(text: str, marks: list[str]) -> list[str]:
    """Text and marks by turns: at each place the longest mark that begins there."""
    return re.split(f"({'|'.join(map(re.escape, sorted(marks, key=len, reverse=True)))})", text)


def incremental(pieces: list[str], marks: list[str]) -> list[str]:
    found = Marks(*marks)
    out, buffer = [""], ""
    for last, piece in [*((False, piece) for piece in pieces), (True, "")]:
        buffer += piece
        while (hit := found.search(buffer, 0, ended=last)) is not None:
            out[-1] += buffer[: hit[0]]
            out += [hit[1], ""]
            buffer = buffer[hit[0] + len(hit[1]) :]
        keep = 0 if last else found.held(buffer, 0)
        out[-1] += buffer[: len(buffer) - keep]
        buffer = buffer[len(buffer) - keep :]
    return out


@given(st.lists(TEXTS, max_size=6), MARKS)
@example(["a", "b<"], ["ab<", "b"])
@example(["<a", "<b"], ["<a", "<a<"])
def test_the_same_marks_are_found_however_the_text_is_cut(pieces: list[str], marks: list[str]) -> None:
    assert incremental(pieces, marks) == naive("".join(pieces), marks)


@given(TEXTS, MARKS)
def test_no_more_is_held_back_than_may_become_a_mark(text: str, marks: list[str]) -> None:
    held = Marks(*marks).held(text, 0)
    assert held == max(
        (size for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size])),
        default=0,
    )


@pytest.mark.parametrize(
    ("text", "ended", "expected"),
    [
        ("x<tool_call>", False, (1, "<tool_call>")),
        ("x<tool_call", False, None),
        ("x<tool_call", True, None),
        # "b" may be a part of "ab<", which began before it, until the next character tells.
        ("xab", False, None),
        ("xab", True, (2, "b")),
        ("xab<", False, (1, "ab<")),
        ("xabx", False, (2, "b")),
    ],
)
def test_search(text: str, ended: bool, expected: tuple[int, str] | None) -> None:
    assert Marks("<tool_call>", "ab<", "b").search(text, 0, ended=ended) == expected


def test_no_marks_at_all() -> None:
    assert Marks().search("text", 0, ended=False) is None
    assert Marks().held("text", 0) == 0
    assert (Marks("a") | Marks("b", "a")).all == ("a", "b")
