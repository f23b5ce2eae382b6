"""The simulator's part of a hand-over: what waits for another engine, what is passed on, what came."""

from __future__ import annotations

import pytest

from enginehouse.mock.handover.legs import Fetch, Keep, Leg, Meet, Offer
from enginehouse.mock.kv.news import Stored
from enginehouse.mock.simulator import End
from tests.unit.mock.test_simulator import PROMPT, VOCABULARY, job, run, simulator

PULLS = [Meet("h", 1, 5), Fetch({})]


@pytest.mark.parametrize("leg", [Offer(5), *PULLS])
def test_a_leg_that_must_meet_another_engine_is_not_worked_on_before(leg: Leg) -> None:
    sim = simulator(max_running=1)
    waits = sim.submit(job("waits", leg=leg))
    run(sim)
    assert waits.output == []
    sim.submit(job("free"))
    assert [rid for _, rid, _ in run(sim)] == ["free"] * 3, "it takes no place"


def test_prefill_ends_only_when_the_cache_has_gone_over() -> None:
    sim = simulator(prefill_tokens_per_second=40.0, max_running=1)
    answer = sim.submit(job(max_tokens=1, leg=Offer(5)))
    sim.release(answer, None)
    assert run(sim) == [(1.0, "r", 0)]
    assert (answer.passing, answer.output, sim.ranks[0].running) == (True, [], 1)
    assert len(sim.ranks[0].cache) == 2, "it holds what it has computed"
    assert sim.ranks[0].held_tokens() == len(PROMPT)
    sim.submit(job("next", max_tokens=1))
    assert run(sim, now=2.0) == [], "a cache on its way takes a place"
    sim.pass_on(answer)
    assert run(sim, now=2.0)[0] == (2.0, "r", 1)
    assert answer.end is End.LENGTH
    assert not answer.passing


@pytest.mark.parametrize("leg", PULLS)
def test_decode_computes_nothing_of_a_prompt_that_came_and_holds_it(leg: Leg) -> None:
    sim = simulator(prefill_tokens_per_second=0.001, kv_events_port=0)
    slow = sim.submit(job("slow", prompt=PROMPT[1:]))
    answer = sim.submit(job(leg=leg))
    sim.step(0.0)
    sim.release(answer, 17)
    assert run(sim, until=1.0) == [(0.0, "r", 1), (0.1, "r", 2), (0.2, "r", 3)]
    assert answer.output == VOCABULARY.answer(PROMPT, 3)
    assert answer.cached == 17
    assert slow.output == []
    (news,) = sim.ranks[0].news or ()
    assert isinstance(news, Stored)
    assert list(news.token_ids) == PROMPT[:32]


def test_what_is_kept_runs_as_any_other() -> None:
    sim = simulator()
    answer = sim.submit(job(max_tokens=1, leg=Keep()))
    run(sim)
    assert answer.end is End.LENGTH


@pytest.mark.parametrize("how", ["fail", "abort"])
@pytest.mark.parametrize("stage", ["meeting", "waiting", "passing", "decoding"])
def test_an_end_at_every_stage_leaves_nothing_behind(stage: str, how: str) -> None:
    sim = simulator(prefill_tokens_per_second=1.0 if stage == "waiting" else 0.0, max_running=1)
    answer = sim.submit(job(leg=Offer(5)))
    if stage == "waiting":
        sim.submit(job("first"))
        sim.step(0.0)
    if stage != "meeting":
        sim.release(answer, None)
        sim.step(0.0)
    if stage == "decoding":
        sim.pass_on(answer)
        sim.step(0.0)
    if how == "fail":
        sim.fail(answer, "gone")
    else:
        sim.abort(answer)
    assert answer.end is (End.HANDOVER if how == "fail" else End.ABORT)
    rank = sim.ranks[0]
    for place in (rank.meeting, rank.waiting, rank.prefilling, rank.passing, rank.decoding):
        assert answer not in place
