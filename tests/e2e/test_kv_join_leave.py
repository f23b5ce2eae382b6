"""Engines bring what their caches hold when they join, and take it with them when they leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginehouse.domain.engine import ProtocolName
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.fleets import FileFleet, Fleet, PodFleet, each_way
from tests.e2e.kube import Cluster
from tests.e2e.kv import Talk, cached, explained, held, ranks, wait_held, wait_kv
from tests.e2e.support import Answer, Engine, Front, Stream, counts
from tests.support import free_port, until

pytestmark = pytest.mark.e2e

EVENTS = {"kv_events_port": 0, "kv_replay_port": 0}
ALL = [ProtocolName.VLLM, ProtocolName.SGLANG, ProtocolName.VLLM_NATIVE]


def turn(engines: list[Engine], talk: Talk, front: Front) -> tuple[Engine, Answer]:
    """Take a turn; the engine that got it, and its answer."""
    before = [engine.requests for engine in engines]
    answer = talk.turn(front)
    (got,) = (engine for engine, was in zip(engines, before, strict=True) if engine.requests > was)
    return got, answer


def served_by(engines: list[Engine], talk: Talk, front: Front) -> Engine:
    return turn(engines, talk, front)[0]


def first_turn_on(front: Front, engine: Engine, engines: list[Engine], topic: str) -> Talk:
    """A conversation whose first turn went to this engine: equals are chosen at random, so some are tried."""
    for number in range(40):
        talk = Talk(f"{topic} {number}")
        if served_by(engines, talk, front) is engine:
            return talk
    raise AssertionError(f"{engine.name} got none of forty prompts that nobody holds")


@each_way("file", "pods:delete", "pods:gone", "pods:unready")
def test_m1_join_brings_knowledge_and_leave_takes_it(fleet: Fleet) -> None:
    """Start with A; add B: second turns go where the first ones are; remove A: nothing of A's is scored or sent."""
    a, b = (fleet.engine(name, protocol=ProtocolName.SGLANG, **EVENTS).run() for name in "ab")
    fleet.add(a)
    front = fleet.front(policy="kv")
    wait_kv(front, a, trust="synced", policy="events")
    of_a = Talk("of a")
    assert served_by([a, b], of_a, front) is a

    fleet.add(b)
    front.wait_state(b, "serving")
    wait_kv(front, a, b, trust="synced", policy="events")
    of_b = first_turn_on(front, b, [a, b], "of b")
    for owner, talk in ((a, of_a), (b, of_b), (a, of_a), (b, of_b)):
        predicted = wait_held(front, owner, talk)
        assert len(held(front, talk)) == 2
        assert served_by([a, b], talk, front) is owner
        assert predicted > 100

    a.faults(stall_after_tokens=2)  # until the test has seen it drain
    stream = Stream(front, of_a.body(stream=True, max_tokens=40))
    stream.until_text()
    assert a.open == 1
    fleet.remove(a)
    front.wait_state(a, "draining", "unready")
    assert set(held(front, of_a)) == {b.url}
    assert explained(front, of_a)["considered"] == 1
    assert counts([a, b], lambda: [of_a.turn(front), of_b.turn(front), Talk("new").turn(front)]) == [0, 3]
    a.faults()
    assert stream.rest().whole
    front.wait_state(a, None, "gone", "unready")
    if front.state(a) != "unready":  # that one may come back, and is known until it is given up
        until(lambda: not ranks(front, a))
        assert front.page()["kv_index"]["blocks"] == sum(rank["blocks"] for rank in ranks(front, b))
    front.wait_idle()


@pytest.mark.parametrize("protocol", ALL)
def test_a_second_turn_is_predicted_exactly(protocol: ProtocolName, engine: MakeEngine, front: MakeFront) -> None:
    """Of two engines, over each of the protocols: what is predicted is what the engine then reports."""
    a, b = (engine(name, protocol=protocol, hash_seed=name, **EVENTS).run() for name in "ab")
    running = front("--engine", a.url, "--engine", b.url, policy="kv")
    for one in (a, b):
        running.wait_state(one, "serving")
    talks = [Talk(f"topic {number}") for number in range(4)]
    owners = [served_by([a, b], talk, running) for talk in talks]
    for number in range(2):
        for talk, owner in zip(talks, owners, strict=True):
            # The answer's own blocks too: text that is encoded again gives the same ids here, but for its last word.
            predicted = wait_held(running, owner, talk, 160 + 16 * number)
            assert {url: tokens for url, tokens in held(running, talk).items() if tokens} == {owner.url: predicted}
            got, answer = turn([a, b], talk, running)
            assert got is owner
            assert cached(answer) == predicted
    for owner in {owner.url: owner for owner in owners}.values():
        (rank,) = ranks(running, owner)
        assert rank["predicted_cached_tokens"] == rank["reported_cached_tokens"] > 0
        assert (rank["trust"], rank["policy"], rank["verdict"]) == ("synced", "events", "right")


@pytest.mark.parametrize("protocol", [ProtocolName.SGLANG, ProtocolName.VLLM_NATIVE])
def test_k9_a_frontend_that_starts_late_learns_what_others_have_sent(
    protocol: ProtocolName, engine: MakeEngine, front: MakeFront
) -> None:
    """It sent nothing itself: all that it knows it has from the replay."""
    a, b = (engine(name, protocol=protocol, **EVENTS).run() for name in "ab")
    both = ("--engine", a.url, "--engine", b.url)
    other = front(*both)
    for one in (a, b):
        other.wait_state(one, "serving")
    talks = [Talk(f"topic {number}") for number in range(2)]
    owners = [served_by([a, b], talk, other) for talk in talks]
    assert {one.name for one in owners} == {"a", "b"}
    late = front(*both, policy="kv")
    wait_kv(late, a, b, trust="synced")
    for talk, owner in zip(talks, owners, strict=True):
        predicted = wait_held(late, owner, talk, 160)
        got, answer = turn([a, b], talk, late)
        assert got is owner
        assert cached(answer) == predicted


def test_k7_a_second_turn_goes_to_the_rank_that_holds_the_first(engine: MakeEngine, front: MakeFront) -> None:
    a = engine("a", protocol=ProtocolName.SGLANG, ranks=2, **EVENTS).run()
    running = front("--engine", a.url, policy="kv")
    wait_kv(running, a, trust="synced")
    assert [rank["rank"] for rank in ranks(running, a)] == [0, 1]
    talks = [Talk(f"topic {number}") for number in range(6)]
    for talk in talks:
        talk.turn(running)
    first = [line["rank"] for line in a.seen("request")]
    for talk in talks:
        predicted = wait_held(running, a, talk, 160)
        assert cached(talk.turn(running)) == predicted
    assert [line["rank"] for line in a.seen("request")][6:] == first


def test_k5_other_hashes_and_other_block_sizes_side_by_side(
    tmp_path: Path, engine: MakeEngine, front: MakeFront
) -> None:
    """The same tokens are held by both; each counts in its own blocks and by its own hashes."""
    fleet = FileFleet(tmp_path, engine, front)
    a = fleet.engine("a", protocol=ProtocolName.SGLANG, hash_seed="a", block_size=16, info_block_size=64, **EVENTS)
    b = fleet.engine("b", protocol=ProtocolName.VLLM_NATIVE, hash_seed="b", block_size=64, **EVENTS)
    talk = Talk("the same")
    fleet.add(a.run())
    running = fleet.front(policy="kv")
    assert served_by([a, b.run()], talk, running) is a
    fleet.remove(a)
    running.wait_state(a, None, "gone")
    fleet.add(b)
    running.wait_state(b, "serving")
    del talk.messages[1:]
    assert served_by([a, b], talk, running) is b
    fleet.add(a)
    running.wait_state(a, "serving")
    wait_kv(running, a, b, trust="synced")
    del talk.messages[1:]
    least = explained(running, talk)["prompt_tokens"] - 1
    assert wait_held(running, a, talk, 16) == least // 16 * 16
    assert wait_held(running, b, talk, 64) == least // 64 * 64
    assert ranks(running, a)[0]["block_sizes_disagree"] is True
    assert ranks(running, a)[0]["block_size"] == 16
    assert ranks(running, b)[0]["block_sizes_disagree"] is False
    assert cached(talk.turn(running)) in (least // 16 * 16, least // 64 * 64)


@pytest.mark.rig("kube")
def test_three_pods_one_leaves_and_comes_back_and_one_restarts_in_place(pods: PodFleet, cluster: Cluster) -> None:
    """K2 and D6: a pod that is replaced, and a container that is restarted at the same address, hold nothing."""
    events, past = free_port(), free_port()
    options = {"kv_events_port": events, "kv_replay_port": past}
    kinds = dict(zip("abc", (ProtocolName.VLLM, ProtocolName.SGLANG, ProtocolName.VLLM_NATIVE), strict=True))
    engines = [pods.engine(name, protocol=kind, **options).run() for name, kind in kinds.items()]
    front = pods_front(pods, engines)
    talks = [first_turn_on(front, one, engines, f"of {one.name}") for one in engines]
    for one, talk in zip(engines, talks, strict=True):
        wait_held(front, one, talk, 100)
        assert served_by(engines, talk, front) is one

    a, b, c = engines
    first = front.engine(a)
    pods.remove(a)
    front.wait_state(a, "unready", "draining", "gone", None)
    cluster.pods.gone(pods.name(a))
    until(lambda: not ranks(front, a))
    assert a.url not in held(front, talks[0])
    assert counts(engines, lambda: talks[0].turn(front))[0] == 0
    assert a.child is not None
    a.child.end()
    pods.add(a.run())
    front.wait_state(a, "serving")
    assert (front.engine(a) or {})["incarnation"] != (first or {})["incarnation"]
    assert held(front, talks[0])[a.url] == 0

    before = front.engine(b)
    wait_held(front, b, talks[1], 100)
    assert b.child is not None
    b.child.end()
    b.run()
    cluster.pods.restart(pods.name(b), merged=True)
    until(lambda: (front.engine(b) or {}).get("incarnation") not in (None, (before or {})["incarnation"]))
    front.wait_state(b, "serving")
    assert held(front, talks[1])[b.url] == 0
    assert ranks(front, b)[0]["blocks"] == 0
    assert held(front, talks[2])[c.url] > 100
    front.wait_idle()


def pods_front(pods: PodFleet, engines: list[Engine]) -> Front:
    for one in engines:
        pods.add(one)
    front = pods.front(policy="kv")
    for one in engines:
        front.wait_state(one, "serving")
    return front
