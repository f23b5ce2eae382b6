"""Policies as tables and as distributions over a seeded generator."""

from collections import Counter
from itertools import pairwise
from random import Random
from typing import get_args

import pytest

from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.policy import (
    AllExcluded,
    AllFull,
    Decision,
    PolicyName,
    Router,
    RoutingSettings,
)
from tests.unit.core.routing.fakes import fleet

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


def router(policy: PolicyName, limit: int = 0, seed: int = 1) -> Router:
    return Router(RoutingSettings(policy=policy, max_requests_per_engine=limit), Random(seed))


@pytest.mark.parametrize("policy", POLICIES)
def test_no_candidates(policy: PolicyName) -> None:
    with pytest.raises(AllExcluded):
        router(policy).choose([])


@pytest.mark.parametrize("policy", POLICIES)
def test_m3_excluded_engines_are_never_chosen(policy: PolicyName) -> None:
    candidates = fleet(Ledger(), (0, 0), (5, 50), (9, 90))
    choice = router(policy)
    chosen = {choice.choose(candidates, {("e0", 1)}).chosen.name for _ in range(60)}
    assert chosen <= {"e1", "e2"}
    with pytest.raises(AllExcluded):
        choice.choose(candidates, {("e0", 1), ("e1", 1), ("e2", 1)})


def test_exclusion_is_of_an_incarnation_not_of_a_name() -> None:
    candidates = fleet(Ledger(), (0, 0))
    assert router("random").choose(candidates, {("e0", 7)}).chosen.name == "e0"


@pytest.mark.parametrize("policy", POLICIES)
def test_m9_limit_two_send_five(policy: PolicyName) -> None:
    ledger = Ledger()
    candidates = fleet(ledger, (0, 0), (0, 0))
    choice = router(policy, limit=2)
    for _ in range(4):
        ledger.charge(choice.choose(candidates).chosen, 10, 10)
    with pytest.raises(AllFull):
        choice.choose(candidates)
    assert sorted(c.load.requests for c in candidates) == [2, 2]


@pytest.mark.parametrize(
    ("loads", "best"),
    [
        (((1, 0), (0, 0), (2, 0)), {"e1"}),
        (((1, 10), (1, 5), (2, 0)), {"e1"}),
        (((3, 9), (3, 9), (4, 0)), {"e0", "e1"}),
    ],
)
def test_least_loaded(loads: tuple[tuple[int, int], ...], best: set[str]) -> None:
    choice = router("least-loaded")
    candidates = fleet(Ledger(), *loads)
    assert {choice.choose(candidates).chosen.name for _ in range(50)} == best


def test_round_robin_takes_turns() -> None:
    choice = router("round-robin")
    candidates = fleet(Ledger(), (0, 0), (0, 0), (0, 0))
    names = [choice.choose(candidates).chosen.name for _ in range(9)]
    assert Counter(names) == {"e0": 3, "e1": 3, "e2": 3}
    assert all(a != b for a, b in pairwise(names))


def test_a_choice_made_aside_takes_nobodys_turn() -> None:
    """Or one look at each turn of two engines would send every request to the same one."""
    candidates, own = fleet(Ledger(), (0, 0), (0, 0)), router("round-robin")
    names = []
    for _ in range(4):
        aside = own.aside().choose(candidates).chosen.name
        names.append(own.choose(candidates).chosen.name)
        assert aside == names[-1]
    assert all(before != after for before, after in pairwise(names))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_choice_made_aside_is_the_next_one_and_changes_none(policy: PolicyName) -> None:
    candidates = fleet(Ledger(), *[(0, 0)] * 9)
    looked, own = router(policy), router(policy)
    for _ in range(20):
        aside = [looked.aside().choose(candidates).chosen.name for _ in range(3)]
        chosen = own.choose(candidates).chosen.name
        assert {*aside, looked.choose(candidates).chosen.name} == {chosen}


def test_power_of_two_never_takes_the_worst_of_three() -> None:
    choice = router("power-of-two")
    candidates = fleet(Ledger(), (1, 0), (9, 0), (2, 0))
    assert {choice.choose(candidates).chosen.name for _ in range(200)} == {"e0", "e2"}


def test_random_reaches_everyone() -> None:
    choice = router("random")
    candidates = fleet(Ledger(), (9, 0), (0, 0), (0, 0))
    counts = Counter(choice.choose(candidates).chosen.name for _ in range(3000))
    assert all(850 < counts[name] < 1150 for name in ("e0", "e1", "e2"))


@pytest.mark.parametrize("policy", ["round-robin", "least-loaded"])
def test_m7_a_burst_is_spread_evenly(policy: PolicyName) -> None:
    ledger = Ledger()
    candidates = fleet(ledger, (0, 0), (0, 0), (0, 0), (0, 0))
    choice = router(policy)
    for _ in range(200):
        ledger.charge(choice.choose(candidates).chosen, 100, 100)
    assert all(45 <= c.load.requests <= 55 for c in candidates)


@pytest.mark.parametrize("policy", ["random", "least-loaded", "power-of-two"])
def test_m12_three_frontends_that_do_not_talk_do_not_choose_the_same(policy: PolicyName) -> None:
    totals: Counter[str] = Counter()
    for seed in range(3):
        ledger = Ledger()
        candidates = fleet(ledger, *[(0, 0)] * 8)
        choice = router(policy, seed=seed)
        for _ in range(20):
            chosen = choice.choose(candidates).chosen
            ledger.charge(chosen, 1, 1)
            totals[chosen.name] += 1
    assert max(totals.values()) <= 2 * 60 / 8


def test_the_decision_explains_itself() -> None:
    decision = router("least-loaded").choose(fleet(Ledger(), (3, 40), (1, 20)))
    assert decision == Decision(decision.chosen, "least-loaded", 2, "1 requests and 20 prompt tokens in flight")
