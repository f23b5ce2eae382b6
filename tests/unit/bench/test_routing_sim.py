"""The simulator: cases computed by hand, and what must hold of any run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from bench.routing_sim import Result, Simulation, main, prepare
from bench.sim_engine import Cache, Engine, Job, Spec
from bench.sim_frontend import tokens_of
from bench.sim_workload import Request, Workload, depth, multi_turn, shared_prefix, trace
from enginehouse.core.routing.settings import PolicyName, RoutingSettings

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
SLOW = Spec(prefill_rate=1000, chunk=100, step=0.1, step_per_request=0, step_per_token=0, max_running=4, blocks=40)
"""A step takes 0.1 s, and 0.2 s with 100 tokens of prefill in it."""


def request(at: float, tokens: int, blocks: Iterable[int], output: int = 1) -> Request:
    return Request(at, tokens, tuple(blocks), output)


class Log:
    """A Watcher that writes down when things happened."""

    def __init__(self) -> None:
        self.first: dict[int, float] = {}
        self.end: dict[int, float] = {}

    def first_token(self, job: Job, now: float) -> None:
        self.first[job.number] = now

    def finished(self, job: Job, now: float) -> None:
        self.end[job.number] = now

    def blocks(
        self, engine: int, runs: Sequence[tuple[int | None, Sequence[int]]], gone: Iterable[int], now: float
    ) -> None:
        pass


def drive(engine: Engine, requests: Sequence[Request]) -> None:
    for number, one in enumerate(requests):
        while (at := engine.next_at) is not None and at <= one.at:
            engine.advance(at)
        engine.submit(Job(one, number, 0), one.at)
    while (at := engine.next_at) is not None:
        engine.advance(at)


def test_an_engine_by_hand() -> None:
    log = Log()
    engine = Engine(0, SLOW, 100, log)
    drive(
        engine,
        [
            request(0.0, 100, [1], output=5),
            request(0.2, 200, [2, 3]),  # its prefill halves the speed of the first one's answer
            request(0.3, 300, [2, 3, 4]),  # waits for the second, finds its blocks
        ],
    )
    assert log.first == pytest.approx({0: 0.2, 1: 0.6, 2: 0.8})
    # The first: tokens at 0.2 | 0.4, 0.6, 0.8 with prefill | 0.9 alone.
    assert log.end == pytest.approx({0: 0.9, 1: 0.6, 2: 0.8})
    assert (engine.prefilled_tokens, engine.in_flight) == (400, 0)
    assert engine.prefill_seconds == pytest.approx(0.8)
    engine.cache.check()


def test_a_request_waits_for_room_to_decode() -> None:
    log = Log()
    engine = Engine(0, replace(SLOW, max_running=1), 100, log)
    drive(engine, [request(0.0, 100, [1], output=11), request(0.0, 100, [2])])
    assert log.end[0] == pytest.approx(1.2)
    assert log.first[1] == pytest.approx(1.4)


def test_the_cache_evicts_what_was_used_least_recently_tail_first() -> None:
    cache = Cache(4)
    for blocks in ((1, 2, 3), (4,)):
        assert cache.begin(blocks, 0) == (0, [])
        assert cache.computed(blocks) == list(blocks)
        cache.end(blocks, (), 0)
    assert cache.begin((1, 9), 0) == (1, [3])
    cache.computed((9,))
    assert cache.begin((5, 6, 7), 0) is None, "two are in use and two are idle"
    assert cache.begin((4, 6), 0) == (1, [2])
    cache.check()


def test_answers_take_room_and_are_found_by_those_who_know_them() -> None:
    cache = Cache(4)
    assert cache.begin((1,), 2) == (0, [])
    cache.computed((1,))
    assert cache.begin((7, 8), 0) is None
    assert cache.end((1,), (2,), 2) == [2]
    assert depth((1, 2, 3), cache) == 2
    assert cache.begin((7, 8), 0) == (0, []), "one is free, and the answer's other block is nobody's"
    assert depth((1, 2), cache) == 2
    cache.check()


def test_two_engines_by_hand() -> None:
    workload = Workload(
        "by hand",
        100,
        [
            request(0.0, 1000, range(10), output=11),  # 10 steps of 0.2 s
            request(5.0, 1010, [*range(8), 98, 99]),  # finds 8 blocks: 210 tokens to go
            request(5.0, 500, range(20, 25)),  # finds the other engine idle
        ],
    )
    simulation = Simulation(workload, SLOW, RoutingSettings(policy="kv"), engines=2)
    result = simulation.run()
    waits = {job.number: job.first_at - job.request.at for job in simulation.done}
    assert waits == pytest.approx({0: 2.0, 1: 0.42, 2: 1.0})
    assert [job.found for job in sorted(simulation.done, key=lambda job: job.number)] == [0, 8, 0]
    assert {job.number: job.engine for job in simulation.done}[0] == {
        job.number: job.engine for job in simulation.done
    }[1]
    assert result.hit_rate == pytest.approx(8 / 25)
    assert result.of_unlimited == 1.0
    assert result.predicted_exactly == 1.0
    assert result.ttft_mean == pytest.approx((2.0 + 0.42 + 1.0) / 3)
    assert result.spread_requests == pytest.approx(2 / 1.5)
    assert result.prefill_busy == pytest.approx((2.42 + 1.0) / 2 / 6.0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", [multi_turn, shared_prefix])
@pytest.mark.parametrize("share", [4, 1])
def test_every_request_ends_and_nobody_finds_more_than_there_is(policy: PolicyName, make: object, share: int) -> None:
    assert callable(make)
    made: Workload = make(120, 5)
    capacity = made.distinct_blocks // 3 // share
    workload, spec = prepare(made, replace(Spec(), max_running=8), 3, 0.9, capacity)
    simulation = Simulation(workload, spec, RoutingSettings(policy=policy), engines=3, frontends=2)
    result = simulation.run()
    assert sorted(job.number for job in simulation.done) == list(range(120))
    assert sum(job.found for job in simulation.done) <= workload.unlimited_hits()
    assert all(job.request.at < job.first_at <= job.done_at for job in simulation.done)
    assert 1.0 <= result.spread_requests <= 3.0
    for engine in simulation.engines:
        assert engine.in_flight == 0
        engine.cache.check()
    for frontend in simulation.frontends:
        assert frontend.ledger.in_flight == 0
        frontend.ledger.check()


def test_the_index_of_each_frontend_ends_up_as_the_caches_are() -> None:
    made = multi_turn(150, 5)
    workload, spec = prepare(made, Spec(), 3, 0.7, made.distinct_blocks // 12)
    simulation = Simulation(workload, spec, RoutingSettings(policy="kv"), engines=3, frontends=2)
    simulation.run()
    found = 0
    served: list[int] = []
    for frontend in simulation.frontends:
        assert frontend.knowledge is not None
        frontend.knowledge.check()
        ranks = frontend.knowledge.view(1e9).ranks
        assert all(rank.orphans == 0 for rank in ranks)
        served.append(sum(rank.requests for rank in ranks))
        for asked in workload.requests:
            prompt = frontend.knowledge.prompt(tokens_of(asked, 64), session=None, now=1e9)
            for candidate, engine in zip(frontend.candidates, simulation.engines, strict=True):
                blocks = depth(asked.blocks, engine.cache)
                found += blocks
                assert prompt.held(candidate) == min(blocks, (asked.tokens - 1) // 64) * 64
    assert found > 0
    assert sum(served) == 150
    assert min(served) > 40, "clients are spread over the frontends"


def test_the_same_seed_gives_the_same_run_and_policies_get_the_same_clients() -> None:
    made = multi_turn(100, 5)
    assert made == multi_turn(100, 5)
    workload, spec = prepare(made, Spec(), 4, 0.7, None)

    def run(policy: PolicyName, seed: int) -> Result:
        simulation = Simulation(workload, spec, RoutingSettings(policy=policy), engines=4, frontends=2, seed=seed)
        return replace(simulation.run(), cpu_us=0.0)

    assert run("kv", 1) == run("kv", 1)
    assert run("random", 1) != run("random", 2)


def test_the_load_is_a_share_of_what_engines_sustain_without_hits() -> None:
    workload = Workload("even", 100, [request(float(i), 1000, range(i * 10, i * 10 + 10), 10) for i in range(50)])
    # 10 steps of 0.2 s each, so half a request a second; two engines at 0.7.
    at_load, spec = prepare(workload, SLOW, 2, 0.7, None)
    assert SLOW.most_per_second(workload) == pytest.approx(0.5)
    assert len(at_load.requests) / at_load.requests[-1].at == pytest.approx(0.7)
    assert spec.blocks == 275, "each answer takes a block of its own"


def test_the_trace_is_read_as_recorded_or_smoothed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(0, [0, 1]), (0, [0, 2]), (3000, [0, 1, 3]), (3000, [0, 4])]
    path.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": 500 * len(ids), "output_length": 7, "hash_ids": ids}) + "\n"
            for at, ids in rows
        )
    )
    plain = trace(path, None, smooth=False)
    assert [r.at for r in plain.requests] == [0.0, 0.0, 3.0, 3.0]
    assert plain.requests[2] == Request(3.0, 1500, (0, 1, 3), 7)
    assert (plain.total_blocks, plain.unlimited_hits()) == (9, 4)
    assert [r.at for r in trace(path, 3, smooth=True).requests] == [0.0, 1.5, 3.0]


def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--workload", "multi-turn", "--requests", "60", "--engines", "2", "--policies", "least-loaded,kv"]
    assert main([*words, "--weights", "prefill=2,temperature=0.1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [result["policy"] for result in told["results"]] == ["least-loaded", "kv"]
    assert all(result["requests"] == 60 for result in told["results"])
    assert main(words) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
