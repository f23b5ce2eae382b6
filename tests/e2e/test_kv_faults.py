"""Each way in which KV events go wrong: what is believed, that nothing is credited wrongly, and that it is told."""

from __future__ import annotations

from typing import Any

import pytest

from enginehouse.core.kv.accuracy import WINDOW
from enginehouse.domain.engine import ProtocolName
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.kv import Page, Talk, cached, explained, heard, held, ranks, wait_held, wait_kv
from tests.e2e.support import Engine, Front
from tests.support import until

pytestmark = pytest.mark.e2e

LIVE_ONLY = {"kv_events_port": 0}
WITH_REPLAY = {"kv_events_port": 0, "kv_replay_port": 0}
ZMQ = [ProtocolName.SGLANG, ProtocolName.VLLM_NATIVE]
ALL = [*ZMQ, ProtocolName.VLLM]
NOTHING_YET = "connected; nothing has come yet, and there is no replay of what came before"
QUICK = ("--kv-events-replay-idle-limit", "1")


def believed(front: Front, engine: Engine) -> Page:
    (rank,) = ranks(front, engine)
    return rank


def known_turn(front: Front, engine: Engine, topic: str) -> Talk:
    """A first turn whose events have come."""
    talk, before = Talk(topic), heard(front, engine)
    talk.turn(front)
    until(lambda: heard(front, engine) > before)
    return talk


def ask_until_heard(front: Front, engine: Engine) -> None:
    """A stream over the link brings nothing of what came before it, and only what it brings tells that it is there."""
    talk, before = Talk("is somebody there"), heard(front, engine)
    until(lambda: bool(talk.turn(front)) and heard(front, engine) > before)


def wait_not_held(front: Front, engine: Engine, talk: Talk) -> None:
    """Nothing of it is credited, not even for having been sent there a moment ago."""
    until(lambda: held(front, talk)[engine.url] == 0, saying=str(believed(front, engine)))


def synced(engine: MakeEngine, front: MakeFront, protocol: ProtocolName, **options: Any) -> tuple[Engine, Front, Talk]:
    """An engine and a frontend that knows it holds a conversation."""
    one = engine("a", protocol=protocol, **options).run()
    running = front("--engine", one.url, *QUICK, policy="kv")
    if protocol is ProtocolName.VLLM:
        ask_until_heard(running, one)
    elif "kv_replay_port" in options:
        wait_kv(running, one, trust="synced")
    else:
        wait_kv(running, one, trust="none", trust_reason=NOTHING_YET)
    talk = known_turn(running, one, "before")
    assert wait_kv(running, one, trust="synced", policy="events")["blocks"] > 0
    return one, running, talk


@pytest.mark.parametrize("protocol", ZMQ)
def test_k4_a_gap_that_nothing_can_fill_credits_nothing_of_before(
    protocol: ProtocolName, engine: MakeEngine, front: MakeFront
) -> None:
    one, running, old = synced(engine, front, protocol, **LIVE_ONLY)
    one.faults(kv_drop_batches=1)
    for topic in ("lost", "shows that it was"):
        Talk(topic).turn(running, max_tokens=1)  # one batch
    rank = wait_kv(running, one, gaps=1, lost=1, trust="gap", policy="approximate")
    assert "cannot be had again" in rank["policy_reason"]
    Talk("in order again").turn(running, max_tokens=1)
    rank = wait_kv(running, one, gaps=1, lost=1, trust="partial", policy="events")
    assert "did not come" in rank["trust_reason"]
    wait_not_held(running, one, old)
    fresh = known_turn(running, one, "fresh")
    predicted = wait_held(running, one, fresh, 160)
    assert cached(fresh.turn(running)) == predicted


@pytest.mark.parametrize("protocol", ZMQ)
def test_k4_a_gap_is_filled_by_a_replay(protocol: ProtocolName, engine: MakeEngine, front: MakeFront) -> None:
    one, running, old = synced(engine, front, protocol, **WITH_REPLAY)
    one.faults(kv_drop_batches=1)
    missed = Talk("missed")
    missed.turn(running)
    Talk("after the gap").turn(running)
    wait_kv(running, one, gaps=1, trust="synced", policy="events", lost=0)
    wait_kv(running, one, expected_blocks=0)
    for talk in (old, missed):
        predicted = wait_held(running, one, talk, 160)
        assert cached(talk.turn(running)) == predicted


@pytest.mark.parametrize("protocol", ALL)
def test_k2_a_publisher_that_restarts_at_zero_holds_nothing(
    protocol: ProtocolName, engine: MakeEngine, front: MakeFront
) -> None:
    one, running, old = synced(engine, front, protocol, **WITH_REPLAY)
    assert wait_held(running, one, old, 160)
    one.faults(kv_restarts=1, kv_restart_forgets=True)
    if protocol is ProtocolName.VLLM:
        ask_until_heard(running, one)
    fresh = known_turn(running, one, "fresh")
    wait_not_held(running, one, old)
    wait_kv(running, one, policy="events")
    assert cached(old.turn(running)) == 0
    predicted = wait_held(running, one, fresh, 160)
    assert cached(fresh.turn(running)) == predicted


def test_k2_an_engine_that_was_killed_and_started_again_holds_nothing(engine: MakeEngine, front: MakeFront) -> None:
    """The port is the same, the numbers begin anew, and the connection was restored in between."""
    one, running, old = synced(engine, front, ProtocolName.SGLANG, **WITH_REPLAY)
    first = running.engine(one)
    one.kill()
    running.wait_state(one, "suspect", "failed", "probing")
    one.run()
    running.wait_state(one, "serving")
    assert (running.engine(one) or {})["incarnation"] != (first or {})["incarnation"]
    assert held(running, old)[one.url] == 0


@pytest.mark.parametrize("protocol", ZMQ)
def test_k6_events_that_cannot_be_reached_are_told_and_do_without(
    protocol: ProtocolName, engine: MakeEngine, front: MakeFront
) -> None:
    """Second turns still go where the first ones went: by what was sent, and the page says so."""
    a, b = (engine(name, protocol=protocol, kv_unreachable=True, **WITH_REPLAY).run() for name in "ab")
    running = front("--engine", a.url, "--engine", b.url, policy="kv")
    for one in (a, b):
        running.wait_state(one, "serving")
        rank = wait_kv(running, one, trust="none", policy="approximate")
        until(lambda one=one: "cannot be reached" in believed(running, one)["policy_reason"])  # type: ignore[misc]
        assert rank["event_age_seconds"] is None
    talks = [Talk(f"topic {number}") for number in range(4)]
    for talk in talks:
        talk.turn(running)
    wait_kv(running, a, b, expected_blocks=0)
    for talk in talks:
        predicted = max(held(running, talk).values())
        assert cached(talk.turn(running)) == predicted >= 160


def test_k6_a_publisher_that_fell_silent_is_found_out(engine: MakeEngine, front: MakeFront) -> None:
    """Silence itself is normal. That the engine finds what its events never told of is not."""
    one, running, _ = synced(engine, front, ProtocolName.SGLANG, **WITH_REPLAY)
    one.faults(kv_silent=True)
    batches = heard(running, one)
    talks = [Talk(f"unheard {number}") for number in range(WINDOW)]
    for talk in talks:
        talk.turn(running)
    wait_kv(running, one, expected_blocks=0)  # what was sent a moment ago excuses events that are late
    for talk in talks:
        assert cached(talk.turn(running)) >= 160
    rank = wait_kv(running, one, verdict="blind", policy="approximate")
    assert "told of less than half" in rank["policy_reason"]
    assert rank["batches"] == batches
    assert held(running, talks[0])[one.url] >= 160


def test_k6_an_engine_that_lies_is_not_believed_until_it_is_honest_again(engine: MakeEngine, front: MakeFront) -> None:
    one, running, talk = synced(engine, front, ProtocolName.SGLANG, **WITH_REPLAY)
    one.faults(kv_lies=True)
    for _ in range(2 * WINDOW):
        if believed(running, one)["verdict"] == "wrong":
            break
        del talk.messages[1:]
        assert cached(talk.turn(running)) == 0
    rank = wait_kv(running, one, verdict="wrong", policy="approximate")
    assert "less than half of what its events promised" in rank["policy_reason"]
    one.faults()
    # What it told is fetched anew, and promises nothing that could prove right until it is there.
    wait_kv(running, one, verdict="wrong", trust="synced")
    for _ in range(3 * WINDOW):
        if believed(running, one)["verdict"] == "right":
            break
        del talk.messages[1:]
        assert cached(talk.turn(running)) >= 160
    wait_kv(running, one, verdict="right", policy="events", policy_reason=None, trust="synced")


@pytest.mark.parametrize("protocol", ZMQ)
def test_a_replay_that_no_longer_has_the_beginning_is_partial(
    protocol: ProtocolName, engine: MakeEngine, front: MakeFront
) -> None:
    one = engine("a", protocol=protocol, kv_buffer_batches=1, **WITH_REPLAY).run()
    other = front("--engine", one.url)
    forgotten, last = Talk("forgotten"), Talk("last")
    for talk in (forgotten, last):
        talk.turn(other, max_tokens=1)  # one batch: the prompt
    late = front("--engine", one.url, policy="kv")
    rank = wait_kv(late, one, trust="partial", policy="events")
    assert rank["trust_reason"]
    predicted = wait_held(late, one, last, 160)
    assert held(late, forgotten)[one.url] == 0
    assert cached(last.turn(late)) == predicted
    assert cached(forgotten.turn(late)) >= 160  # more than was known, never less


def test_a_replay_that_does_not_come_credits_nothing_yet(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a", protocol=ProtocolName.SGLANG, kv_replay_mute=True, **WITH_REPLAY).run()
    running = front("--engine", one.url, policy="kv")
    rank = wait_kv(running, one, trust="replaying", policy="approximate")
    assert rank["policy_reason"]
    talk = Talk("meanwhile")
    talk.turn(running)
    wait_kv(running, one, trust="replaying", blocks=0, expected_blocks=0)
    assert cached(talk.turn(running)) >= 160


@pytest.mark.parametrize("protocol", ALL)
def test_k5_an_engine_that_tells_a_wrong_block_size_is_taken_by_its_events(
    protocol: ProtocolName, engine: MakeEngine, front: MakeFront
) -> None:
    one, running, talk = synced(engine, front, protocol, info_block_size=64, **WITH_REPLAY)
    rank = believed(running, one)
    assert (rank["block_size"], rank["block_sizes_disagree"]) == (16, True)
    wait_kv(running, one, expected_blocks=0)
    tokens = explained(running, talk)["prompt_tokens"]
    predicted = wait_held(running, one, talk, 160)
    assert tokens - 64 < predicted < tokens
    assert cached(talk.turn(running)) == predicted


@pytest.mark.parametrize("protocol", ZMQ)
def test_a_malformed_event_costs_itself_alone(protocol: ProtocolName, engine: MakeEngine, front: MakeFront) -> None:
    one, running, _ = synced(engine, front, protocol, kv_malformed=True, **WITH_REPLAY)
    rank = wait_kv(running, one, trust="synced", policy="events")
    assert rank["malformed"] >= rank["batches"] > 0
    talk = known_turn(running, one, "more")
    predicted = wait_held(running, one, talk, 160)
    assert cached(talk.turn(running)) == predicted


@pytest.mark.parametrize("protocol", ZMQ)
def test_a_batch_that_cannot_be_read_costs_what_was_known_before(
    protocol: ProtocolName, engine: MakeEngine, front: MakeFront
) -> None:
    """It may have removed any of that."""
    one, running, old = synced(engine, front, protocol, **WITH_REPLAY)
    one.faults(kv_garbage_batches=1)
    Talk("unreadable").turn(running)
    wait_kv(running, one, malformed=1, lost=1)
    fresh = known_turn(running, one, "fresh")
    wait_kv(running, one, trust="partial")
    wait_not_held(running, one, old)
    predicted = wait_held(running, one, fresh, 160)
    assert cached(fresh.turn(running)) == predicted


def test_old_encodings_and_replays_of_three_frames(engine: MakeEngine, front: MakeFront) -> None:
    """SGLang before 0.5.18: arrays, and nothing but its options says where they come from."""
    one, running, talk = synced(engine, front, ProtocolName.SGLANG, kv_events_old=True, **WITH_REPLAY)
    wait_kv(running, one, expected_blocks=0)
    predicted = wait_held(running, one, talk, 160)
    assert cached(talk.turn(running)) == predicted
    late = front("--engine", one.url, policy="kv")
    wait_kv(late, one, trust="synced")
    assert wait_held(late, one, talk, 160)


def test_events_where_only_the_operator_says_so(engine: MakeEngine, front: MakeFront) -> None:
    """ZMQ of a vLLM whose servicer relays it too: the address names the port, and its replay gives the history."""
    one = engine("a", protocol=ProtocolName.VLLM, kv_events_port=0, kv_replay_port=0).run()
    assert one.child is not None
    line = one.child.wait_line("KV events")
    live, past = (part.rsplit(":", 1)[1] for part in line.replace(",", "").split() if part.startswith("tcp://"))
    talk = Talk("from before")
    talk.turn(front("--engine", one.url))
    late = front("--engine", f"{one.url}?kv-events-port={live}&kv-replay-port={past}", policy="kv")
    wait_kv(late, one, trust="synced", policy="events")
    predicted = wait_held(late, one, talk, 160)
    assert cached(talk.turn(late)) == predicted
