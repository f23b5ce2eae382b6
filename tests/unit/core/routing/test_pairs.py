"""Two pools: who prefills, who decodes, and when one engine does both."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from random import Random
from typing import Any, get_args

import pytest

from enginehouse.core.routing import pairs
from enginehouse.core.routing.candidate import Candidate, Pairing, Prompt
from enginehouse.core.routing.handover_settings import HandoverSettings, PrefillMissing
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.mates import Mates, compatible
from enginehouse.core.routing.pairs import Alone, Busy, NoPrefill, PairDecision, PairRouter
from enginehouse.core.routing.policy import AllExcluded, AllFull, PolicyName, RoutingSettings
from enginehouse.domain.engine import ProtocolName
from tests.unit.core.routing.fakes import FakePrompt

VLLM, SGLANG = Pairing(ProtocolName.VLLM), Pairing(ProtocolName.SGLANG)
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
Pool = tuple[Candidate, ...]
NOBODY: Collection[tuple[str, int]] = ()


def pool(ledger: Ledger, letter: str, *kinds: Pairing) -> Pool:
    """One candidate per kind, named p0, p1, … or d0, d1, …"""
    return tuple(
        Candidate(f"{letter}{n}", 1, f"{letter}{n}", None, ledger.load(f"{letter}{n}", 1, None), n, pairing=kind)
        for n, kind in enumerate(kinds)
    )


def pools(prefill: int, decode: int, kind: Pairing = SGLANG) -> tuple[Pool, Pool]:
    ledger = Ledger()
    return pool(ledger, "p", *[kind] * prefill), pool(ledger, "d", *[kind] * decode)


def busy(candidate: Candidate, requests: int, tokens: int = 0, queued: int = 0) -> None:
    load = candidate.load
    load.requests, load.tokens, load.prefill_tokens = requests, tokens, queued


def router(
    policy: PolicyName = "kv", handover: HandoverSettings | None = None, seed: int = 1, **more: Any
) -> PairRouter:
    """With a weight that makes numbers easy to follow."""
    settings = RoutingSettings(policy=policy, **{"kv_prefill_weight": 1.0, **more})
    return PairRouter(settings, handover or HandoverSettings(), Random(seed))


def pair(choice: PairRouter, of: tuple[Pool, Pool], prompt: Prompt | None = None) -> tuple[str, str]:
    decision = choice.choose(*of, prompt or FakePrompt(1000))
    assert isinstance(decision, PairDecision)
    return decision.prefill.chosen.name, decision.decode.chosen.name


def alone(choice: PairRouter, of: tuple[Pool, Pool], prompt: Prompt) -> tuple[str, str]:
    decision = choice.choose(*of, prompt)
    assert isinstance(decision, Alone)
    return decision.decode.chosen.name, decision.because


# Who prefills, who decodes.


@pytest.mark.parametrize(
    ("held", "queued", "best"),
    [
        ({}, (0, 900), "p0"),
        ({"p1": 600}, (0, 0), "p1"),
        ({"p1": 600}, (0, 500), "p1"),
        ({"p1": 600}, (0, 700), "p0"),
    ],
)
def test_the_prefill_rank_is_where_least_is_left_to_compute(
    held: dict[str, int], queued: tuple[int, int], best: str
) -> None:
    of = pools(2, 1)
    for candidate, tokens in zip(of[0], queued, strict=True):
        busy(candidate, 1, tokens, tokens)
    choice = router()
    assert {pair(choice, of, FakePrompt(1000, held))[0] for _ in range(30)} == {best}


def test_prompt_tokens_that_are_computed_cost_a_prefill_rank_nothing() -> None:
    """They wait to be fetched: no step of the engine is slower for them, nor for their requests."""
    of = pools(2, 1)
    busy(of[0][0], 3, 90_000, 0)
    busy(of[0][1], 1, 400, 400)
    choice = router(kv_request_weight=1000.0)
    assert {pair(choice, of)[0] for _ in range(30)} == {"p0"}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_decode_rank_is_the_one_with_the_least_work(policy: PolicyName) -> None:
    of = pools(3, 2)
    busy(of[1][0], 5, 5000)
    choice = router(policy)
    assert {pair(choice, of)[1] for _ in range(30)} == {"d1"}


def test_among_decode_ranks_with_equal_work_the_one_that_needs_the_least_passed_to_it() -> None:
    of = pools(1, 3)
    choice = router()
    assert {pair(choice, of, FakePrompt(1000, {"d2": 500}))[1] for _ in range(30)} == {"d2"}
    busy(of[1][2], 2, 900)
    assert {pair(choice, of, FakePrompt(1000, {"d2": 500}))[1] for _ in range(30)} == {"d0", "d1"}, "worth no such load"


def test_what_is_held_by_a_decode_rank_weighs_far_less_than_by_a_prefill_rank() -> None:
    of = pools(2, 2)
    busy(of[0][0], 1, 3000, 3000)
    busy(of[1][0], 1, 3000, 0)
    choice = router()
    assert {pair(choice, of, FakePrompt(10_000, {"p0": 8000, "d0": 2000}))[0] for _ in range(30)} == {"p0"}
    assert {pair(choice, of, FakePrompt(10_000, {"p0": 8000, "d0": 2000}))[1] for _ in range(30)} == {"d1"}


@pytest.mark.parametrize("weight", [0.0, 0.05])
def test_only_decode_ranks_as_good_as_equal_are_taken_by_chance(weight: float) -> None:
    """Equal is judged by what a prompt costs a decode rank, not by what it would cost to compute."""
    of = pools(1, 3)
    for candidate, tokens in zip(of[1], (2000, 2100, 2300), strict=True):
        busy(candidate, 1, tokens)
    choice = router(kv_transfer_weight=weight)
    assert {pair(choice, of, FakePrompt(10_000))[1] for _ in range(60)} == {"d0", "d1"}


def test_a_burst_is_spread_over_both_pools() -> None:
    ledger = Ledger()
    of = pool(ledger, "p", *[SGLANG] * 4), pool(ledger, "d", *[SGLANG] * 6)
    choice = router()
    for _ in range(240):
        decision = choice.choose(*of, FakePrompt(1000))
        assert isinstance(decision, PairDecision)
        ledger.charge(decision.prefill.chosen, 1000, decision.prefill.uncached)
        ledger.charge(decision.decode.chosen, 1000, 0)
    assert all(55 <= c.load.requests <= 65 for c in of[0])
    assert all(36 <= c.load.requests <= 44 for c in of[1])


def test_round_robin_takes_turns_in_the_prefill_pool() -> None:
    of = pools(3, 2)
    choice = router("round-robin")
    names = [pair(choice, of)[0] for _ in range(6)]
    assert names[:3] == names[3:]
    assert set(names) == {"p0", "p1", "p2"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pair_chosen_aside_is_the_next_one_and_changes_none(policy: PolicyName) -> None:
    of, looked, own = pools(9, 9), router(policy), router(policy)
    for _ in range(20):
        aside = {pair(looked.aside(), of) for _ in range(3)}
        assert aside == {pair(own, of)} == {pair(looked, of)}


def test_a_session_belongs_to_the_rank_that_computes_its_prompts() -> None:
    of = pools(8, 8)
    choice = router("random", affinity="header")
    for session in ("one", "two", "three"):
        chosen = [pair(choice, of, FakePrompt(1000, session=session)) for _ in range(40)]
        assert len({first for first, _ in chosen}) == 1
        assert len({second for _, second in chosen}) > 1


def test_a_session_of_requests_that_run_alone_belongs_to_a_decode_rank() -> None:
    of = pools(8, 8, VLLM)
    choice = router("random", HandoverSettings(prefill_min_tokens=100), affinity="header")
    assert len({alone(choice, of, FakePrompt(99, session="one")) for _ in range(40)}) == 1


# Who fits whom.


def test_p5_no_cross_group_pairs_in_100_000_requests() -> None:
    """Old and new generations side by side, one group without a decode engine, one without a prefill engine."""
    kinds = {group: Pairing(ProtocolName.SGLANG, "nixl", "auto", 64, group) for group in ("old", "new", "p", "d", None)}
    rng = Random(5)
    crossed = 0
    groups = set()
    for policy in POLICIES:
        ledger = Ledger()
        prefill = pool(ledger, "p", *[kinds[group] for group in ("old", "new", "p", None, "old", "new")])
        decode = pool(ledger, "d", *[kinds[group] for group in ("new", "old", "d", None, "new")])
        choice = router(policy, seed=7, max_requests_per_engine=40, affinity="header")
        everyone = [(c.engine_id, 1) for c in (*prefill, *decode)]
        running = []
        for _turn in range(20_000):
            excluded = set(rng.sample(everyone, rng.randrange(4)))
            prompt = FakePrompt(rng.randrange(1, 5000), {"p2": 900, "d2": 900}, rng.choice([None, "a", "b", "c"]))
            try:
                decision = choice.choose(prefill, decode, prompt, excluded)
            except NoPrefill:
                continue
            assert isinstance(decision, PairDecision)
            first, second = decision.prefill.chosen, decision.decode.chosen
            assert first.pairing is not None
            assert second.pairing is not None
            crossed += first.pairing.group != second.pairing.group
            groups.add(first.pairing.group)
            running.append(ledger.charge(first, prompt.tokens, prompt.tokens))
            running.append(ledger.charge(second, prompt.tokens, 0))
            if len(running) > 60:
                for _ in range(2):
                    running.pop(rng.randrange(len(running))).release()
    assert crossed == 0
    assert groups == {"old", "new", None}


def test_the_two_choices_follow_the_pools_as_they_change() -> None:
    """A generation is replaced: what fitted what before says nothing."""
    ledger = Ledger()
    old, new = VLLM._replace(group="old"), VLLM._replace(group="new")
    choice = router()
    assert pair(choice, (pool(ledger, "p", old), pool(ledger, "d", old, new))) == ("p0", "d0")
    assert pair(choice, (pool(ledger, "p", new), pool(ledger, "d", old, new))) == ("p0", "d1")
    prefill = pool(ledger, "p", new)
    with pytest.raises(NoPrefill):
        choice.choose(prefill, pool(ledger, "d", old), FakePrompt(9))
    decode = pool(ledger, "d", old, old, new)
    assert pair(choice, (prefill, decode)) == ("p0", "d2")
    assert pair(choice, (pool(ledger, "p", new, new), decode))[1] == "d2"
    assert pair(choice, (pool(ledger, "p", new._replace(group=None), old), decode))[0] == "p1"


def test_a_prefill_rank_that_no_usable_decode_rank_fits_is_not_chosen() -> None:
    ledger = Ledger()
    a, b = SGLANG._replace(kv_dtype="fp8"), SGLANG._replace(kv_dtype="auto")
    of = pool(ledger, "p", a, b), pool(ledger, "d", a, b)
    choice = router(max_requests_per_engine=4)
    best = FakePrompt(1000, {"p0": 900})
    assert pair(choice, of, best) == ("p0", "d0")
    busy(of[1][0], 4)
    assert pair(choice, of, best) == ("p1", "d1")
    busy(of[1][0], 0)
    decision = choice.choose(*of, best, {("d0", 1)})
    assert isinstance(decision, PairDecision)
    assert decision.decode.chosen.name == "d1"


# Who may not be used.


@pytest.mark.parametrize("policy", POLICIES)
def test_a_retry_takes_neither_engine_that_is_excluded(policy: PolicyName) -> None:
    of = pools(3, 3)
    choice = router(policy)
    for _ in range(40):
        decision = choice.choose(*of, FakePrompt(100), {("p1", 1), ("d0", 1), ("p0", 7)})
        assert isinstance(decision, PairDecision)
        assert decision.prefill.chosen.name != "p1"
        assert decision.decode.chosen.name != "d0"


def test_without_a_decode_engine_there_is_nothing_to_choose() -> None:
    with pytest.raises(AllExcluded):
        router().choose(*pools(2, 0), FakePrompt(1))
    with pytest.raises(AllExcluded):
        router().choose(*pools(2, 1), FakePrompt(1), {("d0", 1)})


@pytest.mark.parametrize("full", [0, 1])
def test_a_pool_without_room_is_full(full: int) -> None:
    of = pools(2, 2)
    choice = router(max_requests_per_engine=3)
    for candidate in of[full]:
        busy(candidate, 3)
    with pytest.raises(AllFull):
        choice.choose(*of, FakePrompt(1))
    busy(of[full][1], 2)
    assert pair(choice, of)[full] == ("p1", "d1")[full]


def test_room_that_is_only_where_nobody_fits_is_none() -> None:
    ledger = Ledger()
    a, b = SGLANG._replace(group="a"), SGLANG._replace(group="b")
    of = pool(ledger, "p", a, b), pool(ledger, "d", a, b)
    busy(of[0][0], 3)
    busy(of[1][1], 3)
    with pytest.raises(AllFull):
        router(max_requests_per_engine=3).choose(*of, FakePrompt(1))


def test_hand_overs_under_way_are_bounded_for_each_prefill_rank() -> None:
    ledger = Ledger()
    of = pool(ledger, "p", *[SGLANG] * 2), pool(ledger, "d", SGLANG)
    choice = router(handover=HandoverSettings(max_handovers_per_prefill=2))
    charges = []
    for _ in range(4):
        decision = choice.choose(*of, FakePrompt(100))
        assert isinstance(decision, PairDecision)
        charges.append(ledger.charge(decision.prefill.chosen, 100, 100))
        ledger.charge(decision.decode.chosen, 100, 0)
    assert [c.load.requests for c in of[0]] == [2, 2]
    with pytest.raises(Busy):
        choice.choose(*of, FakePrompt(100))
    charges[0].prefilled()
    with pytest.raises(Busy):
        choice.choose(*of, FakePrompt(100))
    charges[0].release()
    assert pair(choice, of)[1] == "d0"


def test_no_bound_on_hand_overs() -> None:
    of = pools(1, 1)
    busy(of[0][0], 10_000)
    assert pair(router(handover=HandoverSettings(max_handovers_per_prefill=0)), of) == ("p0", "d0")


# A role is missing.

NO_FIT = VLLM._replace(group="other")


@pytest.mark.parametrize("policy", ["wait", "fail"])
@pytest.mark.parametrize("decode", [VLLM, SGLANG])
@pytest.mark.parametrize(
    ("prefill", "excluded", "lack"),
    [
        ((), NOBODY, "none"),
        ((NO_FIT,), NOBODY, "incompatible"),
        ((NO_FIT,), {("p0", 1)}, "incompatible"),
    ],
)
def test_p6_no_prefill_engine(
    policy: PrefillMissing,
    decode: Pairing,
    prefill: tuple[Pairing, ...],
    excluded: Collection[tuple[str, int]],
    lack: str,
) -> None:
    ledger = Ledger()
    choice = router(handover=HandoverSettings(prefill_missing=policy))
    with pytest.raises(NoPrefill) as caught:
        choice.choose(pool(ledger, "p", *prefill), pool(ledger, "d", decode), FakePrompt(1000), excluded)
    assert caught.value.lack == lack


@pytest.mark.parametrize("policy", ["wait", "fail"])
def test_p6_every_prefill_engine_was_tried(policy: PrefillMissing) -> None:
    ledger = Ledger()
    of = pool(ledger, "p", VLLM, NO_FIT), pool(ledger, "d", VLLM)
    with pytest.raises(NoPrefill) as caught:
        router(handover=HandoverSettings(prefill_missing=policy)).choose(*of, FakePrompt(1000), {("p0", 1)})
    assert caught.value.lack == "tried"


@pytest.mark.parametrize(
    ("prefill", "excluded"),
    [((), NOBODY), ((NO_FIT,), NOBODY), ((VLLM,), {("p0", 1)})],
)
def test_p6_decode_alone_while_prefill_is_missing(
    prefill: tuple[Pairing, ...], excluded: Collection[tuple[str, int]]
) -> None:
    ledger = Ledger()
    of = pool(ledger, "p", *prefill), pool(ledger, "d", SGLANG, VLLM, VLLM)
    choice = router(handover=HandoverSettings(prefill_missing="decode"))
    busy(of[1][1], 1, 900, 900)
    decision = choice.choose(*of, FakePrompt(1000, {"d0": 999, "d1": 200}), excluded)
    assert isinstance(decision, Alone)
    assert (decision.decode.chosen.name, decision.because) == ("d2", "no-prefill-engine")
    assert decision.decode.uncached == 1000, "it has all of it to compute"


def test_p6_decode_alone_is_for_engines_that_can_prefill() -> None:
    of = pools(0, 2, SGLANG)
    with pytest.raises(NoPrefill) as caught:
        router(handover=HandoverSettings(prefill_missing="decode")).choose(*of, FakePrompt(1000))
    assert caught.value.lack == "none"


def test_p6_decode_engines_that_could_work_alone_may_be_full() -> None:
    ledger = Ledger()
    of = pool(ledger, "p"), pool(ledger, "d", SGLANG, VLLM)
    busy(of[1][1], 2)
    choice = router(handover=HandoverSettings(prefill_missing="decode"), max_requests_per_engine=2)
    with pytest.raises(AllFull):
        choice.choose(*of, FakePrompt(1000))


def test_p6_a_busy_prefill_pool_is_not_a_missing_one() -> None:
    of = pools(1, 1, VLLM)
    busy(of[0][0], 2)
    choice = router(handover=HandoverSettings(prefill_missing="decode", max_handovers_per_prefill=2))
    with pytest.raises(Busy):
        choice.choose(*of, FakePrompt(1000))


# Too little to compute.


@pytest.mark.parametrize(
    ("tokens", "held", "expected"),
    [
        (99, {}, "short-prompt"),
        (100, {}, None),
        (1000, {"d1": 901}, "mostly-cached"),
        (1000, {"d1": 900}, None),
        (1000, {"p0": 999}, None),  # the prefill engine's cache spares it the work, not the hand-over
    ],
)
def test_prompts_with_little_to_compute_run_on_decode_alone(
    tokens: int, held: dict[str, int], expected: str | None
) -> None:
    of = pools(1, 2, VLLM)
    decision = router(handover=HandoverSettings(prefill_min_tokens=100)).choose(*of, FakePrompt(tokens, held))
    assert (decision.because if isinstance(decision, Alone) else None) == expected
    if expected == "mostly-cached":
        assert decision.decode.chosen.name == "d1"
        assert decision.decode.uncached < 100


@pytest.mark.parametrize("protocol", ProtocolName)
def test_which_decode_engines_can_work_alone(protocol: ProtocolName) -> None:
    of = pools(1, 1, Pairing(protocol))
    decision = router(handover=HandoverSettings(prefill_min_tokens=100)).choose(*of, FakePrompt(5))
    assert isinstance(decision, Alone) is (protocol is not ProtocolName.SGLANG)


def test_a_mostly_cached_prompt_runs_only_where_it_is_cached() -> None:
    """However busy that rank is: elsewhere there would be much to compute."""
    of = pools(1, 3, VLLM)
    busy(of[1][1], 9, 90_000, 9000)
    choice = router(handover=HandoverSettings(prefill_min_tokens=100))
    assert alone(choice, of, FakePrompt(1000, {"d1": 950})) == ("d1", "mostly-cached")


def test_little_to_compute_is_no_reason_where_decode_cannot_prefill() -> None:
    choice = router(handover=HandoverSettings(prefill_min_tokens=100))
    assert pair(choice, pools(1, 1, SGLANG), FakePrompt(5, {"d0": 4})) == ("p0", "d0")


def test_little_to_compute_and_no_prefill_engine() -> None:
    choice = router(handover=HandoverSettings(prefill_min_tokens=100, prefill_missing="fail"))
    assert alone(choice, pools(0, 1, VLLM), FakePrompt(5)) == ("d0", "short-prompt")


def test_short_prompts_are_handed_over_unless_asked_otherwise() -> None:
    assert pair(router(), pools(1, 1, VLLM), FakePrompt(1, {"d0": 0})) == ("p0", "d0")


def test_a_full_or_tried_decode_rank_is_not_spared_the_hand_over() -> None:
    of = pools(1, 2, VLLM)
    choice = router(handover=HandoverSettings(prefill_min_tokens=100), max_requests_per_engine=2)
    prompt = FakePrompt(1000, {"d1": 950})
    assert isinstance(choice.choose(*of, prompt, {("d1", 1)}), PairDecision)
    busy(of[1][1], 2)
    assert pair(choice, of, prompt) == ("p0", "d0")


# Said and paid.


def test_both_legs_explain_themselves() -> None:
    ledger = Ledger()
    of = pool(ledger, "p", SGLANG, SGLANG), pool(ledger, "d", SGLANG, SGLANG._replace(group="x"), SGLANG)
    busy(of[1][2], 1, 800)
    decision = router().choose(*of, FakePrompt(1000, {"p1": 600, "d0": 200}), explain=True)
    told: Any = json.loads(json.dumps(decision.explain()))
    assert set(told) == {"prefill", "decode"}
    assert told["prefill"]["chosen"]["engine"] == "p1"
    assert [(c["engine"], c["prefill_cost"], c["cost"]) for c in told["prefill"]["candidates"]] == [
        ("p0", 1000.0, 1000.0),
        ("p1", 400.0, 400.0),
    ]
    assert told["decode"]["chosen"]["engine"] == "d0"
    assert [(c["engine"], c["prefill_cost"], c["decode_cost"]) for c in told["decode"]["candidates"]] == [
        ("d0", pytest.approx(40.0), 0.0),
        ("d2", pytest.approx(50.0), pytest.approx(290.0)),  # one request with 800 tokens
    ]


def test_working_alone_explains_itself() -> None:
    choice = router(handover=HandoverSettings(prefill_min_tokens=100))
    told = choice.choose(*pools(1, 2, VLLM), FakePrompt(40), explain=True).explain()
    assert told["alone"] == "short-prompt"
    assert json.loads(json.dumps(told))["decode"]["considered"] == 2


def test_256_and_256_candidates_are_asked_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    class Counted(Mates):
        def __init__(self, prefill: Pool, decode: Pool) -> None:
            compared.append(len(prefill))
            super().__init__(prefill, decode)

    monkeypatch.setattr(pairs, "Mates", Counted)
    of = pools(256, 256)
    choice = router()
    compared.clear()
    prompt = FakePrompt(32_000, {"p200": 16_000, "d100": 16_000})
    for _ in range(3):
        prompt.asked = 0
        assert pair(choice, of, prompt) == ("p200", "d100")
        assert prompt.asked <= 256 + 256 + 2
    assert compared == [256], "once for this fleet, not for each request"


@pytest.mark.parametrize("distinct", [1, 256])
def test_what_fits_is_not_compared_each_with_each(distinct: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(inner: Callable[[Pairing, Pairing], bool]) -> Callable[[Pairing, Pairing], bool]:
        def compare(a: Pairing, b: Pairing) -> bool:
            nonlocal calls
            calls += 1
            return inner(a, b)

        return compare

    monkeypatch.setattr("enginehouse.core.routing.mates.compatible", counted(compatible))
    ledger = Ledger()
    kinds = [SGLANG._replace(group=f"g{n % distinct}") for n in range(256)]
    choice = router()
    pair(choice, (pool(ledger, "p", *kinds), pool(ledger, "d", *kinds)))
    assert calls == distinct


def test_a_request_that_asks_of_the_whole_prompt_goes_to_one_decode_rank_by_the_policy() -> None:
    _, decode = pools(1, 3, VLLM)
    one = router("least-loaded", max_requests_per_engine=2)
    busy(decode[0], 1)
    busy(decode[2], 1)
    choice = one.whole_prompt(decode, FakePrompt(10))
    assert (choice.decode.chosen.name, choice.because) == ("d1", "prompt-logprobs")
    assert one.whole_prompt(decode, FakePrompt(10), {("d1", 1), ("d2", 1)}).decode.chosen.name == "d0"
    with pytest.raises(AllExcluded):
        one.whole_prompt(decode, FakePrompt(10), {(c.engine_id, 1) for c in decode})
    for candidate in decode:
        busy(candidate, 2)
    with pytest.raises(AllFull):
        one.whole_prompt(decode, FakePrompt(10))
