import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.openai.stops import StopMatcher

LETTERS = st.text("ab", max_size=14)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def run(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    out = ""
    for piece in pieces:
        out += matcher.push(piece)
        if matcher.stopped:
            return out, True
    return out + matcher.flush(), False


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Character by character: the first moment at which the text ends with a stop, cut where the longest one began."""
    for end in range(1, len(text) + 1):
        matching = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if matching:
            return text[: end - max(matching)], True
    return text, False


@given(st.lists(LETTERS, max_size=6), STOPS)
def test_o3_any_split_gives_what_reading_character_by_character_gives(pieces: list[str], stops: list[str]) -> None:
    assert run(pieces, stops) == naive("".join(pieces), stops)


@given(st.lists(LETTERS, max_size=6), STOPS)
def test_o3_only_what_may_begin_a_stop_is_held_back(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = out = ""
    for piece in pieces:
        seen += piece
        out += matcher.push(piece)
        if matcher.stopped:
            return
        held = seen[len(out) :]
        assert seen == out + held
        assert not held or any(stop.startswith(held) and len(stop) > len(held) for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "wanted"),
    [
        (["one\n", "\nUs", "er:"], ["\n\nUser:"], ("one", True)),  # over three pieces
        (["one\n", "\nUse", "ful"], ["\n\nUser:"], ("one\n\nUseful", False)),  # a false beginning
        (["one \n\nUse"], ["\n\nUser:"], ("one \n\nUse", False)),  # cut off by the end
        (["aab"], ["ab"], ("a", True)),  # begins inside a false beginning
        (["abcd"], ["abcd", "bc"], ("a", True)),  # complete first
        (["xEND."], ["END", "ND"], ("x", True)),  # complete together: the longer
        (["ENDEND"], ["END"], ("", True)),
        (["E", "N", "D"], ["END", "EN"], ("", True)),
        (["日本", "語です"], ["本語"], ("日", True)),
        ([""], ["x"], ("", False)),
    ],
)
def test_o3_cases(pieces: list[str], stops: list[str], wanted: tuple[str, bool]) -> None:
    assert run(pieces, stops) == wanted


def test_an_empty_stop_string_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
