"""A simulated engine: chunked prefill one prompt at a time, decoding in one batch, a prefix cache that evicts what was
used least recently. A fluid model: between two events all rates are constant, so that a request costs a few events and
not one for each token.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.sim_workload import Request, Workload, depth


@dataclass(frozen=True, slots=True)
class Spec:
    """What an engine can do. The defaults are in the range of a 70B model on four large accelerators."""

    prefill_rate: float = 10_000.0
    """Tokens per second of prefill alone."""
    chunk: int = 2048
    """Prompt tokens per step; requests that decode get one token per step."""
    step: float = 0.008
    """Seconds that any step takes."""
    step_per_request: float = 0.000_06
    """Seconds more for each request that decodes."""
    step_per_token: float = 2e-8
    """Seconds more for each token of their contexts."""
    max_running: int = 256
    blocks: int = 20_000
    """Of the KV cache."""

    def step_time(self, prefilling: bool, requests: float, context: float) -> float:
        """Seconds of one step."""
        batch = self.step + requests * self.step_per_request + context * self.step_per_token
        return batch + (self.chunk / self.prefill_rate if prefilling else 0.0)

    def most_per_second(self, workload: Workload) -> float:
        """Requests per second that it can sustain when its cache never helps: all steps carry a full chunk of prefill,
        and the batch that decodes beside it is as large as it becomes then."""
        count = len(workload.requests)
        prompt = sum(r.tokens for r in workload.requests) / count
        output = sum(r.output for r in workload.requests) / count
        context = sum(r.output * (r.tokens + r.output / 2) for r in workload.requests) / count
        per_step = self.chunk / prompt  # requests that a step starts, and as many ends
        per_step = min(per_step, self.max_running / output)
        return per_step / self.step_time(True, per_step * output, per_step * context)


class Cache:
    """Blocks by id: pinned by requests, or idle and first in line for eviction by last use, tail before head."""

    def __init__(self, blocks: int) -> None:
        self.capacity = blocks
        self._pinned: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._nameless = 0
        """Blocks being filled, whose content nobody else can use yet."""
        self._spare_id = 0

    def __contains__(self, block: object) -> bool:
        return block in self._pinned or block in self._idle

    def begin(self, blocks: Sequence[int], more: int) -> tuple[int, list[int]] | None:
        """Take a request in that needs these blocks and some more: blocks found, and ids evicted that somebody may
        know. None: no room."""
        found = depth(blocks, self)
        fresh = len(blocks) - found + more
        idle = sum(1 for block in blocks[:found] if block in self._idle)
        if len(self._pinned) + idle + self._nameless + fresh > self.capacity:
            return None
        for block in blocks[:found]:
            self._pin(block)
        evicted = []
        while len(self._pinned) + len(self._idle) + self._nameless + fresh > self.capacity:
            evicted.append(self._idle.popitem(last=False)[0])
        self._nameless += fresh
        return found, [block for block in evicted if block >= 0]

    def computed(self, blocks: Sequence[int]) -> list[int]:
        """These are filled now, pinned by the request that filled them. Returns those that are new."""
        new = [block for block in blocks if block not in self]
        self._nameless -= len(blocks)
        for block in blocks:
            self._pin(block)
        return new

    def end(self, blocks: Sequence[int], leaves: Sequence[int], more: int) -> list[int]:
        """A request that holds these ends, and its answer's blocks are cached; those that `leaves` does not name, under
        ids that nobody asks for. Returns ids that are new."""
        new = [block for block in leaves[:more] if block not in self]
        self._nameless -= more
        for _ in range(more - len(leaves)):
            self._spare_id -= 1
            self._idle[self._spare_id] = None
        for block in reversed(leaves[:more]):
            if block not in self._pinned:
                self._idle[block] = None
                self._idle.move_to_end(block)
        for block in reversed(blocks):
            self._pinned[block] -= 1
            if not self._pinned[block]:
                del self._pinned[block]
                self._idle[block] = None
        return new

    def _pin(self, block: int) -> None:
        self._idle.pop(block, None)
        self._pinned[block] = self._pinned.get(block, 0) + 1

    def check(self) -> None:
        """What must always hold."""
        assert not self._pinned.keys() & self._idle.keys()
        assert len(self._pinned) + len(self._idle) + self._nameless <= self.capacity
        assert self._nameless >= 0


class Watcher(Protocol):
    """Who hears of an engine's requests and blocks."""

    def first_token(self, job: Job, now: float) -> None:
        """The prompt is computed."""

    def finished(self, job: Job, now: float) -> None:
        """The answer is complete."""

    def blocks(
        self, engine: int, stored: Sequence[tuple[int | None, Sequence[int]]], removed: Iterable[int], now: float
    ) -> None:
        """The cache changed: runs of new blocks, each with the block before it; and blocks that are gone."""


@dataclass(slots=True)
class Job:
    """A request at an engine."""

    request: Request
    number: int
    engine: int
    predicted: int = 0
    """Tokens that the frontend took to be cached."""
    more: int = 0
    """Blocks of the answer."""
    found: int = 0
    """Blocks that the cache had."""
    left: float = 0.0
    """Tokens still to prefill."""
    first_at: float = 0.0
    done_at: float = 0.0


class Engine:
    """One engine. Whoever drives it calls `advance` at `next_at`, and whenever something is to be asked of it."""

    def __init__(self, number: int, spec: Spec, block_size: int, watcher: Watcher) -> None:
        self.number = number
        self.cache = Cache(spec.blocks)
        self.version = 0
        """Grows with each change of what happens next."""
        self.prefilled_tokens = 0
        self.prefill_seconds = 0.0
        self.requests = 0
        self._spec = spec
        self._block_size = block_size
        self._watcher = watcher
        self._waiting: deque[Job] = deque()
        self._prefilling: Job | None = None
        self._decoding: list[tuple[float, int, Job]] = []
        """By the count of steps at which each is done."""
        self._steps = 0.0
        self._context = 0.0
        self._now = 0.0

    @property
    def in_flight(self) -> int:
        """Requests here."""
        return len(self._waiting) + len(self._decoding) + (self._prefilling is not None)

    def submit(self, job: Job, now: float) -> None:
        """A request arrives."""
        self.advance(now)
        job.more = max(0, -(-(job.request.tokens + job.request.output) // self._block_size) - len(job.request.blocks))
        if len(job.request.blocks) + job.more > self.cache.capacity:
            raise ValueError(f"request {job.number} needs more than the whole cache")
        self.requests += 1
        self._waiting.append(job)
        self._start(now)

    @property
    def next_at(self) -> float | None:
        """When something happens next of itself."""
        times = []
        step = self._step_time()
        if self._prefilling is not None:
            times.append(self._now + self._prefilling.left / self._spec.chunk * step)
        if self._decoding:
            times.append(self._now + max(0.0, self._decoding[0][0] - self._steps) * step)
        return min(times, default=None)

    def advance(self, now: float) -> None:
        """Let time pass, at most until the next event, and let that happen if it is due."""
        steps = (now - self._now) / self._step_time()
        if self._prefilling is not None:
            self._prefilling.left -= steps * self._spec.chunk
            self.prefill_seconds += now - self._now
        self._steps += steps
        self._now = now
        if (job := self._prefilling) is not None and job.left <= 1e-6:
            self._prefilling = None
            self._prefilled(job, now)
        while self._decoding and self._decoding[0][0] <= self._steps + 1e-9:
            self._finish(heapq.heappop(self._decoding)[2], now)
        self._start(now)
        self.version += 1

    def _step_time(self) -> float:
        return self._spec.step_time(self._prefilling is not None, len(self._decoding), self._context)

    def _start(self, now: float) -> None:
        """Take the next request in, if one waits and there is room."""
        if self._prefilling is not None or not self._waiting or len(self._decoding) >= self._spec.max_running:
            return
        job = self._waiting[0]
        begun = self.cache.begin(job.request.blocks, job.more)
        if begun is None:
            return
        self._waiting.popleft()
        job.found, evicted = begun
        job.left = max(1, job.request.tokens - job.found * self._block_size)
        self.prefilled_tokens += int(job.left)
        self._prefilling = job
        if evicted:
            self._watcher.blocks(self.number, (), evicted, now)

    def _prefilled(self, job: Job, now: float) -> None:
        blocks, found = job.request.blocks, job.found
        new = self.cache.computed(blocks[found:])
        self._publish(blocks, found, new, now)
        job.first_at = now
        self._context += job.request.tokens + job.request.output / 2
        heapq.heappush(self._decoding, (self._steps + job.request.output - 1, job.number, job))
        self._watcher.first_token(job, now)

    def _finish(self, job: Job, now: float) -> None:
        request = job.request
        self._context -= request.tokens + request.output / 2
        new = self.cache.end(request.blocks, request.leaves, job.more)
        full = request.tokens // self._block_size
        self._publish((*request.blocks[:full], *request.leaves), full, new, now)
        self._watcher.finished(job, now)

    def _publish(self, blocks: Sequence[int], start: int, new: Sequence[int], now: float) -> None:
        """Tell of the blocks from `start` on that are new, as runs with what comes before."""
        runs: list[tuple[int | None, list[int]]] = []
        fresh = set(new)
        for position in range(start, len(blocks)):
            if blocks[position] not in fresh:
                continue
            if position > start and runs and runs[-1][1][-1] == blocks[position - 1]:
                runs[-1][1].append(blocks[position])
            else:
                runs.append((blocks[position - 1] if position else None, [blocks[position]]))
        if runs:
            self._watcher.blocks(self.number, runs, (), now)
