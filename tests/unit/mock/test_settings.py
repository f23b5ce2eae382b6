"""Settings and faults of a mock engine: bad ones are refused with a text that says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from enginehouse.mock.settings import Faults, MockSettings, read_faults


def test_a_control_file_changes_only_what_it_names() -> None:
    base = MockSettings(refuse="UNAVAILABLE").faults()
    assert read_faults({"stall_after_tokens": 3}, base) == Faults(refuse="UNAVAILABLE", stall_after_tokens=3)


@pytest.mark.parametrize(
    ("values", "text"),
    [({"stall": 1}, "'stall' is not a fault"), ({"healthy": 0}, "type bool"), ({"refuse": "GONE"}, "gRPC status")],
)
def test_bad_faults_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_faults(values, Faults())


@pytest.mark.parametrize("bad", [{"ranks": 0}, {"tokens_per_second": -1.0}, {"refuse": "GONE"}])
def test_bad_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        MockSettings(**bad)
