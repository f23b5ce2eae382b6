"""What a request costs where, and which cost is taken."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.kv.knowledge import Knowledge, Sent
from enginehouse.core.kv.settings import KvSettings
from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.cost import NEAR, parts, pick, waiting, weigh
from enginehouse.core.routing.ledger import Charge, Ledger
from enginehouse.core.routing.policy import Router, RoutingSettings
from enginehouse.domain.kv import RankKey
from tests.unit.core.routing.fakes import FakePrompt, fleet

WEIGHTS = RoutingSettings(
    policy="kv",
    kv_prefill_weight=2.0,
    kv_queue_weight=3.0,
    kv_decode_weight=0.5,
    kv_request_weight=10.0,
    kv_wait_weight=1000.0,
)


def kv(seed: int = 1, **changes: float) -> Router:
    """With a weight that makes numbers easy to follow."""
    return Router(RoutingSettings(policy="kv", **{"kv_prefill_weight": 1.0, **changes}), Random(seed))  # type: ignore[arg-type]


def by_default(seed: int = 1) -> Router:
    return Router(RoutingSettings(policy="kv"), Random(seed))


def chosen(candidates: list[Candidate], prompt: FakePrompt, times: int = 60, **changes: float) -> set[str]:
    choice = kv(**changes)
    return {choice.choose(candidates, (), prompt).chosen.name for _ in range(times)}


def test_the_cost_by_hand() -> None:
    candidates = fleet(Ledger(), (0, 0), (2, 700), (4, 900), capacity=1000, most=4)
    candidates[1].load.prefill_tokens = 100
    costs = weigh(candidates, FakePrompt(200, {"e1": 150}), WEIGHTS)
    # e2 has 4 of 4 requests and 100 tokens too many: one request of four must end first.
    assert costs == [2 * 200, 2 * 50 + 3 * 100 + 0.5 * 700 + 10 * 2, 2 * 200 + 0.5 * 900 + 10 * 4 + 1000 / 4]


@pytest.mark.parametrize(
    ("load", "capacity", "most", "tokens", "share"),
    [
        ((3, 900), None, None, 10**9, 0.0),  # nothing is known of its limits
        ((3, 900), 1000, 4, 100, 0.0),  # exactly full is room enough
        ((3, 900), 1000, 4, 101, 1 / 3),  # one token too many: one request of three must end
        ((3, 900), 1000, 4, 600, 0.5),  # half of what it holds must go
        ((3, 900), 1000, 3, 10, 1 / 3),
        ((3, 900), 1000, 3, 600, 0.5),  # full in both ways: the longer wait
        ((5, 900), 1000, 3, 10, 1.0),  # two wait there, so three must end
        ((0, 0), 1000, 4, 1001, 1.0),  # longer than its cache: never free
    ],
)
def test_what_a_full_rank_makes_wait(
    load: tuple[int, int], capacity: int | None, most: int | None, tokens: int, share: float
) -> None:
    (candidate,) = fleet(Ledger(), load, capacity=capacity, most=most)
    assert waiting(candidate, tokens) == pytest.approx(share)


def test_the_longest_prefix_wins_among_idle_engines() -> None:
    assert chosen(fleet(Ledger(), *[(0, 0)] * 4), FakePrompt(1000, {"e1": 300, "e2": 600})) == {"e2"}


def test_tokens_queued_there_outweigh_a_shorter_prefix() -> None:
    candidates = fleet(Ledger(), (0, 0), (1, 5000))
    prompt = FakePrompt(4000, {"e1": 3000})
    candidates[1].load.prefill_tokens = 2000
    assert chosen(candidates, prompt) == {"e1"}
    candidates[1].load.prefill_tokens = 5000
    assert chosen(candidates, prompt) == {"e0"}


def test_m7_no_hot_spot_from_a_shared_system_prompt() -> None:
    """Everybody's prompt begins with the same 1,000 tokens, which e0 alone holds: it must not get everybody."""
    ledger = Ledger()
    candidates = fleet(ledger, *[(0, 0)] * 8)
    holders = {"e0": 1000}
    choice = by_default()
    for _ in range(400):
        decision = choice.choose(candidates, (), FakePrompt(3000, holders))
        ledger.charge(decision.chosen, decision.tokens, decision.uncached)
        holders[decision.chosen.engine_id] = 1000
    counts = [c.load.requests for c in candidates]
    assert max(counts) <= 1.1 * 400 / 8, counts


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("clients", [8, 24])
def test_m7_no_hot_spot_where_prefill_is_quick(clients: int, seed: int) -> None:
    """Each client asks again when it has its answer; 288 of 432 tokens are the same for all. Nothing ever waits for
    prefill, so only the requests in flight can tell that the one who holds those tokens has enough to do."""
    rng = Random(seed)
    ledger, knowledge, choice = Ledger(), Knowledge(KvSettings()), by_default(seed)
    candidates = fleet(ledger, *[(0, 0)] * 3, capacity=100_000, most=256)
    for candidate in candidates:
        knowledge.join(RankKey(candidate.engine_id, 1, 0), block_size=16, capacity_tokens=100_000)
    in_flight: list[tuple[Charge, Sent]] = []
    got: Counter[str] = Counter()
    busiest = 0
    for number in range(clients * 10):
        if len(in_flight) == clients:
            charge, sent = in_flight.pop(int(rng.random() * clients))
            charge.release()
            sent.ended(None)
        asked = array("I", (*range(288), *range(1000 + number * 144, 1144 + number * 144)))
        prompt = knowledge.prompt(asked, session=None, now=number / 10)
        decision = choice.choose(candidates, (), prompt)
        sent_now = knowledge.dispatched(prompt, decision.chosen)
        assert sent_now is not None
        charge = ledger.charge(decision.chosen, decision.tokens, decision.uncached)
        charge.prefilled()
        sent_now.answered(number / 10)
        in_flight.append((charge, sent_now))
        got[decision.chosen.name] += 1
        if number >= 2 * clients:
            busiest = max(busiest, *[c.load.requests for c in candidates])
    assert busiest <= 1.5 * clients / 3, got
    assert len(got) == 3
    assert max(got.values()) <= 1.5 * clients * 10 / 3, got


def test_choices_made_a_moment_ago_count_before_any_event() -> None:
    ledger = Ledger()
    candidates = fleet(ledger, *[(0, 0)] * 4)
    choice = by_default()
    for _ in range(4):
        decision = choice.choose(candidates, (), FakePrompt(3000))
        ledger.charge(decision.chosen, decision.tokens, decision.uncached)
    assert [c.load.requests for c in candidates] == [1, 1, 1, 1]


def test_m12_frontends_that_do_not_talk_do_not_choose_the_same() -> None:
    totals: Counter[str] = Counter()
    for seed in range(400):
        totals[
            by_default(seed).choose(fleet(Ledger(), *[(0, 0)] * 8), (), FakePrompt(3000, {"e3": 16})).chosen.name
        ] += 1
    assert min(totals.values()) > 25, totals
    assert len(totals) == 8


@pytest.mark.parametrize("least", ["e0", "e1"])
def test_a_rank_whose_cache_is_full_is_not_free(least: str) -> None:
    other = "e1" if least == "e0" else "e0"
    loads = {least: (2, 4000), other: (2, 9500)}
    ledger = Ledger()
    candidates = fleet(ledger, loads["e0"], loads["e1"], capacity=10_000)
    assert chosen(candidates, FakePrompt(1000, {other: 900}), kv_decode_weight=0.0) == {least}
    assert chosen(candidates[:1] if other == "e0" else candidates[1:], FakePrompt(1000)) == {other}


def test_a_rank_with_all_requests_that_it_runs_is_not_free() -> None:
    candidates = fleet(Ledger(), (4, 4000), (3, 4000), most=4)
    assert chosen(candidates, FakePrompt(1000, {"e0": 900}), kv_decode_weight=0.0) == {"e1"}


def test_when_all_are_full_one_is_still_chosen() -> None:
    candidates = fleet(Ledger(), (6, 4000), (4, 4000), most=4)
    assert chosen(candidates, FakePrompt(1000)) == {"e1"}


def test_near_ties_are_at_random_and_no_more_than_near() -> None:
    tokens, near = 6400, 100  # 1/64, as the setting's text has it
    candidates = fleet(Ledger(), *[(0, 0)] * 3)
    prompt = FakePrompt(tokens, {"e0": 1000, "e1": 1000 - near, "e2": 1000 - near - 1})
    choice = kv()
    decisions = [choice.choose(candidates, (), prompt) for _ in range(400)]
    counts = Counter(d.chosen.name for d in decisions)
    assert set(counts) == {"e0", "e1"}
    assert min(counts.values()) > 150
    assert {d.rule for d in decisions} == {"near-tie"}


def test_the_temperature_spreads_by_the_cost_relative_to_the_prompt() -> None:
    """0.5: an engine that costs half of the prompt's tokens more is chosen 1/e times as often."""
    candidates = fleet(Ledger(), *[(0, 0)] * 2)
    choice = kv(kv_temperature=0.5)
    decisions = [choice.choose(candidates, (), FakePrompt(1000, {"e0": 500})) for _ in range(4000)]
    share = sum(d.chosen.name == "e0" for d in decisions) / 4000
    assert share == pytest.approx(1 / (1 + exp(-1)), abs=0.03)
    assert {d.rule for d in decisions} == {"temperature"}


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20), st.integers(0, 10**6), st.floats(0, 10), st.integers())
def test_any_costs_give_a_position(costs: list[float], tokens: int, temperature: float, seed: int) -> None:
    position, rule = pick(costs, tokens, temperature, Random(seed))
    assert 0 <= position < len(costs)
    if rule in ("best", "near-tie"):
        assert costs[position] <= min(costs) + NEAR * tokens


def test_without_a_prompt_the_load_alone_counts() -> None:
    candidates = fleet(Ledger(), (1, 10), (0, 0), (2, 20))
    decision = kv().choose(candidates)
    assert (decision.chosen.name, decision.tokens, decision.predicted) == ("e1", 0, 0)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 99)),
        min_size=2,
        max_size=9,
    )
)
def test_the_explained_parts_are_those_that_decided(drawn: list[tuple[int, int, int, int]]) -> None:
    candidates = fleet(Ledger(), *[(requests, tokens) for requests, tokens, _, _ in drawn], capacity=4000, most=5)
    for candidate, (_, tokens, queued, _) in zip(candidates, drawn, strict=True):
        candidate.load.prefill_tokens = min(queued, tokens)
    prompt = FakePrompt(100, {f"e{i}": held for i, (*_, held) in enumerate(drawn)})
    seen = parts(candidates, candidates[0], prompt, WEIGHTS)
    assert [part.cost for part in seen] == pytest.approx(weigh(candidates, prompt, WEIGHTS))


def test_the_explanation_is_json_with_every_candidate() -> None:
    candidates = fleet(Ledger(), (0, 0), (1, 400), capacity=450)
    candidates[1].load.prefill_tokens = 300
    decision = kv(kv_decode_weight=0.5, kv_request_weight=10.0, kv_wait_weight=1000.0).choose(
        candidates, (), FakePrompt(100, {"e0": 64}, "secret"), explain=True
    )
    told = json.loads(json.dumps(decision.explain()))
    assert told["policy"] == "kv"
    assert told["rule"] == "best"
    assert told["chosen"] == {"engine": "e0", "engine_id": "e0", "rank": None}
    assert (told["prompt_tokens"], told["predicted_cached_tokens"], told["considered"]) == (100, 64, 2)
    assert told["candidates"][0] == {
        "engine": "e0",
        "engine_id": "e0",
        "rank": None,
        "chosen": True,
        "full": False,
        "requests": 0,
        "tokens": 0,
        "queued": 0,
        "held": 64,
        "prefill": 36,
        "prefill_cost": 36.0,
        "queue_cost": 0.0,
        "decode_cost": 0.0,
        "wait_cost": 0.0,
        "cost": 36.0,
    }
    assert told["candidates"][1] | {"cost": 0} == {
        "engine": "e1",
        "engine_id": "e1",
        "rank": None,
        "chosen": False,
        "full": True,
        "requests": 1,
        "tokens": 400,
        "queued": 300,
        "held": 0,
        "prefill": 100,
        "prefill_cost": 100.0,
        "queue_cost": 300.0,
        "decode_cost": 210.0,
        "wait_cost": 1000.0,
        "cost": 0,
    }
    assert "secret" not in json.dumps(told)


def test_a_decision_carries_no_parts_unless_asked() -> None:
    candidates = fleet(Ledger(), (0, 0), (0, 0))
    assert kv().choose(candidates, (), FakePrompt(100)).parts == ()


def test_a_decision_says_what_it_predicts() -> None:
    decision = kv().choose(fleet(Ledger(), (0, 0), (0, 0)), (), FakePrompt(100, {"e1": 64}))
    assert (decision.predicted, decision.uncached, decision.rule) == (64, 36, "best")
    decision = kv().choose(fleet(Ledger(), (0, 0)), (), FakePrompt(100, {"e0": 48}))
    assert (decision.predicted, decision.uncached, decision.rule) == (48, 52, "only-one")


def test_256_candidates_are_asked_once_each() -> None:
    prompt = FakePrompt(32_000, {"e200": 16_000})
    decision = kv().choose(fleet(Ledger(), *[(0, 0)] * 256), (), prompt)
    assert decision.chosen.name == "e200"
    assert prompt.asked <= 257
