"""The rate of events as people read it."""

from __future__ import annotations

import pytest

from enginehouse.core.kv.pace import MEMORY, Pace
from enginehouse.core.kv.view import Heard


def test_a_steady_stream_is_read_as_its_rate_whatever_comes_together() -> None:
    for every, count in ((0.1, 5), (1.0, 50), (2.0, 100)):
        pace, now = Pace(), 1000.0
        while now < 1000 + 10 * MEMORY:
            pace.add(count, now)
            now += every
        assert pace.at(now) == pytest.approx(50, rel=0.05)


def test_it_forgets_and_never_grows_by_itself() -> None:
    pace = Pace()
    assert pace.at(5.0) == 0
    pace.add(30, 10.0)
    assert pace.at(10.0) == pytest.approx(30 / MEMORY)
    assert pace.at(10.0 + MEMORY) == pytest.approx(30 / MEMORY * 0.3679, rel=0.01)
    assert pace.at(9.0) == pytest.approx(30 / MEMORY), "a clock that seems to go back changes nothing"
    assert pace.at(10.0 + 100 * MEMORY) < 1e-9


def test_a_batch_counts_everywhere() -> None:
    heard = Heard()
    heard.applied(3, 7.0)
    heard.applied(0, 8.0)
    assert (heard.batches, heard.events, heard.last_at) == (2, 3, 8.0)
    assert heard.pace.at(8.0) > 0
