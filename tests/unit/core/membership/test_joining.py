"""From wanted to serving: probes, their repetition and their end."""

from __future__ import annotations

import pytest

from enginehouse.core.membership.events import Probed
from enginehouse.core.membership.intents import CancelProbe, CloseEngine, Drain, StartProbe
from enginehouse.core.membership.settings import MembershipSettings, pause
from enginehouse.core.membership.states import State
from enginehouse.domain.engine import Target

from .playbook import Playbook, info, wanted


def test_d12_nothing_is_routable_before_its_probe_passed() -> None:
    play = Playbook()
    assert play.apply(wanted("a")) == [StartProbe("a", play.number("a"), Target("10.0.0.1", 9000))]
    assert play.state("a") is State.PROBING
    assert not play.serving
    play.refused("a")
    assert not play.serving
    play.wait(0.1)
    play.probed("a")
    assert play.serving == {"a"}


def test_pods_that_may_not_serve_are_shown_with_their_reason_and_not_probed() -> None:
    play = Playbook()
    assert play.list(wanted("a", eligible=False, reason="phase Pending"), wanted("b", None, reason="no IP yet")) == []
    assert play.state("a") is play.state("b") is State.WAITING
    assert play.reason("a") == "phase Pending"
    assert play.reason("b") == "no IP yet"


def test_d13_twenty_refusals_then_it_joins_without_a_new_event() -> None:
    play = Playbook()
    play.apply(wanted("a"))
    for failures in range(1, 21):
        assert play.refused("a") == []
        entry = play.entry("a")
        assert (entry.state, entry.reason, entry.failures) == (State.FAILED, "connection refused", failures)
        assert entry.next_at is not None
        assert play.wait(entry.next_at - play.now) == [StartProbe("a", entry.incarnation, Target("10.0.0.1", 9000))]
    play.probed("a")
    assert play.serving == {"a"}


def test_d13_deleting_while_probing_ends_the_probe() -> None:
    play = Playbook()
    play.apply(wanted("a"))
    number = play.number("a")
    assert play.delete("a") == [CancelProbe("a", number)]
    assert not play.fleet.slots
    assert play.fleet.wake_at is None
    assert play.say(Probed("a", number, info())) == [CloseEngine("a", number)]


def test_d13_deleting_between_probes_leaves_nothing() -> None:
    play = Playbook()
    play.apply(wanted("a"))
    play.refused("a")
    play.delete("a")
    assert not play.fleet.slots
    assert play.wait(100) == []


def test_a_pod_that_turns_unready_while_probed_gets_a_new_number_for_the_next_probe() -> None:
    play = Playbook()
    play.apply(wanted("a"))
    first = play.number("a")
    assert play.apply(wanted("a", eligible=False)) == [CancelProbe("a", first)]
    assert play.state("a") is State.WAITING
    assert play.say(Probed("a", first, info())) == [CloseEngine("a", first)]
    assert play.state("a") is State.WAITING
    play.apply(wanted("a"))
    assert play.number("a") > first
    play.probed("a")
    assert play.serving == {"a"}


def test_a_permanent_failure_only_stretches_the_pause() -> None:
    play = Playbook()
    play.apply(wanted("a"))
    play.refused("a", "port answers HTTP, not gRPC", permanent=True)
    assert play.entry("a").next_at == pytest.approx(1.0)
    for _ in range(10):
        play.wait(40)
        play.refused("a", "port answers HTTP, not gRPC", permanent=True)
    assert play.entry("a").next_at == pytest.approx(play.now + 30)
    play.wait(40)
    play.probed("a")
    assert play.serving == {"a"}


@pytest.mark.parametrize(
    ("failures", "permanent", "chance", "seconds"),
    [
        (1, False, 0.0, 0.1),
        (2, False, 0.0, 0.2),
        (6, False, 0.0, 3.2),
        (7, False, 0.0, 5.0),
        (1000000, False, 0.0, 5.0),
        (1, True, 0.0, 1.0),
        (99, True, 0.0, 30.0),
        (99, True, 0.5, 30.0 * 0.875),
    ],
)
def test_pauses(failures: int, permanent: bool, chance: float, seconds: float) -> None:
    assert pause(MembershipSettings(), failures, permanent=permanent, chance=chance) == pytest.approx(seconds)


@pytest.mark.parametrize("bad", [{"drain_timeout": -1.0}, {"retry_jitter": 1.5}])
def test_settings_that_cannot_be_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        MembershipSettings(**bad)


def test_a_pod_without_eligibility_gets_an_address_and_then_serves() -> None:
    play = Playbook()
    play.apply(wanted("a", None, generation="no address"))
    play.apply(wanted("a", "10.0.0.9:9000", generation="address"))
    play.probed("a")
    assert play.entry("a").target == Target("10.0.0.9", 9000)


def test_said_twice_is_said_once() -> None:
    play = Playbook()
    play.apply(wanted("a"))
    before = play.fleet
    assert play.apply(wanted("a")) == []
    assert play.list(wanted("a")) == []
    assert play.fleet.slots == before.slots


def test_adoption_the_first_listing_withdraws_what_is_gone() -> None:
    play = Playbook()
    number = play.serve("first")
    assert Drain("first", number) in play.list(wanted("second", "10.0.0.2:9000"))
    assert not play.serving
    assert play.state("first") is None
