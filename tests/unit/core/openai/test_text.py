from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.openai.stops import StopMatcher
from enginehouse.core.openai.text import AnswerText, EndingText
from enginehouse.domain.stream import Finish


class Letters:
    """Each id is a letter; a negative one is half a character, which needs the next id, whatever it is."""

    def __init__(self) -> None:
        self.open = ""

    def push(self, token_ids: Sequence[int]) -> str:
        out = ""
        for token in token_ids:
            if self.open:
                out, self.open = out + "*", ""
            elif token < 0:
                self.open = "?"
            else:
                out += chr(token)
        return out

    def flush(self) -> str:
        held, self.open = self.open, ""
        return held


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_text_comes_out_as_it_becomes_certain_and_every_id_counts() -> None:
    answer = AnswerText(Letters())
    assert answer.push(ids("ab")) == ("ab", None)
    assert answer.push([-1]) == ("", None)
    assert answer.push(ids("x")) == ("*", None)
    assert answer.push([-1], Finish.LENGTH) == ("?", None)
    assert answer.tokens == 5


def test_o3_the_id_that_ended_the_answer_counts_and_gives_no_text() -> None:
    for matcher in (None, StopMatcher(()), StopMatcher(("zzz",))):
        answer = AnswerText(Letters(), matcher)
        assert answer.push(ids("ab#"), Finish.STOP) == ("ab", None)
        assert answer.tokens == 3


@pytest.mark.parametrize("matcher", [None, StopMatcher(("zzz",))])
@pytest.mark.parametrize(
    ("pushes", "text", "tokens"),
    [
        ([("ab#", None), ("", Finish.STOP)], "ab", 3),  # the end is told of after the token that made it
        ([("ab", None), ("#", None), ("", Finish.STOP)], "ab", 3),
        ([("ab#", Finish.STOP)], "ab", 3),
        ([("ab#", None), ("", Finish.LENGTH)], "ab#", 3),
        ([("ab#", None), ("c", None), ("", Finish.LENGTH)], "ab#c", 4),  # it ended nothing
        ([("a#", None), ("#", None), ("#", Finish.STOP)], "a##", 4),
        ([("abcd#", None)], "abcd#", 5),  # the limit
        ([("abcde#", None)], "abcde", 5),
    ],
)
def test_o3_a_token_that_may_end_the_answer_waits_until_it_is_known_to(
    matcher: StopMatcher | None, pushes: list[tuple[str, Finish | None]], text: str, tokens: int
) -> None:
    answer = EndingText(Letters(), matcher, 0, 5, ends=frozenset(ids("#")))
    out, ours = "", None
    for part, finish in pushes:
        more, ours = answer.push(ids(part), finish)
        out += more
    if ours is None and pushes[-1][1] is None:
        assert answer.tokens == tokens
        out += answer.push([], Finish.LENGTH)[0]
    assert (out, answer.tokens) == (text, tokens)


def test_g6_ids_that_come_with_the_finish_are_text() -> None:
    for matcher in (None, StopMatcher(("zzz",))):
        answer = AnswerText(Letters(), matcher)
        assert answer.push(ids("abcd"), Finish.LENGTH) == ("abcd", None)
        assert answer.push([], Finish.LENGTH) == ("", None)
        assert answer.tokens == 4


def test_o3_a_stop_ends_the_text_and_the_count() -> None:
    answer = AnswerText(Letters(), StopMatcher(("bcd",)))
    assert answer.push(ids("ab")) == ("a", None)
    assert answer.push(ids("cdefg")) == ("", Finish.STOP)
    assert answer.tokens == 4


@pytest.mark.parametrize("stops", [(), ("zzz",)])
def test_what_an_engine_makes_beyond_max_tokens_is_not_taken(stops: tuple[str, ...]) -> None:
    """Just so many are no offence: the finish may come in a message of its own."""

    def new() -> AnswerText:
        return AnswerText(Letters(), StopMatcher(stops), max_tokens=3)

    answer = new()
    assert answer.push(ids("abc")) == ("abc", None)
    assert answer.push([], Finish.STOP) == ("", None)
    for finish in (None, *Finish):
        answer = new()
        assert answer.push([97, -1]) == ("a", None)
        assert answer.push([*ids("xyz")] * 1000, finish) == ("*", Finish.LENGTH)
        assert answer.tokens == 3
    answer = new()
    assert answer.push([97, 98, -1]) == ("ab", None)
    assert answer.push(ids("c")) == ("?", Finish.LENGTH)
    assert answer.tokens == 3


def test_a_stop_string_within_max_tokens_is_a_stop() -> None:
    answer = AnswerText(Letters(), StopMatcher(("bc",)), max_tokens=3)
    assert answer.push(ids("abcdef")) == ("a", Finish.STOP)
    answer = AnswerText(Letters(), StopMatcher(("cd",)), max_tokens=3)
    assert answer.push(ids("abcdef")) == ("abc", Finish.LENGTH)


def test_o3_what_was_held_comes_out_at_the_end() -> None:
    answer = AnswerText(Letters(), StopMatcher(("bcd",)))
    assert answer.push(ids("abc")) == ("a", None)
    assert answer.push([], Finish.LENGTH) == ("bc", None)


def test_o3_a_stop_in_the_last_held_character_is_found() -> None:
    answer = AnswerText(Letters(), StopMatcher(("a?",)))
    assert answer.push(ids("xa")) == ("x", None)
    assert answer.push([-1], Finish.LENGTH) == ("", Finish.STOP)


def test_o3_the_first_min_tokens_are_not_looked_at_for_stops() -> None:
    for deltas in (["abab"], ["a", "b", "a", "b"]):
        answer = AnswerText(Letters(), StopMatcher(("ab",)), min_tokens=2)
        assert [answer.push(ids(delta)) for delta in deltas][-1][1] is Finish.STOP
        assert answer.tokens == 4
    answer = AnswerText(Letters(), StopMatcher(("ab",)), min_tokens=1)
    assert answer.push(ids("abx")) == ("abx", None)  # it began too early


@given(st.lists(st.lists(st.sampled_from([97, 98, -1]), max_size=4), max_size=5), st.sampled_from(list(Finish)))
def test_streamed_equals_whole_however_the_ids_arrive(deltas: list[list[int]], finish: Finish) -> None:
    def run(parts: list[list[int]]) -> tuple[str, bool, int]:
        answer = AnswerText(Letters(), StopMatcher(("ab", "b*")))
        out = ""
        for at, part in enumerate(parts):
            text, ended = answer.push(part, finish if at == len(parts) - 1 else None)
            out += text
            if ended:
                return out, True, answer.tokens
        return out, False, answer.tokens

    whole = [token for delta in deltas for token in delta]
    last = [whole[-1]] if whole else []
    assert run([[token] for token in whole[:-1]] + [last]) == run([whole])
