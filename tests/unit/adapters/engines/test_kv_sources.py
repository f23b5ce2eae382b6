"""Where KV events are fetched: the dialled host stands in for wildcards and loopback."""

from __future__ import annotations

import pytest

from enginehouse.adapters.engines.kv_sources import reachable


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [
        ("tcp://*:5557", "tcp://10.0.0.7:5557"),
        ("tcp://0.0.0.0:5557", "tcp://10.0.0.7:5557"),
        ("tcp://127.0.0.1:5557", "tcp://10.0.0.7:5557"),
        ("tcp://localhost:5557", "tcp://10.0.0.7:5557"),
        ("tcp://[::]:5557", "tcp://10.0.0.7:5557"),
        ("tcp://10.9.9.9:5557", "tcp://10.9.9.9:5557"),
        ("tcp://[fd00::5]:5557", "tcp://[fd00::5]:5557"),
        ("tcp://publisher:5557", "tcp://publisher:5557"),
        ("inproc://cache", None),
        ("ipc:///tmp/x", None),
        ("tcp://*", None),
        ("tcp://*:port", None),
        ("", None),
    ],
)
def test_reachable(endpoint: str, found: str | None) -> None:
    assert reachable(endpoint, "10.0.0.7") == found


def test_d19_an_ipv6_engine_gets_brackets() -> None:
    assert reachable("tcp://*:5557", "fd00::5") == "tcp://[fd00::5]:5557"
