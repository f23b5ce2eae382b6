"""Engines that are sick and look healthy: they fail every request, or stand still. They leave the rotation."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from enginehouse.domain.engine import ProtocolName
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.fleets import two
from tests.e2e.support import Stream, ask, chat, counts, well_formed
from tests.support import until

pytestmark = pytest.mark.e2e
ALL = [protocol.value for protocol in ProtocolName]
PATIENCE = 40
"""Requests after which an engine that fails them all must be out."""


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("faults", [{"refuse": "INTERNAL"}, {"error_after_tokens": 1}], ids=["at once", "midway"])
def test_g9_m3_an_engine_that_fails_every_request_leaves_the_rotation(
    engine: MakeEngine, front: MakeFront, protocol: str, faults: dict[str, Any]
) -> None:
    """Health says yes all the while, and under least-loaded who fails fast looks free: it must not draw the traffic."""
    a, b, running = two(engine, front, policy="least-loaded", protocol=protocol)
    a.faults(**faults)
    answers = []
    while running.state(a) == "serving":
        answers.append(ask(running))
        assert len(answers) < PATIENCE, [answer.error for answer in answers if answer.error]
    assert all(answer.whole or well_formed(answer.error) for answer in answers)
    out = [ask(running) for _ in range(10)]
    assert all(answer.whole for answer in out), [answer.error for answer in out]
    assert b.requests >= 10
    a.faults()
    running.wait_state(a, "serving")
    assert sum(counts([a, b], lambda: [ask(running) for _ in range(10)])) == 10
    running.wait_idle()


@pytest.mark.parametrize("protocol", ALL)
def test_m14_m2_requests_of_an_engine_that_stands_still_are_answered_by_the_other(
    engine: MakeEngine, front: MakeFront, protocol: str
) -> None:
    """SIGSTOP: its connections stay open and say nothing. Who has nothing yet is answered elsewhere, long before the
    deadline for a first token; new requests go elsewhere at once after that."""
    a, b, running = two(engine, front, protocol=protocol, prefill_hold=True)
    streams = [Stream(running, chat(f"request {number}")) for number in range(8)]
    until(lambda: a.open == 4)
    assert a.child is not None
    a.child.signal(signal.SIGSTOP)
    try:
        answers = [stream.rest() for stream in streams]
        assert all(answer.whole for answer in answers), answers
        assert b.requests == 8
        running.wait_state(a, "suspect", "failed", "probing")
        assert counts([b], lambda: [ask(running) for _ in range(4)]) == [4]
    finally:
        a.child.signal(signal.SIGCONT)
    a.faults()
    running.wait_state(a, "serving")
    running.wait_idle()
