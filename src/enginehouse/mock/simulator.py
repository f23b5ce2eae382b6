"""What a mock engine does and when: queue, prefill, decode steps, ends. Time is an argument; nothing here waits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from enginehouse.mock.handover.legs import Leg, Offer, waits
from enginehouse.mock.kv.news import Cleared, News, Removed, Stored
from enginehouse.mock.prefix_cache import PrefixCache
from enginehouse.mock.settings import Faults, MockSettings
from enginehouse.mock.vocabulary import Vocabulary
from enginehouse.mock.wishes import NONE, Wishes


class End(StrEnum):
    """Why an answer ended."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"
    ERROR = "error"
    """An injected failure."""
    VANISHED = "vanished"
    """An injected end without a terminal message."""
    HANDOVER = "handover"
    """The KV cache did not pass from engine to engine."""


@dataclass(frozen=True)
class Job:
    """A request in engine words: limits are resolved and checked by the front."""

    rid: str
    prompt: Sequence[int]
    max_tokens: int
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    rank: int | None = None
    lora: str = ""
    """The adapter that answers. Prompts to different ones share no cached blocks."""
    leg: Leg | None = None
    """Its part in a hand-over; None: the engine does all of it."""
    wishes: Wishes = NONE
    said: Sequence[int] = ()
    """What it is answered, and after that EOS; empty: the engine's words."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """SGLang: the first token of an answer, drawn by the prefill engine as that was asked to."""

    token: int
    logprobs: int | None
    """So many of the most likely ones it was asked for; None: not even for the token's own probability."""


@dataclass(eq=False, slots=True)
class Answer:
    """One request inside the engine, and what it has said so far."""

    job: Job
    rank: int
    seed: int
    output: list[int] = field(default_factory=list)
    end: End | None = None
    matched: int | None = None
    """The stop token that ended it; the EOS token counts as one."""
    chain: list[bytes] = field(default_factory=list)
    """Keys of its full blocks so far, those of the output too."""
    full_at: int = -1
    """Position in the output of the token after the one that fills its next block."""
    cached: int = 0
    """Prompt tokens that were not computed anew."""
    taken: int = 0
    """Tokens that its reader has handed on; without a set pace no more are made until all were."""
    prefilled_at: float | None = None
    passing: bool = False
    """Its prompt is computed, and the cache is on its way to a decode engine."""
    passed: bool = False
    """It is or was on its way."""
    came: int | None = None
    """Its prompt's cache came from another engine; so many of its tokens count as cached."""
    drawn: Drawn | None = None
    """Its first token came along."""
    trouble: str = ""
    """Why its hand-over failed."""

    def tokens(self, start: int, end: int) -> list[int]:
        """The tokens at these positions of prompt and output together."""
        prompt, output = self.job.prompt, self.output
        split = len(prompt)
        return [*prompt[start:end], *output[max(0, start - split) : max(0, end - split)]]


class Rank:
    """One data-parallel rank: a queue, what runs, a cache."""

    def __init__(self, settings: MockSettings) -> None:
        self.meeting: dict[Answer, None] = {}
        """Not to be worked on before another engine is met."""
        self.waiting: deque[Answer] = deque()
        self.prefilling: deque[Answer] = deque()
        self.passing: dict[Answer, None] = {}
        self.decoding: dict[Answer, None] = {}
        self.cache = PrefixCache(settings.block_size, settings.kv_blocks, settings.hash_seed)
        self.news: list[News] | None = None if settings.kv_events_port is None else []
        """What its cache did since that was last told; None: nobody wants to know."""
        self.prefill_free_at = 0.0

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.passing) + len(self.decoding)

    def held_tokens(self) -> int:
        """Tokens of the requests it works on."""
        answers = (*self.prefilling, *self.passing, *self.decoding)
        return sum(len(answer.job.prompt) + len(answer.output) for answer in answers)


class Simulator:
    """One engine. `step(now)` advances it to `now`; `wake_at(now)` says when to call that next."""

    def __init__(self, settings: MockSettings, vocabulary: Vocabulary) -> None:
        self.settings = settings
        self.vocabulary = vocabulary
        self.faults: Faults = settings.faults()
        self.ranks = [Rank(settings) for _ in range(settings.ranks)]
        self.made = 0
        """Tokens over all requests since the faults were last set."""
        self.dead = False
        self._period = 1 / settings.tokens_per_second if settings.tokens_per_second else 0.0
        self._next_tick = 0.0

    def set_faults(self, faults: Faults) -> None:
        """Misbehave like this from now on."""
        if faults.kv_restarts != self.faults.kv_restarts and faults.kv_restart_forgets:
            for rank in self.ranks:
                rank.cache.clear()
                if rank.news is not None:
                    rank.news.clear()
        self.faults = faults
        self.made = 0

    def clear_caches(self) -> None:
        """Forget every block. As in vLLM this is told with the news of the next step that has any work."""
        for rank in self.ranks:
            rank.cache.clear()
            if rank.news is not None:
                rank.news.append(Cleared())

    def submit(self, job: Job) -> Answer:
        """Queue a request at its rank, or at the least loaded one."""
        number = job.rank
        if number is None:
            number = min(range(len(self.ranks)), key=lambda n: self.ranks[n].running + len(self.ranks[n].waiting))
        answer = Answer(job, number, self.vocabulary.seed(job.prompt))
        if waits(job.leg):
            self.ranks[number].meeting[answer] = None
        else:
            self.ranks[number].waiting.append(answer)
        return answer

    def release(self, answer: Answer, cached: int | None, drawn: Drawn | None = None) -> None:
        """Another engine was met: queue the request. cached: the cache of its prompt has come from there."""
        rank = self.ranks[answer.rank]
        del rank.meeting[answer]
        answer.came, answer.drawn = cached, drawn
        rank.waiting.append(answer)

    def pass_on(self, answer: Answer) -> None:
        """The cache of a computed prompt has gone over."""
        rank = self.ranks[answer.rank]
        del rank.passing[answer]
        answer.passing = False
        rank.prefilling.appendleft(answer)

    def fail(self, answer: Answer, trouble: str) -> None:
        """The hand-over of a request failed."""
        answer.trouble = trouble
        self._finish(answer, End.HANDOVER)

    def full(self, rank: int | None) -> bool:
        """Whether a request for this rank (None: any) would find no place, running or queued."""
        limit = self.settings.max_waiting
        ranks = self.ranks if rank is None else [self.ranks[rank]]
        return bool(limit) and all(
            one.running >= self.settings.max_running and len(one.waiting) >= limit for one in ranks
        )

    def abort(self, answer: Answer) -> None:
        """Stop working on a request, wherever it is."""
        if answer.end is None:
            self._finish(answer, End.ABORT)

    def step(self, now: float) -> list[Answer]:
        """Do what is due; returns the answers that have news."""
        news: list[Answer] = []
        if not self.faults.never_answer:
            for rank in self.ranks:
                self._admit(rank, now)
        if not self.faults.prefill_hold:
            for rank in self.ranks:
                self._end_prefills(rank, now, news)
        if self._period:
            self._tick(now, news)
        else:
            for rank in self.ranks:
                for answer in list(rank.decoding):
                    if answer.taken == len(answer.output) and self._emit(answer):
                        news.append(answer)
        return news

    def wake_at(self, now: float) -> float | None:
        """When the next step is due; None: not before something else happens."""
        due = math.inf
        for rank in self.ranks:
            if rank.waiting and rank.running < self.settings.max_running and not self.faults.never_answer:
                return now
            if rank.prefilling and not self.faults.prefill_hold:
                due = min(due, rank.prefilling[0].prefilled_at or now)
            if not rank.decoding:
                continue
            if self._period:
                due = min(due, self._next_tick)
            elif any(answer.taken == len(answer.output) and not self._stalled(answer) for answer in rank.decoding):
                return now
        return None if due == math.inf else due

    def _admit(self, rank: Rank, now: float) -> None:
        while rank.waiting and rank.running < self.settings.max_running:
            answer = rank.waiting.popleft()
            prompt, speed = answer.job.prompt, self.settings.prefill_tokens_per_second
            answer.chain = rank.cache.chain(prompt, answer.job.lora)
            if answer.came is not None:
                answer.cached, answer.prefilled_at = answer.came, now
                rank.prefilling.appendleft(answer)
                continue
            held = rank.cache.match(answer.chain, len(prompt))
            answer.cached = 0 if self.faults.kv_lies else held
            begin = max(now, rank.prefill_free_at)
            answer.prefilled_at = begin + ((len(prompt) - answer.cached) / speed if speed else 0.0)
            rank.prefill_free_at = answer.prefilled_at
            rank.prefilling.append(answer)

    def _end_prefills(self, rank: Rank, now: float, news: list[Answer]) -> None:
        while rank.prefilling and (rank.prefilling[0].prefilled_at or 0.0) <= now:
            answer = rank.prefilling.popleft()
            self._hold(rank, answer)
            if isinstance(answer.job.leg, Offer) and not answer.passed:
                answer.passed = answer.passing = True
                rank.passing[answer] = None
                news.append(answer)
                continue
            answer.full_at = (len(answer.chain) + 1) * self.settings.block_size - len(answer.job.prompt)
            if not any(one.decoding for one in self.ranks):
                self._next_tick = now + self._period
            rank.decoding[answer] = None
            if self._emit(answer):
                news.append(answer)

    def _tick(self, now: float, news: list[Answer]) -> None:
        if now < self._next_tick:
            return
        # A late caller gets one step now and the missed ones right after, but no more than a second's worth.
        self._next_tick = max(self._next_tick + self._period, now - 1.0)
        fresh = set(news)
        for rank in self.ranks:
            for answer in list(rank.decoding):
                if answer not in fresh and self._emit(answer):
                    news.append(answer)

    def _stalled(self, answer: Answer) -> bool:
        limit = self.faults.stall_after_tokens
        return bool(limit) and len(answer.output) >= limit

    def _emit(self, answer: Answer) -> bool:
        """Make one token of an answer; False: it has no news."""
        faults, position = self.faults, len(answer.output)
        if self._stalled(answer) or self.dead:
            return False
        if faults.error_after_tokens and position >= faults.error_after_tokens:
            self._finish(answer, End.ERROR)
            return True
        if faults.fail_constrained and answer.job.wishes.constraint is not None and not position:
            self._finish(answer, End.ERROR)
            return True
        if faults.vanish_after_tokens and position >= faults.vanish_after_tokens:
            self._finish(answer, End.VANISHED)
            return True
        if faults.die_after_tokens and self.made >= faults.die_after_tokens:
            self.dead = True
            return False
        job, eos = answer.job, self.vocabulary.eos
        token = self.token(answer, position)
        may_end = position >= job.min_tokens
        if self.settings.eos_after and position + 1 >= self.settings.eos_after and may_end and not job.ignore_eos:
            token = eos
        self.made += 1
        answer.output.append(token)
        if position == answer.full_at:
            self._extend(answer)
        ends_here = token in job.stop_ids or (token == eos and not job.ignore_eos)
        if ends_here and may_end:
            answer.matched = token
            self._finish(answer, End.STOP)
        elif position + 1 >= job.max_tokens:
            self._finish(answer, End.LENGTH)
        return True

    def token(self, answer: Answer, position: int) -> int:
        """What it says there, if nothing ends it."""
        said = answer.job.said
        if answer.drawn is not None and position == 0:
            return answer.drawn.token
        if not said:
            return self.vocabulary.token(answer.seed, position)
        return said[position] if position < len(said) else self.vocabulary.eos

    def _extend(self, answer: Answer) -> None:
        """Another block of an answer is full: hold it. A token counts once it was fed back, a step later."""
        rank, size = self.ranks[answer.rank], self.settings.block_size
        start = len(answer.chain) * size
        rank.cache.extend(answer.chain, answer.tokens(start, start + size), answer.job.lora)
        answer.full_at += size
        self._hold(rank, answer)

    def _hold(self, rank: Rank, answer: Answer) -> None:
        """Keep all full blocks of an answer, and note what that changed."""
        first, end, removed = rank.cache.store(answer.chain)
        if rank.news is not None:
            if removed:
                rank.news.append(Removed(removed))
            if end > first:
                size, chain = self.settings.block_size, answer.chain
                parent = chain[first - 1] if first else None
                tokens = answer.tokens(first * size, end * size)
                rank.news.append(Stored(chain[first:end], parent, tokens, answer.job.lora))

    def _finish(self, answer: Answer, end: End) -> None:
        answer.end = end
        rank = self.ranks[answer.rank]
        if answer in rank.decoding:
            del rank.decoding[answer]
            self._hold(rank, answer)
        elif answer in rank.passing:
            del rank.passing[answer]
        elif answer in rank.meeting:
            del rank.meeting[answer]
        elif answer in rank.prefilling:
            rank.prefilling.remove(answer)
        elif answer in rank.waiting:
            rank.waiting.remove(answer)
