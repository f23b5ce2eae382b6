"""What one rank publishes: numbers, the buffer of replays, and each fault by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from enginehouse.mock.kv.encode import GARBAGE
from enginehouse.mock.kv.news import Cleared, News
from enginehouse.mock.kv.publisher import Publisher
from enginehouse.mock.settings import Faults


def encode(now: float, news: Sequence[News], rank: int, malformed: bool) -> bytes:
    return f"{now} {len(news)} {rank} {malformed}".encode()


def publisher(**faults: Any) -> Publisher:
    return Publisher(3, encode, Faults(**faults))


def publish(one: Publisher, count: int = 1) -> list[int | None]:
    """Numbers that go out live; None for a batch that does not."""
    batches = [one.publish([Cleared()], 1.0) for _ in range(count)]
    return [batch.number if batch is not None and batch.sent else None for batch in batches]


def replayed(one: Publisher, start: int = 0) -> list[int]:
    return [batch.number for batch in one.replay(start)]


def test_numbers_from_zero_and_a_replay_from_where_it_is_asked() -> None:
    one = publisher()
    assert publish(one, 4) == [0, 1, 2, 3]
    assert replayed(one) == [0, 1, 2, 3]
    assert replayed(one, 2) == [2, 3]
    assert replayed(one, 9) == []
    assert one.replay(3)[0].payload == b"1.0 1 3 False"


@pytest.mark.parametrize(("for_ever", "kept"), [(False, [0, 1, 2, 3]), (True, [2, 3])])
def test_dropped_batches_have_numbers(for_ever: bool, kept: list[int]) -> None:
    one = publisher(kv_drop_batches=2, kv_drop_for_ever=for_ever)
    assert publish(one, 4) == [None, None, 2, 3]
    assert replayed(one) == kept
    one.set_faults(Faults(kv_drop_batches=1))
    assert publish(one, 2) == [None, 5]


def test_silence_takes_no_numbers() -> None:
    one = publisher()
    publish(one)
    one.set_faults(Faults(kv_silent=True))
    assert publish(one, 3) == [None] * 3
    one.set_faults(Faults())
    assert publish(one) == [1]
    assert replayed(one) == [0, 1]


def test_a_restart_begins_at_zero_with_nothing_to_replay() -> None:
    one = publisher()
    publish(one, 3)
    one.set_faults(Faults(kv_restarts=1))
    assert replayed(one) == []
    assert publish(one) == [0]
    one.set_faults(Faults(kv_restarts=1, kv_malformed=True))
    assert publish(one) == [1]


def test_a_smaller_buffer_loses_the_oldest() -> None:
    one = publisher(kv_buffer_batches=3)
    publish(one, 5)
    assert replayed(one) == [2, 3, 4]
    one.set_faults(Faults(kv_buffer_batches=1))
    assert replayed(one) == [4]
    one.set_faults(Faults(kv_buffer_batches=0))
    publish(one)
    assert replayed(one) == []


def test_garbage_has_a_number_and_a_place_in_the_replay() -> None:
    one = publisher(kv_garbage_batches=1)
    assert publish(one, 2) == [0, 1]
    assert [batch.payload == GARBAGE for batch in one.replay(0)] == [True, False]
    assert [len(batch.news) for batch in one.replay(0)] == [0, 1]


def test_malformed_is_asked_of_the_encoder() -> None:
    one = publisher(kv_malformed=True)
    publish(one)
    assert one.replay(0)[0].payload == b"1.0 1 3 True"
