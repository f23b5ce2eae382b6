"""Prefill and decode engines join and leave under traffic: by flags, by the engines file, and as pods of two selectors.

No stream is cut, no request is lost, and every answer is the right one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.pd import (
    PROTOCOLS,
    FilePools,
    FlagPools,
    PodPools,
    Pools,
    idle,
    met,
    named,
    stopped,
    stream,
    traffic,
    unused,
)
from tests.e2e.support import WITHIN, ask, chat
from tests.support import until

pytestmark = pytest.mark.e2e
AWAY = ("draining", "unready", "suspect", "failed", "probing", "gone", None)


PODS = pytest.mark.rig("kube")


@pytest.fixture
def pools(
    request: pytest.FixtureRequest, tmp_path: Path, engine: MakeEngine, front: MakeFront, source: str, protocol: str
) -> Pools:
    match source:
        case "flags":
            return FlagPools(protocol, engine, front)
        case "file":
            return FilePools(protocol, engine, front, tmp_path)
        case _:
            return PodPools(protocol, engine, front, request.getfixturevalue("cluster"))


@pytest.mark.parametrize(
    ("source", "protocol"),
    [
        ("flags", "sglang"),
        ("flags", "vllm"),
        ("file", "vllm-native"),
        *(pytest.param("pods", protocol, marks=PODS) for protocol in PROTOCOLS),
    ],
)
def test_prefill_and_decode_engines_join_and_leave_under_traffic(pools: Pools) -> None:
    p1, p2 = (pools.prefill(name) for name in ("p1", "p2"))
    d1, d2 = (pools.decode(name) for name in ("d1", "d2"))
    pools.join(p1)
    pools.join(d1)
    front = pools.front()
    named(front, p1, d1)
    with traffic(front) as seen:
        seen.wait(5)
        for newcomer in (p2, d2):
            pools.join(newcomer)
            front.wait_state(newcomer, "serving")
            until(lambda newcomer=newcomer: newcomer.requests > 2, within=WITHIN)
        long = stream(front, max_tokens=100)
        long.until_text()
        for leaver in (p1, d1):
            pools.leave(leaver)
            front.wait_state(leaver, *AWAY)
            unused(front, leaver)  # those that were chosen before are over now
        before = p1.requests, d1.requests
        seen.wait(20)
        assert (p1.requests, d1.requests) == before
        answer = long.rest()
        assert answer.whole
        assert answer.finish == "length"
    assert len(seen.answers) > 30
    idle(front, p1, p2, d1, d2)
    for engine in (p1, p2, d1, d2):
        assert len(engine.seen("leg")) == engine.requests, "no request runs whole on one engine"
    for prefill in (p1, p2):
        assert {line["max_tokens"] for line in prefill.seen("request")} <= {1}


@pytest.mark.parametrize("source", ["file"])
@pytest.mark.parametrize("protocol", ["sglang", "vllm"])
@pytest.mark.parametrize("leaves", ["prefill", "decode"])
def test_withdrawing_either_engine_lets_the_pair_finish(pools: Pools, leaves: str) -> None:
    """Withdrawn while the cache is on its way: the pair goes on to its end, and nothing new goes there."""
    p1, p2 = pools.prefill("p1", handover_hold=True), pools.prefill("p2")
    d1, d2 = (pools.decode(name) for name in ("d1", "d2"))
    pools.join(p1)
    pools.join(d1)
    front = pools.front()
    named(front, p1, d1)
    running = stream(front, max_tokens=40)
    met(p1)
    met(d1)
    for newcomer in (p2, d2):
        pools.join(newcomer)
        front.wait_state(newcomer, "serving")
    leaver = p1 if leaves == "prefill" else d1
    pools.leave(leaver)
    front.wait_state(leaver, "draining")
    p1.faults(handover_hold=False)
    answer = running.rest()
    assert answer.whole
    before = leaver.requests
    for _ in range(4):
        assert ask(front, chat()).whole
    assert leaver.requests == before
    front.wait_state(leaver, "gone", None)
    idle(front, p1, p2, d1, d2)
    assert not [end for engine in (p1, p2, d1, d2) for end in stopped(engine)]
