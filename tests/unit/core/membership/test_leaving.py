"""From serving to gone: withdrawal, drain, replacement, and what late words do (nothing)."""

from __future__ import annotations

import pytest

from enginehouse.core.membership.events import CheckFailed, CheckPassed, Doubt, Doubted, Event, Probed, ProbeRefused
from enginehouse.core.membership.intents import CloseEngine, CutStreams, Drain, Intent, StartProbe
from enginehouse.core.membership.roles import Topology
from enginehouse.core.membership.states import Cause, State
from enginehouse.domain.engine import Role

from .playbook import Playbook, info, wanted


def _draining(play: Playbook, engine_id: str) -> list[int]:
    slot = play.fleet.slots.get(engine_id)
    return [] if slot is None else [entry.incarnation for entry in slot.draining]


def test_d4_a_bare_deletion_withdraws_at_once() -> None:
    play = Playbook()
    number = play.serve("a")
    assert play.delete("a") == [Drain("a", number)]
    assert not play.serving


def test_d1_missing_from_a_listing_withdraws() -> None:
    play = Playbook()
    number = play.serve("a")
    play.serve("b", "10.0.0.2:9000")
    assert play.list(wanted("b", "10.0.0.2:9000")) == [Drain("a", number)]
    assert play.serving == {"b"}


def test_d11_terminating_takes_no_new_work_and_keeps_its_streams() -> None:
    play = Playbook()
    number = play.serve("a")
    assert play.apply(wanted("a", eligible=False, reason="terminating")) == []
    assert play.state("a") is State.UNREADY
    assert play.reason("a") == "terminating"
    assert play.delete("a") == [Drain("a", number)]
    assert play.idle("a", number) == [CloseEngine("a", number)]


def test_m1_the_link_closes_after_the_last_stream_and_not_before() -> None:
    play = Playbook()
    number = play.serve("a")
    play.delete("a")
    assert play.wait(299) == []
    assert play.idle("a", number) == [CloseEngine("a", number)]
    assert not play.fleet.slots
    assert play.fleet.wake_at is None


def test_the_drain_deadline_cuts_then_closes_whatever_happens() -> None:
    play = Playbook()
    number = play.serve("a")
    play.delete("a")
    assert play.wait(300) == [CutStreams("a", number)]
    assert play.wait(5) == [CloseEngine("a", number)]
    assert not play.fleet.slots


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(wanted("a", "10.0.0.1:9001"), id="port"),
        pytest.param(wanted("a", "10.0.0.7:9000"), id="address"),
        pytest.param(wanted("a", generation="restarted"), id="restart-count"),
        pytest.param(wanted("a", role=Role.AGGREGATED), id="role"),
    ],
)
def test_d6_another_process_or_address_is_another_incarnation(changed: object) -> None:
    play = Playbook()
    old = play.serve("a")
    intents = play.apply(changed)  # type: ignore[arg-type]
    new = play.number("a")
    assert new > old
    assert intents == [Drain("a", old), StartProbe("a", new, changed.target)]  # type: ignore[attr-defined]
    assert not play.serving
    play.probed("a")
    assert play.serving == {"a"}
    assert _draining(play, "a") == [old]
    assert play.idle("a", old) == [CloseEngine("a", old)]
    assert play.serving == {"a"}


def test_m11_remove_then_add_leaves_the_newcomer_whatever_arrives_late() -> None:
    play = Playbook()
    old = play.serve("a")
    play.delete("a")
    play.apply(wanted("a"))
    new = play.number("a")
    play.probed("a")
    late: list[Event] = [
        Doubted("a", old, Doubt.LOST, "late"),
        CheckFailed("a", old, "late"),
        CheckPassed("a", old, info(model="late")),
        ProbeRefused("a", old, "late"),
    ]
    for event in late:
        assert play.say(event) == []
    assert play.ignored == len(late)
    assert play.state("a") is State.SERVING
    assert play.idle("a", old) == [CloseEngine("a", old)]
    assert play.idle("a", old) == []
    assert play.say(Probed("a", old, info())) == [CloseEngine("a", old)]
    assert (play.state("a"), play.number("a")) == (State.SERVING, new)


def test_d14_flapping_costs_no_probe_and_no_new_reading() -> None:
    play = Playbook()
    number = play.serve("a")
    asked: list[Intent] = []
    for _ in range(20):
        asked += play.apply(wanted("a", eligible=False))
        assert not play.serving
        asked += play.wait(0.25)
        asked += play.apply(wanted("a"))
        assert play.serving == {"a"}
        asked += play.wait(0.25)
    assert asked == []
    assert play.number("a") == number


def test_an_unready_engine_is_given_up_after_a_while_and_probed_anew() -> None:
    play = Playbook()
    old = play.serve("a")
    play.apply(wanted("a", eligible=False, reason="not ready"))
    assert play.wait(59.9) == []
    assert play.wait(0.1) == [Drain("a", old)]
    assert play.state("a") is State.WAITING
    assert play.reason("a") == "not ready"
    play.apply(wanted("a"))
    assert play.state("a") is State.PROBING
    assert play.number("a") > old


def test_d9_after_each_removal_list_and_links_shrink() -> None:
    play = Playbook()
    numbers = {name: play.serve(name, f"10.0.0.{i}:9000") for i, name in enumerate("abc", 1)}
    for left, name in ((2, "a"), (1, "b"), (0, "c")):
        play.delete(name)
        assert play.idle(name, numbers[name]) == [CloseEngine(name, numbers[name])]
        assert len(play.serving) == len(play.fleet.slots) == left
    assert play.delete("unknown") == []


def test_d8_wanted_by_two_feeds_at_once_it_serves_in_neither() -> None:
    play = Playbook()
    old = play.serve("a")
    both = play.apply(wanted("a", role=Role.AGGREGATED), feed="prefill")
    assert both == []
    assert play.state("a") is State.UNREADY
    assert play.reason("a") == "wanted by pods and prefill in different ways"
    assert play.delete("a", feed="prefill") == []
    assert play.serving == {"a"}
    assert play.number("a") == old


def test_d8_moving_to_the_other_pool_in_either_order() -> None:
    for first in ("leave", "join"):
        play = Playbook(topology=Topology.DISAGGREGATED)
        old = play.serve("a")
        moves = {
            "leave": lambda play=play: play.delete("a"),
            "join": lambda play=play: play.apply(wanted("a", role=Role.PREFILL, generation="p"), feed="prefill"),
        }
        moves.pop(first)()
        assert not play.serving
        next(iter(moves.values()))()
        assert play.state("a") is State.PROBING
        assert play.number("a") > old
        play.probed("a")
        assert play.entry("a").role is Role.PREFILL


def test_feeds_that_agree_are_as_one() -> None:
    play = Playbook()
    number = play.serve("a")
    assert play.list(wanted("a", generation="other words"), feed="file") == []
    assert play.delete("a") == []
    assert play.serving == {"a"}
    assert play.number("a") == number
    assert play.delete("a", feed="file") == [Drain("a", number)]


def test_an_address_belongs_to_the_engine_that_came_to_it_last() -> None:
    play = Playbook()
    play.serve("old", "10.0.0.1:9000")
    play.apply(wanted("new", "10.0.0.1:9000", eligible=False))
    assert play.serving == {"old"}
    play.apply(wanted("new", "10.0.0.1:9000"))
    assert play.state("old") is State.UNREADY
    assert play.reason("old") == "its address 10.0.0.1:9000 now belongs to ns/new"
    play.probed("new")
    assert play.serving == {"new"}
    play.delete("old")
    assert play.serving == {"new"}


def test_leaving_withdraws_everything_and_listens_to_no_feed() -> None:
    play = Playbook()
    a = play.serve("a")
    b = play.serve("b", "10.0.0.2:9000")
    play.apply(wanted("c", "10.0.0.3:9000"))
    play.delete("b")
    play.leave(10)
    assert not play.serving
    assert play.list(wanted("d", "10.0.0.4:9000")) == []
    assert play.idle("a", a) == [CloseEngine("a", a)]
    assert play.wait(10) == [CutStreams("b", b)]
    play.idle("b", b)
    assert not play.fleet.slots


def test_every_move_is_told_with_its_cause() -> None:
    play = Playbook()
    number = play.serve("a")
    play.delete("a")
    play.idle("a", number)
    assert [(move.was, move.cause, move.now) for move in play.moves] == [
        (State.WAITING, Cause.MAY_SERVE, State.PROBING),
        (State.PROBING, Cause.PROBED, State.SERVING),
        (State.SERVING, Cause.LET_GO, State.DRAINING),
        (State.DRAINING, Cause.IDLE, State.GONE),
    ]
