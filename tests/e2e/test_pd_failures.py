"""What fails while two engines share a request, at each stage: the other leg stops, and the client gets its answer.

An engine of SGLang would wait 300 s for a partner that is gone, and one of vLLM keep blocks for 30: every wait for an
engine to be idle here sees that it was told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.pd import PROTOCOLS, VLLM, FlagPools, begun, idle, met, named, stopped, stream, unanswered
from tests.e2e.support import WITHIN, Engine, Front, ask, chat, well_formed
from tests.support import until

pytestmark = pytest.mark.e2e
ONE_OF_EACH = ["sglang", "vllm"]
"""What both surfaces of vLLM do alike is tried on one of them."""
LONG = 20_000
"""Tokens; 100 s at the pace of these engines."""


class Two:
    """Engines of both roles, and a frontend that knows them."""

    def __init__(self, protocol: str, prefill: list[Engine], decode: list[Engine], front: Front) -> None:
        self.protocol = protocol
        self.prefill = prefill
        self.decode = decode
        self.front = front

    @property
    def sglang(self) -> bool:
        return self.protocol == "sglang"

    @property
    def engines(self) -> list[Engine]:
        return [*self.prefill, *self.decode]

    def idle(self, *but: Engine) -> None:
        idle(self.front, *(engine for engine in self.engines if engine not in but))


Make = Callable[..., Two]


@pytest.fixture
def two(engine: MakeEngine, front: MakeFront) -> Make:
    """two("vllm", 1, 2, "--option", …) -> Two: so many prefill and decode engines that serve."""

    def make(protocol: str, prefill: int, decode: int, *options: object, **engines: Any) -> Two:
        pools = FlagPools(protocol, engine, front)
        first = [pools.prefill(f"p{number}", **{"shutdown_grace": 0, **engines}) for number in range(prefill)]
        second = [pools.decode(f"d{number}", **{"shutdown_grace": 0, **engines}) for number in range(decode)]
        for one in (*first, *second):
            one.run(wait=False)
        for one in (*first, *second):
            assert one.child is not None
            one.child.wait_line("on grpc://")
        running = pools.front(*options)
        named(running, *first, *second)
        return Two(protocol, first, second, running)

    return make


@pytest.mark.parametrize("protocol", ONE_OF_EACH)
def test_p1_decode_refuses_and_the_pair_is_tried_with_another(two: Make, protocol: str) -> None:
    fleet = two(protocol, 1, 2)
    (p,), (d0, d1) = fleet.prefill, fleet.decode
    d0.faults(refuse="UNAVAILABLE")
    for _ in range(4):
        answer = ask(fleet.front)
        assert answer.whole
    assert d0.requests == 0
    assert d1.requests == 4
    fleet.idle()
    if fleet.sglang:
        assert p.requests == 4 + len(stopped(p))
    else:
        until(lambda: len(p.seen("lease_released")) >= 4, within=WITHIN)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p1_decode_refuses_and_there_is_no_other(two: Make, protocol: str) -> None:
    """The prefill leg stops at once, and the client is told."""
    fleet = two(protocol, 1, 1)
    (p,), (d,) = fleet.prefill, fleet.decode
    d.faults(refuse="INTERNAL")
    answer = ask(fleet.front)
    assert answer.status >= 500
    assert well_formed(answer.error)
    assert p.requests >= 1
    fleet.idle()
    if fleet.sglang:
        assert len(stopped(p)) == p.requests
    d.faults()
    fleet.front.wait_state(d, "serving")
    assert ask(fleet.front).whole


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p2_a_client_error_of_the_prefill_engine_is_a_400_at_once(two: Make, protocol: str) -> None:
    fleet = two(protocol, 2, 2)
    for p in fleet.prefill:
        p.faults(reject_status=400)
    answer = ask(fleet.front)
    assert answer.status == 400
    assert well_formed(answer.error)
    fleet.idle()
    assert all(len(stopped(d)) == d.requests for d in fleet.decode)
    assert sum(d.requests for d in fleet.decode) <= 1, "no second try"
    for engine in fleet.engines:
        assert fleet.front.state(engine) == "serving", "the client's error is no engine's"


@pytest.mark.parametrize("protocol", ONE_OF_EACH)
def test_p2_a_client_error_of_the_decode_engine_is_a_400_at_once(two: Make, protocol: str) -> None:
    fleet = two(protocol, 1, 2)
    for d in fleet.decode:
        d.faults(reject_status=400)
    answer = ask(fleet.front)
    assert answer.status == 400
    assert well_formed(answer.error)
    fleet.idle()
    assert fleet.prefill[0].requests == 1, "no second try"


@pytest.mark.parametrize("protocol", ONE_OF_EACH)
def test_p2_prefill_dies_before_the_legs_have_met(two: Make, protocol: str) -> None:
    fleet = two(protocol, 2, 1)
    (d,) = fleet.decode
    if fleet.sglang:
        d.faults(handover_mute=True)
    else:
        for p in fleet.prefill:
            p.faults(prefill_hold=True)
    running = stream(fleet.front)
    victim = begun(*fleet.prefill)
    (other,) = (p for p in fleet.prefill if p is not victim)
    if fleet.sglang:
        begun(d)
    victim.kill()
    begun(other)
    for engine in (d, other):
        engine.faults()
    assert running.rest().whole
    fleet.idle(victim)
    if fleet.sglang:
        assert len(stopped(d)) == 1
        assert d.requests == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p2_prefill_dies_after_the_legs_have_met(two: Make, protocol: str) -> None:
    """On its way the cache is lost: whatever the decode engine says of it, the pair is tried again with another."""
    fleet = two(protocol, 2, 2)
    for p in fleet.prefill:
        p.faults(handover_hold=True)
    running = stream(fleet.front)
    met(*fleet.decode)
    victim = begun(*fleet.prefill)
    (other,) = (p for p in fleet.prefill if p is not victim)
    other.faults()
    victim.kill()
    assert running.rest().whole
    assert other.requests == 1
    fleet.idle(victim)


@pytest.mark.parametrize("protocol", ONE_OF_EACH)
def test_p1_decode_dies_after_the_legs_have_met(two: Make, protocol: str) -> None:
    fleet = two(protocol, 2, 2)
    for p in fleet.prefill:
        p.faults(handover_hold=True)
    running = stream(fleet.front)
    met(*fleet.decode)
    victim = begun(*fleet.decode)
    victim.kill()
    for p in fleet.prefill:
        p.faults()
    assert running.rest().whole
    fleet.idle(victim)


@pytest.mark.parametrize("protocol", ONE_OF_EACH)
def test_p1_decode_dies_before_its_first_token(two: Make, protocol: str) -> None:
    """The cache is there, nothing of the answer is."""
    fleet = two(protocol, 1, 2)
    (p,) = fleet.prefill
    for d in fleet.decode:
        d.faults(prefill_hold=True)
    running = stream(fleet.front)
    until(lambda: any(d.seen("passed") for d in fleet.decode), within=WITHIN)
    until(lambda: len(p.seen("end")) == 1, within=WITHIN)
    victim = begun(*fleet.decode)
    (other,) = (d for d in fleet.decode if d is not victim)
    other.faults()
    victim.kill()
    assert running.rest().whole
    assert (p.requests, other.requests) == (2, 1)
    fleet.idle(victim)


@pytest.mark.parametrize("protocol", ONE_OF_EACH)
def test_p7_decode_dies_in_the_middle_of_the_answer(two: Make, protocol: str) -> None:
    """What was sent cannot be taken back: an error that can be read, and no second try."""
    fleet = two(protocol, 2, 2)
    running = stream(fleet.front, max_tokens=LONG)
    running.until_text()
    victim = begun(*fleet.decode)
    victim.kill()
    answer = running.rest()
    assert answer.status == 200
    assert answer.text
    assert well_formed(answer.error)
    assert answer.finish is None
    assert sum(p.requests for p in fleet.prefill) == 1
    fleet.idle(victim)
    assert ask(fleet.front).whole


@pytest.mark.parametrize("protocol", ONE_OF_EACH)
def test_prefill_dies_once_the_answer_has_begun_and_nobody_notices(two: Make, protocol: str) -> None:
    fleet = two(protocol, 2, 1)
    running = stream(fleet.front, max_tokens=60)
    running.until_text()
    victim = begun(*fleet.prefill)
    victim.kill()
    assert running.rest().whole
    fleet.idle(victim)


@pytest.mark.parametrize("protocol", ONE_OF_EACH)
@pytest.mark.parametrize("mute", ["prefill", "decode"])
def test_p1_legs_that_never_meet_are_stopped_after_our_timeout_and_tried_elsewhere(
    two: Make, protocol: str, mute: str
) -> None:
    """Long before the engines give each other up. Nobody can tell which of the two it was: both are left out."""
    fleet = two(protocol, 2, 2, "--handover-timeout", 2)
    bad = fleet.prefill if mute == "prefill" else fleet.decode
    for engine in bad:
        engine.faults(handover_mute=True)
    running = stream(fleet.front)
    first = begun(*fleet.prefill), begun(*fleet.decode)
    for engine in bad:
        if engine not in first:
            engine.faults()
    assert running.rest().whole
    fleet.idle()
    for engine in fleet.engines:
        assert len(engine.seen("leg")) == 1, "besides, one of vLLM is asked whether it lives"
    assert len(stopped(first[1])) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p7_a_failed_transfer_is_no_answer(two: Make, protocol: str) -> None:
    """With others to try it costs the client nothing; without, it is an error and not an empty answer."""
    fleet = two(protocol, 2, 2)
    for bad in (fleet.prefill[0], fleet.decode[0]):
        bad.faults(handover_fails=True)
        for _ in range(4):
            assert ask(fleet.front).whole
        bad.faults()
    for engine in fleet.engines:
        engine.faults(handover_fails=True)
    for streaming in (True, False):
        answer = ask(fleet.front, chat(stream=streaming))
        assert answer.status >= 500
        assert well_formed(answer.error)
        assert not answer.text if streaming else "choices" not in answer.body
    fleet.idle()


def test_p3_sglang_a_leg_in_the_wrong_room_is_stopped_and_tried_elsewhere(two: Make) -> None:
    fleet = two("sglang", 2, 2, "--handover-timeout", 2)
    fleet.prefill[0].faults(handover_wrong_room=True)
    for _ in range(2):
        assert ask(fleet.front).whole
    fleet.idle()
    assert fleet.prefill[0].seen("passed") == []


@pytest.mark.parametrize("protocol", VLLM)
@pytest.mark.parametrize("fault", ["handover_keeps_nothing", "handover_expired"])
def test_p7_vllm_a_prefill_engine_that_keeps_nothing_is_left_out(two: Make, protocol: str, fault: str) -> None:
    fleet = two(protocol, 2, 2)
    fleet.prefill[0].faults(**{fault: True})
    for _ in range(2):
        assert ask(fleet.front).whole
    assert fleet.prefill[0].seen("lease_released") == []
    fleet.idle()
    for p in fleet.prefill:
        p.faults(**{fault: True})
    answer = ask(fleet.front)
    assert answer.status >= 500
    assert well_formed(answer.error)
    fleet.idle()


@pytest.mark.parametrize("protocol", ONE_OF_EACH)
def test_a_client_that_leaves_before_the_legs_have_met_stops_both(two: Make, protocol: str) -> None:
    fleet = two(protocol, 1, 1)
    (p,), (d,) = fleet.prefill, fleet.decode
    if fleet.sglang:
        d.faults(handover_mute=True)
    else:
        p.faults(prefill_hold=True)
    running = stream(fleet.front)
    begun(p)
    if fleet.sglang:
        begun(d)
    running.close()
    fleet.idle()
    assert len(stopped(p)) == 1
    assert len(stopped(d)) == d.requests == (1 if fleet.sglang else 0)
    assert p.seen("lease") == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_that_leaves_while_the_cache_passes_stops_both(two: Make, protocol: str) -> None:
    """vLLM's blocks are released all the same: the decode leg goes on to its first token, and no further."""
    fleet = two(protocol, 1, 1)
    (p,), (d,) = fleet.prefill, fleet.decode
    p.faults(handover_hold=True)
    running = stream(fleet.front, max_tokens=LONG)
    met(d)
    met(p)
    running.close()
    if fleet.sglang:
        fleet.idle()
        assert len(stopped(p)) == len(stopped(d)) == 1
        return
    unanswered(fleet.front)
    p.faults()
    until(lambda: p.seen("lease_released"), within=WITHIN)
    fleet.idle()
    assert len(stopped(d)) == 1


@pytest.mark.parametrize("protocol", VLLM)
def test_vllm_a_client_that_leaves_between_the_legs_strands_no_blocks(two: Make, protocol: str) -> None:
    """The prefill engine keeps them; the decode engine has not come for them yet."""
    fleet = two(protocol, 1, 1)
    (p,), (d,) = fleet.prefill, fleet.decode
    d.faults(handover_mute=True)
    running = stream(fleet.front, max_tokens=LONG)
    until(lambda: p.seen("lease"), within=WITHIN)
    begun(d)
    running.close()
    unanswered(fleet.front)
    assert p.seen("lease_released") == []
    d.faults()
    until(lambda: p.seen("lease_released"), within=WITHIN)
    assert p.seen("lease_expired") == []
    fleet.idle()
    assert len(stopped(d)) == 1


@pytest.mark.parametrize("protocol", ONE_OF_EACH)
def test_a_client_that_leaves_while_it_is_answered_stops_the_decode_engine(two: Make, protocol: str) -> None:
    fleet = two(protocol, 1, 1)
    running = stream(fleet.front, max_tokens=LONG)
    running.until_text()
    running.close()
    fleet.idle()
    assert len(stopped(fleet.decode[0])) == 1
    assert not stopped(fleet.prefill[0])
