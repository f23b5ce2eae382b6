"""Engines that serve and come into doubt: out at once, checked, back or replaced."""

from __future__ import annotations

import pytest

from enginehouse.core.membership.events import Doubt
from enginehouse.core.membership.intents import Drain, Forsake, StartCheck, StartProbe
from enginehouse.core.membership.states import State

from .playbook import Playbook, wanted


def _two(**fields: object) -> tuple[Playbook, int]:
    play = Playbook()
    number = play.serve("a", **fields)
    play.serve("b", "10.0.0.2:9000", **fields)
    return play, number


def test_m3_one_transport_failure_takes_it_out_and_a_check_brings_it_back() -> None:
    play, number = _two(instance_id="1")
    assert play.doubted("a") == [StartCheck("a", number, canary=False)]
    assert play.serving == {"b"}
    assert play.reason("a") == "lost"
    assert play.passed("a", instance_id="1") == []
    assert play.serving == {"a", "b"}
    assert play.number("a") == number


def test_a_restarted_process_is_a_new_incarnation() -> None:
    play, old = _two(instance_id="1")
    play.doubted("a")
    intents = play.passed("a", instance_id="2")
    new = play.number("a")
    assert intents == [Drain("a", old), StartProbe("a", new, play.entry("a").target)]  # type: ignore[arg-type]
    assert new > old


@pytest.mark.parametrize(
    ("lost", "fields", "same"),
    [
        pytest.param(True, {}, True, id="lost-says-the-same"),
        pytest.param(True, {"loras": ("x",)}, True, id="lost-adapters-differ"),
        pytest.param(True, {"kv_capacity_tokens": 5}, False, id="lost-says-something-else"),
        pytest.param(False, {"kv_capacity_tokens": 5}, True, id="never-lost"),
        pytest.param(False, {"instance_id": "1"}, False, id="names-itself-now"),
    ],
)
def test_without_an_instance_id_its_own_words_decide(lost: bool, fields: dict[str, object], same: bool) -> None:
    play, number = _two()
    if lost:
        play.doubted("a")
    else:
        play.wait(15)
    play.passed("a", **fields)
    assert (play.number("a") == number) is same


@pytest.mark.parametrize(("fields", "returns"), [({}, 1), ({"instance_id": "1"}, 0)])
def test_k2_what_was_out_of_reach_may_be_another_process_unless_it_names_itself(
    fields: dict[str, object], returns: int
) -> None:
    play, number = _two(**fields)
    play.wait(15)
    play.passed("a", **fields)
    assert play.entry("a").returns == 0, "it was never out of reach"
    play.doubted("a")
    play.passed("a", **fields)
    assert (play.number("a"), play.entry("a").returns) == (number, returns)


def test_g9_a_mute_engine_has_to_generate_before_it_returns() -> None:
    play, number = _two()
    assert play.doubted("a", Doubt.MUTE) == [StartCheck("a", number, canary=True)]
    assert play.serving == {"b"}
    play.failed("a", "no answer to the canary within 20 s")
    assert play.state("a") is State.SUSPECT
    assert play.wait(0.1) == [StartCheck("a", number, canary=True)]
    play.passed("a")
    assert play.serving == {"a", "b"}


def test_g9_the_last_engine_stays_while_it_is_only_slow_and_goes_when_the_canary_fails() -> None:
    play = Playbook()
    number = play.serve("a")
    assert play.doubted("a", Doubt.MUTE) == [StartCheck("a", number, canary=True)]
    assert play.serving == {"a"}
    play.passed("a")
    assert play.serving == {"a"}
    play.doubted("a", Doubt.MUTE)
    play.failed("a")
    assert not play.serving
    play.wait(1)
    play.passed("a")
    assert play.serving == {"a"}


def test_the_last_engine_goes_at_once_when_its_connection_is_lost() -> None:
    play = Playbook()
    play.serve("a")
    play.doubted("a")
    assert not play.serving


def test_doubted_during_its_check_it_is_checked_again() -> None:
    play, number = _two()
    play.doubted("a")
    play.doubted("a")
    assert play.passed("a") == []
    assert play.serving == {"b"}
    assert play.wait(0.1) == [StartCheck("a", number, canary=False)]
    play.passed("a")
    assert play.serving == {"a", "b"}


def test_doubted_during_a_routine_check_the_check_does_not_clear_it() -> None:
    play, number = _two()
    assert StartCheck("a", number, canary=False) in play.wait(15)
    assert play.doubted("a", Doubt.BROKEN) == []
    assert play.passed("a") == [StartCheck("a", number, canary=True)]
    assert play.serving == {"b"}


def test_an_engine_that_keeps_failing_after_good_checks_returns_later_each_time() -> None:
    play, number = _two()
    delays = []
    for _ in range(5):
        intents = play.doubted("a")
        start = play.now
        if not intents:
            assert play.entry("a").next_at is not None
            intents = play.wait((play.entry("a").next_at or 0) - play.now)
        delays.append(round(play.now - start, 3))
        assert intents[-1] in (StartCheck("a", number, canary=True), StartCheck("a", number, canary=False))
        play.passed("a")
    assert delays == [0.0, 0.2, 0.4, 0.8, 1.6]
    play.wait(61)
    assert play.doubted("a")[-1:] == [] or play.entry("a").doubts == 1


def test_a_failed_routine_check_takes_it_out() -> None:
    play, number = _two()
    play.wait(15)
    play.failed("a", "NOT_SERVING")
    assert play.serving == {"b"}
    assert play.reason("a") == "NOT_SERVING"
    assert StartCheck("a", number, canary=False) in play.wait(0.1)


def test_given_up_after_failing_for_long_and_probed_from_the_beginning() -> None:
    play, old = _two()
    play.doubted("a")
    play.failed("a")
    asked = []
    while play.number("a") == old:
        assert play.now < 60
        asked = play.wait(5)
        if play.number("a") == old and play.entry("a").checking:
            asked = play.failed("a")
    assert Drain("a", old) in asked
    assert play.state("a") is State.PROBING
    assert play.now >= 30


def test_a_link_lost_while_unready_is_checked_before_it_serves_again() -> None:
    play, number = _two()
    play.apply(wanted("a", eligible=False))
    assert play.doubted("a") == []
    assert play.apply(wanted("a")) == [StartCheck("a", number, canary=False)]
    assert play.serving == {"b"}
    play.passed("a")
    assert play.serving == {"a", "b"}


def test_a_check_that_ends_after_a_flap_counts_for_what_it_found() -> None:
    play, number = _two()
    play.wait(15)
    play.apply(wanted("a", eligible=False))
    play.apply(wanted("a"))
    assert play.serving == {"a", "b"}
    play.failed("a")
    assert play.serving == {"b"}
    assert play.number("a") == number


def test_a_refused_engine_whose_link_breaks_is_probed_anew() -> None:
    play, _ = _two()
    play.apply(wanted("c", "10.0.0.3:9000"))
    play.probed("c", model="other")
    old = play.number("c")
    play.doubted("c")
    assert play.wait(0.1) == [StartCheck("c", old, canary=False)]
    intents = play.failed("c")
    assert intents[0] == Drain("c", old)
    assert play.state("c") is State.PROBING


def test_g9_giving_up_a_mute_engine_does_not_spare_its_successor_the_canary() -> None:
    play, old = _two()
    play.doubted("a", Doubt.MUTE)
    play.wait(31)
    assert Drain("a", old) in play.failed("a", "no answer to the canary")
    new = play.number("a")
    assert play.probed("a") == [StartCheck("a", new, canary=True)]
    assert play.state("a") is State.SUSPECT
    assert play.serving == {"b"}
    play.passed("a")
    assert play.serving == {"a", "b"}


def test_doubted_again_during_a_slow_check_it_does_not_wake_for_nothing() -> None:
    play, number = _two()
    play.doubted("a")
    play.doubted("a")
    assert play.wait(3) == []
    assert play.passed("a") == [StartCheck("a", number, canary=False)]


def test_never_two_checks_of_one_engine_at_once() -> None:
    play, number = _two()
    assert StartCheck("a", number, canary=False) in play.wait(15)
    play.apply(wanted("a", eligible=False))
    play.apply(wanted("a"))
    assert play.serving == {"a", "b"}
    assert play.wait(60) == []
    play.apply(wanted("a", eligible=False))
    play.doubted("a")
    assert play.apply(wanted("a")) == []
    assert play.state("a") is State.SUSPECT
    assert play.passed("a") == [StartCheck("a", number, canary=False)]


def test_a_suspect_whose_model_the_fleet_has_left_has_no_say_in_the_card() -> None:
    play = Playbook()
    play.serve("a")
    play.apply(wanted("a", eligible=False))
    play.serve("b", "10.0.0.2:9000", context_length=8192)
    play.doubted("a")
    play.apply(wanted("a"))
    assert play.state("a") is State.SUSPECT
    assert play.fleet.card is not None
    assert play.fleet.card.context_length == 8192
    play.passed("a")
    assert play.state("a") is State.REFUSED


def test_g9_an_engine_that_fails_several_in_a_row_has_to_generate_and_comes_back_later_each_time() -> None:
    play, number = _two()
    assert play.doubted("a", Doubt.FAILING) == [StartCheck("a", number, canary=True)]
    assert play.serving == {"b"}
    waits = []
    for _ in range(3):
        play.passed("a")
        assert play.serving == {"a", "b"}
        assert play.doubted("a", Doubt.FAILING) == []
        begun = play.now
        while not play.wait(0.1):
            pass
        waits.append(round(play.now - begun, 1))
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]


def test_m8_the_last_engine_stays_while_requests_may_be_at_fault_themselves() -> None:
    play = Playbook()
    number = play.serve("a")
    assert play.doubted("a", Doubt.FAILING) == [StartCheck("a", number, canary=True)]
    assert play.serving == {"a"}
    play.failed("a", "the canary failed")
    assert not play.serving


def test_each_failed_check_of_a_member_lets_requests_without_news_go() -> None:
    play, number = _two()
    play.wait(5)
    assert Forsake("a", number) in play.failed("a")
    assert play.state("a") is State.SUSPECT
    play.wait(1)
    assert Forsake("a", number) in play.failed("a")


@pytest.mark.parametrize(("in_a_row", "pause"), [(2, 60), (3, 120), (4, 240), (5, 480), (6, 600), (60, 600)])
def test_p1_an_engine_that_is_mute_only_in_pairs_returns_later_each_time(in_a_row: int, pause: float) -> None:
    play, number = _two()
    assert play.doubted("a", Doubt.UNMET) == [StartCheck("a", number, canary=True)], "once may be the other's fault"
    play.passed("a")
    play.wait(600)  # no matter how long ago that was
    play.passed("a")
    play.doubted("a", Doubt.UNMET, in_a_row)
    assert play.state("a") is State.SUSPECT
    assert StartCheck("a", number, canary=True) not in play.wait(pause - 0.1)
    assert StartCheck("a", number, canary=True) in play.wait(0.1)
    play.passed("a")
    assert play.state("a") is State.SERVING


def test_p1_the_last_engine_of_its_pool_stays_though_its_hand_overs_time_out() -> None:
    play = Playbook()
    play.serve("a")
    play.doubted("a", Doubt.UNMET, 5)
    assert play.serving == {"a"}
