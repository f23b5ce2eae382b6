"""Sessions stay where they are: by name alone, whatever the policy, until their rank has too much."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.routing.affinity import home, overloaded
from enginehouse.core.routing.candidate import Candidate, Load
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.policy import PolicyName, Router, RoutingSettings
from tests.unit.core.routing.fakes import FakePrompt, fleet

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
SESSIONS = [f"session-{number}" for number in range(600)]


def router(policy: PolicyName, **changes: int) -> Router:
    return Router(RoutingSettings(policy=policy, affinity="user", **changes), Random(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_session_keeps_to_its_rank(policy: PolicyName) -> None:
    candidates = fleet(Ledger(), *[(0, 0)] * 8)
    choice = router(policy)
    decisions = [choice.choose(candidates, (), FakePrompt(100, {"e1": 99}, "s")) for _ in range(30)]
    assert len({d.chosen.name for d in decisions}) == 1
    assert {d.rule for d in decisions} == {"affinity"}


@pytest.mark.parametrize("policy", [p for p in POLICIES if p != "kv"])
def test_a_policy_that_does_not_weigh_never_asks_what_is_held(policy: PolicyName) -> None:
    for session in (None, "s"):
        prompt = FakePrompt(100, {"e1": 99}, session)
        decision = router(policy).choose(fleet(Ledger(), (0, 0), (1, 1)), (), prompt, explain=True)
        assert (prompt.asked, decision.predicted, decision.uncached) == (0, 0, 100)
        assert [part.cost for part in decision.parts] == [None, None]


def test_under_kv_the_prediction_is_made_for_the_sessions_rank() -> None:
    candidates = fleet(Ledger(), *[(0, 0)] * 8)
    own = home("s", candidates).engine_id
    decision = router("kv").choose(candidates, (), FakePrompt(100, {own: 30, "other": 99}, "s"))
    assert (decision.chosen.engine_id, decision.predicted) == (own, 30)


def test_affinity_is_off_unless_asked() -> None:
    choice = Router(RoutingSettings(policy="random"), Random(3))
    candidates = fleet(Ledger(), *[(0, 0)] * 8)
    assert len({choice.choose(candidates, (), FakePrompt(9, None, "s")).chosen.name for _ in range(60)}) > 1


def test_sessions_are_spread() -> None:
    candidates = fleet(Ledger(), *[(0, 0)] * 6)
    counts = Counter(home(session, candidates).name for session in SESSIONS)
    assert len(counts) == 6
    assert all(70 <= count <= 130 for count in counts.values()), counts


def test_ranks_of_one_engine_are_told_apart() -> None:
    candidates = [Candidate("e", 1, "e", rank, Load(), 0) for rank in range(4)]
    assert {home(session, candidates).rank for session in SESSIONS} == {0, 1, 2, 3}


@given(st.integers(0, 7), st.randoms(use_true_random=False))
def test_m6_only_the_sessions_of_the_engine_that_left_move(gone: int, order: Random) -> None:
    before = fleet(Ledger(), *[(0, 0)] * 8)
    after = [c for c in before if c.member != gone]
    order.shuffle(after)
    for session in SESSIONS[:60]:
        old = home(session, before).name
        new = home(session, after).name
        assert new == old if old != f"e{gone}" else new != old


def test_an_engine_that_joins_takes_only_what_it_keeps() -> None:
    before = fleet(Ledger(), *[(0, 0)] * 7)
    after = fleet(Ledger(), *[(0, 0)] * 8)
    moved = [s for s in SESSIONS if home(s, before).name != home(s, after).name]
    assert {home(s, after).name for s in moved} == {"e7"}
    assert 40 <= len(moved) <= 110


def test_a_new_incarnation_keeps_the_sessions() -> None:
    candidates = fleet(Ledger(), *[(0, 0)] * 4)
    again = [Candidate(c.engine_id, 2, c.name, c.rank, Load(), c.member) for c in candidates]
    assert all(home(s, candidates).name == home(s, again).name for s in SESSIONS)


def test_an_overloaded_rank_leaves_the_choice_to_the_policy() -> None:
    candidates = fleet(Ledger(), *[(0, 0)] * 4)
    own = home("s", candidates)
    choice = router("least-loaded")
    own.load.requests = 2
    decision = choice.choose(candidates, (), FakePrompt(9, None, "s"))
    assert decision.rule == "policy"
    assert decision.chosen is not own
    for candidate in candidates:
        candidate.load.requests = 2
    assert choice.choose(candidates, (), FakePrompt(9, None, "s")).chosen is own


@pytest.mark.parametrize(
    ("requests", "factor", "over"),
    [
        ((0, 0, 0, 0), 1.25, False),
        ((1, 0, 0, 0), 1.25, False),  # two requests of one session in an idle fleet
        ((2, 0, 0, 0), 1.25, True),
        ((13, 9, 9, 8), 1.25, False),  # 40 with this one: 1.25 x 10 + 1 = 13.5
        ((14, 8, 9, 8), 1.25, True),
        ((14, 8, 9, 8), 1.5, False),
        ((3, 1, 1, 1), 1.25, False),  # 7 with this one: 3.19
        ((3, 2, 1, 1), 1.0, True),  # 8 with this one: exactly 3
    ],
)
def test_what_overloaded_means(requests: tuple[int, ...], factor: float, over: bool) -> None:
    candidates = fleet(Ledger(), *[(count, 0) for count in requests])
    assert overloaded(candidates[0], candidates, factor) is over


def test_m3_a_sessions_rank_that_failed_for_this_request_is_not_used() -> None:
    candidates = fleet(Ledger(), *[(0, 0)] * 4)
    own = home("s", candidates)
    decision = router("kv").choose(candidates, {(own.engine_id, 1)}, FakePrompt(9, None, "s"))
    assert decision.chosen is home("s", [c for c in candidates if c is not own])


def test_m9_a_sessions_rank_at_the_limit_is_not_used() -> None:
    candidates = fleet(Ledger(), *[(0, 0)] * 4)
    own = home("s", candidates)
    own.load.requests = 1
    assert router("kv", max_requests_per_engine=1).choose(candidates, (), FakePrompt(9, None, "s")).chosen is not own


def test_any_text_names_a_session() -> None:
    candidates = fleet(Ledger(), *[(0, 0)] * 2)
    assert home("\ud800 ü" * 1000, candidates) in candidates
