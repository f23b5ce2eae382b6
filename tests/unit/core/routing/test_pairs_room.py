"""Rooms: in range, of the right rank, never the same one twice."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enginehouse.core.routing.room import LAST, room

DRAWN = st.integers(0, 2**64 - 1)


@given(DRAWN, st.integers(1, 1024).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
@example(2**64 - 1, (0, 1))
@example(0, (0, 1))
@example(0, (0, 8))
@example(2**63 - 26, (0, 1))
@example(2**64 - 1, (7, 8))
@example(LAST // 8, (0, 8))
def test_p3_a_room_is_in_range_and_its_rest_is_the_rank(drawn: int, rank_of: tuple[int, int]) -> None:
    rank, ranks = rank_of
    made = room(drawn, rank, ranks)
    assert 1 <= made <= 2**63 - 1
    assert made % ranks == rank


def test_p3_rooms_that_no_double_can_hold_come_out_whole() -> None:
    assert room(2**63 - 26, None, 1) == 2**63 - 25
    assert room(2**63 - 2, None, 1) == 2**63 - 1
    assert room(2**63 - 1, None, 1) == 1, "and then from the first one on"
    assert float(2**63 - 25) != 2**63 - 25


@pytest.mark.parametrize(("rank", "ranks"), [(0, 2), (1, 2), (0, 3), (2, 3), (0, 7), (7, 8), (0, 8)])
def test_p3_the_first_and_the_last_room_of_a_rank(rank: int, ranks: int) -> None:
    rooms = [n for n in range(1, ranks + 1) if n % ranks == rank]
    assert room(0, rank, ranks) == rooms[0]
    last = LAST - (LAST - rank) % ranks
    assert room((last - rooms[0]) // ranks, rank, ranks) == last
    assert room((last - rooms[0]) // ranks + 1, rank, ranks) == rooms[0]


@pytest.mark.parametrize("rank", [None, 0])
def test_an_engine_of_one_rank_takes_any_room(rank: int | None) -> None:
    assert [room(drawn, rank, 1) for drawn in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("rank", "ranks"), [(8, 8), (-1, 8), (9, 8)])
def test_a_rank_that_the_engine_does_not_have_is_refused(rank: int, ranks: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of {ranks}"):
        room(5, rank, ranks)


@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_p3_no_collisions_in_100_000_requests(ranks: int) -> None:
    rng = Random(20260401 + ranks)
    rooms = {room(rng.getrandbits(64), turn % ranks, ranks) for turn in range(100_000)}
    assert len(rooms) == 100_000


def test_p3_rooms_are_spread_over_the_whole_range() -> None:
    rng = Random(3)
    drawn = [room(rng.getrandbits(64), 3, 8) for _ in range(8000)]
    eighths = [sum(1 for made in drawn if made * 8 // 2**63 == part) for part in range(8)]
    assert all(850 < count < 1150 for count in eighths)
