"""What our own choices make likely stays in its bounds of room and time, and never claims a hole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.kv.approximate import Approximate, Expected, depth


def chain(conversation: int, blocks: int) -> list[int]:
    """Keys of a prompt: those of one conversation begin alike, whatever their length."""
    return [conversation * 1000 + n for n in range(blocks)]


def linear(keys: Sequence[int], held: set[int]) -> int:
    found = 0
    for key in keys:
        if key not in held:
            break
        found += 1
    return found


@given(st.integers(0, 40), st.integers(0, 40))
def test_halving_finds_what_walking_finds(held: int, asked: int) -> None:
    keys = chain(1, asked)
    assert depth(keys, set(chain(1, held))) == linear(keys, set(chain(1, held)))


def test_a_prompt_is_held_by_the_rank_that_got_it() -> None:
    sent = Approximate(100, 600)
    sent.sent(chain(1, 10), 0)
    assert sent.depth(chain(1, 7), 1) == 7
    assert sent.depth(chain(1, 20), 1) == 10
    assert sent.depth(chain(2, 10), 1) == 0


def test_what_is_sent_is_kept_half_the_time_at_least_and_the_whole_at_most() -> None:
    for second in range(60):
        sent = Approximate(100, 60)
        sent.sent(chain(9, 1), 0)  # begins a generation
        sent.sent(chain(1, 4), second / 2)
        assert sent.depth(chain(1, 4), second / 2 + 29.9) == 4
        assert sent.depth(chain(1, 4), second / 2 + 60) == 0


def test_nobody_asked_for_a_long_time() -> None:
    sent = Approximate(100, 60)
    sent.sent(chain(1, 4), 0)
    assert sent.depth(chain(1, 4), 1000) == 0
    sent.sent(chain(1, 4), 1001)
    assert sent.depth(chain(1, 4), 1030) == 4


def test_of_a_prompt_that_does_not_fit_only_the_head_counts() -> None:
    sent = Approximate(8, 60)
    sent.sent(chain(1, 100), 0)
    assert sent.depth(chain(1, 100), 0) == 4


def test_the_same_prompt_again_takes_no_room() -> None:
    sent = Approximate(20, 60)
    sent.sent(chain(1, 6), 0)
    sent.sent(chain(2, 3), 0)
    for _ in range(10):
        sent.sent(chain(2, 3), 1)
    assert sent.depth(chain(1, 6), 1) == 6


def test_a_block_counts_once() -> None:
    sent = Approximate(100, 60)
    sent.sent(chain(1, 10), 0)
    sent.sent(chain(1, 14), 31)
    assert len(sent) == 14
    sent.sent(chain(1, 14), 32)
    sent.sent(chain(2, 3), 32)
    assert len(sent) == 17
    sent.age(1000)
    assert len(sent) == 0


@pytest.mark.parametrize(("first", "second", "left"), [(40, 0, 0), (10, 12, 12), (10, 40, 10), (40, 10, 10)])
def test_less_room(first: int, second: int, left: int) -> None:
    sent = Approximate(100, 60)
    sent.sent(chain(1, first), 0)
    sent.sent(chain(1, second), 31)
    sent.limit(30)
    assert len(sent) == left
    sent.check()


steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 30), st.floats(0, 40)),
    max_size=40,
)


@given(st.integers(1, 60), steps)
def test_it_never_holds_more_than_it_may_nor_what_was_not_sent_nor_what_is_old(
    room: int, history: list[tuple[int, int, float]]
) -> None:
    sent = Approximate(room, 60)
    last: dict[int, float] = {}
    now = 0.0
    for conversation, blocks, pause in history:
        now += pause
        keys = chain(conversation, blocks)
        sent.sent(keys, now)
        last |= dict.fromkeys(keys, now)
        assert len(sent) <= max(2, room)
        sent.check()
        assert sent.depth(keys, now) == min(blocks, max(1, room // 2))
        for other in range(6):
            asked = chain(other, 35)
            found = sent.depth(asked, now)
            assert all(key in last and now - last[key] <= 60 for key in asked[:found])


@given(steps)
def test_with_room_enough_nothing_of_the_last_half_is_missing(history: list[tuple[int, int, float]]) -> None:
    sent = Approximate(10_000, 60)
    last: dict[int, float] = {}
    now = 0.0
    for conversation, blocks, pause in history:
        now += pause
        sent.sent(chain(conversation, blocks), now)
        last |= dict.fromkeys(chain(conversation, blocks), now)
        for other in range(6):
            recent = sum(now - last.get(key, -1e9) < 29.9 for key in chain(other, 35))
            assert sent.depth(chain(other, 35), now) >= recent


def test_what_is_on_its_way_counts_until_its_events_must_have_come() -> None:
    expected = Expected()
    keys = chain(1, 5)
    expected.sent(keys)
    assert expected.depth(chain(1, 9), 1000) == 5
    expected.answered(keys, 1002)
    assert expected.depth(chain(1, 9), 1001.9) == 5
    assert expected.depth(chain(1, 9), 1002) == 0
    assert len(expected) == 0


def test_of_two_on_their_way_one_remains() -> None:
    expected = Expected()
    expected.sent(chain(1, 5))
    expected.sent(chain(1, 3))
    expected.drop(chain(1, 5))
    assert expected.depth(chain(1, 9), 0) == 3
    expected.drop(chain(1, 3))
    assert len(expected) == 0
