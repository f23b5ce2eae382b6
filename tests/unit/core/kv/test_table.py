from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.kv.table import FULL, Table

WIDTH = 12
pack = struct.Struct("<QI").pack


def put(table: Table, one: int, value: int) -> None:
    row = pack(one, value)
    number, at = table.find(row[:8])
    if at >= 0:
        table.put(number, at, row)
    else:
        table.buckets[number] += row
        table.count += 1
        table.grow()


@pytest.mark.parametrize("room", [0, 1, FULL, 100])
@given(
    steps=st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(0, 300)), max_size=150),
    scale=st.sampled_from([1, 2**8, 2**56, 0x0101010101010101]),
)
def test_it_is_a_dictionary(room: int, steps: list[tuple[int, int | None]], scale: int) -> None:
    table, naive = Table(WIDTH, room), {}
    for number, value in steps:
        one = number * scale % 2**64
        if value is not None:
            put(table, one, value)
            naive[one] = value
            continue
        place, at = table.find(pack(one, 0)[:8])
        assert (at >= 0) == (one in naive)
        if at >= 0:
            table.delete(place, at)
            del naive[one]
    table.check()
    assert {struct.unpack("<QI", row) for row in table.rows()} == set(naive.items())
    for number in range(61):
        one = number * scale % 2**64
        assert (table.find(pack(one, 0)[:8])[1] >= 0) == (one in naive)


def test_it_has_room_from_the_start_and_grows_beyond() -> None:
    table = Table(WIDTH, 100)
    buckets = len(table.buckets)
    assert 100 / FULL / 2 <= buckets <= 100 / FULL * 2
    for one in range(1000):
        put(table, one, 0)
    table.check()
    assert 1000 / FULL <= len(table.buckets) <= 1000 / FULL + 1


def test_it_is_taken_apart_in_pieces_and_empty_buckets_count_little() -> None:
    table = Table(WIDTH, 10_000)
    for one in range(100):
        put(table, one, 0)
    calls, rows = 0, 0
    while table.count:
        rows += len(table.pop()) // WIDTH
        calls += 1
    assert rows == 100
    assert calls <= 100 + 2048 / 16
