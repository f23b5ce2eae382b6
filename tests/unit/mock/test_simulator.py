"""The simulator: queue, prefill, steps and ends, with time as an argument."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.mock.kv.news import Cleared, News, Removed, Stored
from enginehouse.mock.prefix_cache import PrefixCache
from enginehouse.mock.settings import Faults, MockSettings
from enginehouse.mock.simulator import Answer, End, Job, Simulator
from enginehouse.mock.vocabulary import load_vocabulary

VOCABULARY = load_vocabulary()
PROMPT = list(range(300, 340))


def simulator(**settings: Any) -> Simulator:
    return Simulator(MockSettings(**{"tokens_per_second": 10.0, **settings}), VOCABULARY)


def job(rid: str = "r", *, prompt: list[int] = PROMPT, max_tokens: int = 3, **more: Any) -> Job:
    return Job(rid, prompt, max_tokens, **more)


def run(sim: Simulator, until: float = 100.0, now: float = 0.0) -> list[tuple[float, str, int]]:
    """Step whenever it asks to be woken; returns (time, rid, tokens so far) of all news. Readers keep up."""
    log = []
    while (due := sim.wake_at(now)) is not None and due <= until:
        now = max(now, due)
        for answer in sim.step(now):
            log.append((round(now, 6), answer.job.rid, len(answer.output)))
            answer.taken = len(answer.output)
    return log


def test_tokens_are_a_function_of_prompt_and_position() -> None:
    first, second = simulator(), simulator(ranks=2, tokens_per_second=0.0)
    answers = [sim.submit(job(max_tokens=20)) for sim in (first, second)]
    run(first)
    run(second)
    assert answers[0].output == answers[1].output == VOCABULARY.answer(PROMPT, 20)
    assert VOCABULARY.answer(PROMPT, 20) != VOCABULARY.answer(PROMPT[1:], 20)
    assert not {0, 1, 2} & set(VOCABULARY.words)


def test_all_streams_advance_in_one_step() -> None:
    sim = simulator()
    for rid in "abc":
        sim.submit(job(rid))
    assert run(sim) == [(t, rid, n) for t, n in ((0.0, 1), (0.1, 2), (0.2, 3)) for rid in "abc"]


def test_a_newcomer_joins_the_running_step() -> None:
    sim = simulator()
    sim.submit(job("a", max_tokens=4))
    log = run(sim, until=0.15)
    sim.submit(job("b", max_tokens=2))
    log += run(sim, now=0.15)
    assert log == [(0.0, "a", 1), (0.1, "a", 2), (0.15, "b", 1), (0.2, "a", 3), (0.2, "b", 2), (0.3, "a", 4)]


def test_prefill_takes_time_for_what_is_not_cached() -> None:
    sim = simulator(prefill_tokens_per_second=40.0, block_size=8)
    sim.submit(job("cold", max_tokens=1))
    assert run(sim) == [(1.0, "cold", 1)]
    warm = sim.submit(job("warm", max_tokens=1))
    assert run(sim, now=1.0) == [(1.2, "warm", 1)]  # 40 tokens, 4 blocks of 8 cached, 8 to compute
    assert warm.cached == 32


def test_prefills_of_a_rank_queue_up() -> None:
    sim = simulator(prefill_tokens_per_second=40.0)
    for number in range(2):
        sim.submit(job(str(number), prompt=[number, *PROMPT[1:]], max_tokens=1))
    assert run(sim) == [(1.0, "0", 1), (2.0, "1", 1)]


def test_beyond_max_running_requests_wait_in_order() -> None:
    sim = simulator(max_running=1, max_waiting=1)
    sim.submit(job("a", max_tokens=2))
    sim.step(0.0)
    assert not sim.full(None)
    sim.submit(job("b", max_tokens=1))
    assert sim.full(None)
    assert sim.ranks[0].running == 1
    assert len(sim.ranks[0].waiting) == 1
    assert run(sim) == [(0.1, "a", 2), (0.1, "b", 1)]


def test_unpaced_makes_no_token_before_the_last_was_taken() -> None:
    sim = simulator(tokens_per_second=0.0)
    answer = sim.submit(job(max_tokens=9))
    sim.step(0.0)
    assert (len(answer.output), sim.wake_at(0.0)) == (1, None)
    assert sim.step(5.0) == []
    answer.taken = 1
    assert sim.wake_at(5.0) == 5.0
    assert sim.step(5.0) == [answer]


def test_a_late_step_is_made_up_for_but_not_without_end() -> None:
    sim = simulator()
    answer = sim.submit(job(max_tokens=1000))
    run(sim, until=0.05)
    run(sim, until=60.0, now=60.0)
    assert len(answer.output) <= 13  # first token, this step, and a second's worth


@pytest.mark.parametrize(
    ("settings", "request_", "length", "end", "matched"),
    [
        ({}, {"max_tokens": 5}, 5, End.LENGTH, None),
        ({"eos_after": 3}, {"max_tokens": 5}, 3, End.STOP, VOCABULARY.eos),
        ({"eos_after": 3}, {"max_tokens": 5, "ignore_eos": True}, 5, End.LENGTH, None),
        ({"eos_after": 1}, {"max_tokens": 5, "min_tokens": 2}, 3, End.STOP, VOCABULARY.eos),
        ({}, {"max_tokens": 5, "stop_ids": {1}}, 2, End.STOP, 1),
        ({}, {"max_tokens": 5, "stop_ids": {1}, "min_tokens": 2}, 5, End.LENGTH, None),
        ({}, {"max_tokens": 2, "stop_ids": {1}}, 2, End.STOP, 1),
    ],
)
def test_ends(settings: dict[str, Any], request_: dict[str, Any], length: int, end: End, matched: int | None) -> None:
    """`stop_ids` and `matched` of 1 stand for the token at position 1 of the answer."""
    said = VOCABULARY.answer(PROMPT, 5)
    if "stop_ids" in request_:
        request_ = {**request_, "stop_ids": frozenset({said[1]})}
    sim = simulator(**settings)
    answer = sim.submit(job(**request_))
    run(sim)
    assert (len(answer.output), answer.end) == (length, end)
    assert answer.matched == (said[1] if matched == 1 else matched)


def test_abort_anywhere_leaves_nothing_behind() -> None:
    sim = simulator(max_running=2, prefill_tokens_per_second=40.0)
    answers = [sim.submit(job(str(number), prompt=[number, *PROMPT], max_tokens=50)) for number in range(3)]
    run(sim, until=1.2)  # 0 decodes, 1 is in prefill, 2 waits
    for answer in answers:
        sim.abort(answer)
    rank = sim.ranks[0]
    assert (rank.running, len(rank.waiting), rank.held_tokens(), sim.wake_at(2.0)) == (0, 0, 0, None)
    assert {answer.end for answer in answers} == {End.ABORT}
    sim.abort(answers[0])  # again: harmless


@pytest.mark.parametrize(
    ("fault", "length", "end"),
    [
        ({"stall_after_tokens": 2}, 2, None),
        ({"error_after_tokens": 2}, 2, End.ERROR),
        ({"vanish_after_tokens": 2}, 2, End.VANISHED),
        ({"never_answer": True}, 0, None),
        ({"prefill_hold": True}, 0, None),
    ],
)
def test_faults(fault: dict[str, Any], length: int, end: End | None) -> None:
    sim = simulator()
    answer = sim.submit(job(max_tokens=5))
    sim.set_faults(Faults(**fault))
    sim.step(0.0)
    for tick in range(1, 10):
        sim.step(tick / 10)
    assert (len(answer.output), answer.end) == (length, end)
    sim.set_faults(Faults())
    if end is None:
        run(sim, now=1.0)
        assert answer.end is End.LENGTH


def test_death_counts_tokens_since_the_fault_was_set() -> None:
    sim = simulator()
    sim.submit(job("a", max_tokens=4))
    run(sim)
    sim.set_faults(Faults(die_after_tokens=3))
    answer = sim.submit(job("b", max_tokens=9))
    now = 1.0
    while not sim.dead:
        sim.step(now)
        now += 0.1
    assert len(answer.output) == 3


def test_ranks_are_chosen_by_load_or_named() -> None:
    sim = simulator(ranks=3)
    assert [sim.submit(job(str(number))).rank for number in range(4)] == [0, 1, 2, 0]
    assert sim.submit(job("named", rank=2)).rank == 2


_moves = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 60), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("step"), st.integers(0, 40), st.just(0)),
    ),
    max_size=60,
)


@given(_moves, st.sampled_from([0.0, 10.0]), st.sampled_from([0.0, 100.0]), st.integers(1, 3))
def test_cached_tokens_are_true_and_everything_ends(
    moves: list[tuple[str, int, int]], pace: float, prefill: float, ranks: int
) -> None:
    """Whatever is submitted, aborted and stepped: counts stay in bounds, and what was not aborted ends by length."""
    sim = simulator(
        tokens_per_second=pace, prefill_tokens_per_second=prefill, ranks=ranks, max_running=2, block_size=4, kv_blocks=6
    )
    answers: list[Answer] = []
    now = 0.0
    for kind, number, more in moves:
        if kind == "submit":
            answers.append(sim.submit(job(str(len(answers)), prompt=[300] * number, max_tokens=more)))
        elif kind == "abort" and number < len(answers):
            sim.abort(answers[number])
        elif kind == "step":
            now += number / 100
            for answer in sim.step(now):
                answer.taken = len(answer.output)
        for rank in sim.ranks:
            assert rank.running <= 2
            assert len(rank.cache) <= 6
    run(sim, until=1e6, now=now)
    for answer in answers:
        assert answer.end in (End.LENGTH, End.ABORT)
        assert answer.cached % 4 == 0
        assert answer.cached < len(answer.job.prompt)
    assert all(rank.running == 0 and not rank.waiting for rank in sim.ranks)


class Follower:
    """What somebody who believes the news thinks of a cache: its keys, and the tokens of each block."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.held: dict[bytes, tuple[int, ...]] = {}
        """Key to all tokens up to the block's end."""

    def hear(self, news: list[News]) -> None:
        for item in news:
            if isinstance(item, Cleared):
                self.held.clear()
            elif isinstance(item, Removed):
                for key in item.keys:
                    del self.held[key]  # only what was told may go
            else:
                self._store(item)
        news.clear()

    def _store(self, item: Stored) -> None:
        assert item.keys
        assert len(item.token_ids) == len(item.keys) * self.block_size
        before = () if item.parent is None else self.held[item.parent]
        for position, key in enumerate(item.keys):
            before += tuple(item.token_ids[position * self.block_size : (position + 1) * self.block_size])
            assert key not in self.held
            self.held[key] = before


_kv_moves = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 20), st.integers(1, 14)),
        st.tuples(st.just("again"), st.integers(0, 20), st.integers(1, 9)),
        st.tuples(st.just("abort"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 12), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=30,
)


@given(_kv_moves, st.integers(0, 20), st.integers(1, 5), st.sampled_from([0.0, 100.0]))
def test_news_tell_exactly_what_each_cache_holds(
    moves: list[tuple[str, int, int]], capacity: int, block_size: int, prefill: float
) -> None:
    """Whatever is submitted, continued, aborted, cleared: who follows the news knows keys and tokens at any time."""
    sim = simulator(
        prefill_tokens_per_second=prefill,
        ranks=2,
        max_running=2,
        block_size=block_size,
        kv_blocks=capacity,
        kv_events_port=0,
    )
    followers = [Follower(block_size) for _ in sim.ranks]
    answers: list[Answer] = []
    now = 0.0

    def check() -> None:
        for rank, follower in zip(sim.ranks, followers, strict=True):
            assert rank.news is not None
            follower.hear(rank.news)
            assert set(follower.held) == set(rank.cache)
            for key, tokens in follower.held.items():
                assert rank.cache.chain(tokens)[-1] == key

    for kind, number, more in moves:
        if kind == "submit":
            answers.append(sim.submit(job(str(len(answers)), prompt=[300 + number % 3] * number, max_tokens=more)))
        elif kind == "again" and number < len(answers):
            prompt = [*answers[number].job.prompt, *answers[number].output]
            answers.append(sim.submit(job(str(len(answers)), prompt=prompt, max_tokens=more)))
        elif kind == "abort" and number < len(answers):
            sim.abort(answers[number])
        elif kind == "step":
            for _ in range(number):
                now += 0.1
                sim.step(now)
                check()
        elif kind == "clear":
            sim.clear_caches()
        check()


def test_blocks_of_the_answer_are_told_when_they_fill() -> None:
    sim = simulator(block_size=4, kv_events_port=0)
    answer = sim.submit(job(prompt=PROMPT[:6], max_tokens=12))
    told = []
    sim.step(0.0)
    for tick in range(1, 14):
        assert sim.ranks[0].news is not None
        told += [(len(answer.output), item) for item in sim.ranks[0].news if isinstance(item, Stored)]
        sim.ranks[0].news.clear()
        sim.step(tick / 10)
    tokens = [*PROMPT[:6], *VOCABULARY.answer(PROMPT[:6], 12)]
    # A token is computed into the cache when it is fed back, one step after it was said.
    assert [(made, item.token_ids) for made, item in told] == [
        (1, tokens[:4]),
        (3, tokens[4:8]),
        (7, tokens[8:12]),
        (11, tokens[12:16]),
    ]
    keys = PrefixCache(4, 9).chain(tokens[:16])
    assert [(item.parent, *item.keys) for _, item in told] == list(zip([None, *keys], keys, strict=False))


def test_what_ends_last_is_evicted_last() -> None:
    sim = simulator(block_size=4, kv_blocks=3)
    sim.submit(job("long", prompt=PROMPT[:4], max_tokens=4))
    sim.step(0.0)
    sim.submit(job("short", prompt=PROMPT[4:8], max_tokens=1))
    run(sim, now=0.05)
    sim.submit(job("big", prompt=PROMPT[8:16], max_tokens=1))
    run(sim, now=9.0)
    cache = PrefixCache(4, 9)
    assert set(sim.ranks[0].cache) == {*cache.chain(PROMPT[:4]), *cache.chain(PROMPT[8:16])}


def test_what_makes_room_goes_before_what_comes_in() -> None:
    sim = simulator(block_size=4, kv_blocks=2, kv_events_port=0)
    for start in (0, 20):
        sim.submit(job(str(start), prompt=PROMPT[start : start + 8], max_tokens=1))
        run(sim)
    cache = PrefixCache(4, 9)
    old, new = cache.chain(PROMPT[:8]), cache.chain(PROMPT[20:28])
    assert sim.ranks[0].news == [
        Stored(old, None, PROMPT[:8]),
        Removed(old[::-1]),
        Stored(new, None, PROMPT[20:28]),
    ]


def test_nobody_asked_nothing_noted() -> None:
    sim = simulator()
    sim.submit(job())
    sim.clear_caches()
    run(sim)
    assert sim.ranks[0].news is None


def test_k5_seeds_change_every_key() -> None:
    chains = [PrefixCache(4, 9, seed).chain(PROMPT) for seed in ("", "a", "b")]
    assert not set(chains[0]) & set(chains[1])
    assert not set(chains[1]) & set(chains[2])


def test_a_liar_hits_nothing_and_tells_all_the_same() -> None:
    sim = simulator(kv_events_port=0, kv_lies=True)
    answers = []
    for number in range(2):  # one after the other, so that an honest one would find the first one's blocks
        answers.append(sim.submit(job(str(number))))
        run(sim, now=4.0 * number)
    assert [answer.cached for answer in answers] == [0, 0]
    assert len(sim.ranks[0].cache) == 2
    assert len(sim.ranks[0].news or ()) == 1
    sim.set_faults(Faults())
    honest = sim.submit(job("c"))
    run(sim, now=9.0)
    assert honest.cached == 32


def test_a_restart_that_forgets_says_nothing() -> None:
    sim = simulator(kv_events_port=0)
    sim.submit(job())
    run(sim)
    sim.set_faults(Faults(kv_restarts=1))
    assert len(sim.ranks[0].cache) == 2
    sim.set_faults(Faults(kv_restarts=2, kv_restart_forgets=True))
    assert (len(sim.ranks[0].cache), sim.ranks[0].news) == (0, [])
