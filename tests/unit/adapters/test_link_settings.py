from __future__ import annotations

import pytest

from enginehouse.adapters.link import LinkSettings


@pytest.mark.parametrize(
    "bad",
    [
        {"connect_timeout": 0},
        {"connect_timeout": float("nan")},
        {"silence_limit": -1},
        {"close_timeout": 0},
        {"gather": -0.001},
        {"calm_down": -1},
        {"connections": 0},
        {"streams_per_connection": 0},
        {"receive_limit": 0},
        {"send_limit": 0},
        {"connections": 8, "max_connections": 4},
        {"stream_window": 0},
        {"stream_window": 2**31},
        {"connection_window": 65_534},
        {"connection_window": 2**31},
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=list(bad)[-1]):
        LinkSettings(**bad)  # type: ignore[arg-type]


def test_the_smallest_values_that_work() -> None:
    LinkSettings(stream_window=1, connection_window=65_535, connections=1, max_connections=1, gather=0, calm_down=0)
