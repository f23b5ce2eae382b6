"""What the simulated clients ask: the recorded trace, or generated chats and shared prefixes. Deterministic by seed.

Prompts are lists of block ids, equal ids meaning equal prefixes; tokens are made of them where the index needs some.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from random import Random

TRACE_BLOCK = 512
BLOCK = 64
"""Tokens in a block of the workloads that are made here."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and the length of its answer."""

    at: float
    """Seconds from the start."""
    tokens: int
    blocks: Sequence[int]
    """One id for each block of the prompt that can be cached. On the trace the last one may be partial."""
    output: int
    """Tokens of the answer."""
    leaves: Sequence[int] = ()
    """Blocks that the answer fills and that a later prompt may begin with, where the workload knows them."""
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival."""

    name: str
    block_size: int
    requests: Sequence[Request]

    @property
    def total_blocks(self) -> int:
        """Blocks of all prompts."""
        return sum(len(r.blocks) for r in self.requests)

    @property
    def distinct_blocks(self) -> int:
        """Blocks that a cache ends up with that never evicts, those of answers included."""
        known = {block for r in self.requests for block in (*r.blocks, *r.leaves)}
        return len(known) + sum(self.answer_blocks(r) - len(r.leaves) for r in self.requests)

    def answer_blocks(self, request: Request) -> int:
        """Blocks that an answer needs beyond those of its prompt."""
        return -(-(request.tokens + request.output) // self.block_size) - len(request.blocks)

    def unlimited_hits(self) -> int:
        """Blocks that one unlimited cache would find, were each request done before the next came."""
        seen: set[int] = set()
        hits = 0
        for request in self.requests:
            hits += depth(request.blocks, seen)
            seen.update(request.blocks)
            seen.update(request.leaves)
        return hits

    def at_rate(self, requests_per_second: float) -> Workload:
        """The same with time stretched evenly, so that the mean rate is this."""
        span = self.requests[-1].at - self.requests[0].at
        factor = len(self.requests) / requests_per_second / span if span else 1.0
        return replace(self, requests=[replace(r, at=(r.at - self.requests[0].at) * factor) for r in self.requests])


def depth(blocks: Sequence[int], held: object) -> int:
    """How many blocks at the head are held, by any container."""
    count = 0
    for block in blocks:
        if block not in held:  # type: ignore[operator]
            break
        count += 1
    return count


def trace(path: Path, limit: int | None, *, smooth: bool) -> Workload:
    """The recorded conversations. Their clock ticks every three seconds, so that some ten come at one instant.

    smooth: those of a tick are spread evenly up to the next.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    rows = rows[:limit]
    times = [row["timestamp"] / 1000 for row in rows]
    if smooth:
        times = list(_spread(times))
    requests = [
        Request(at, row["input_length"], tuple(row["hash_ids"]), row["output_length"])
        for at, row in zip(times, rows, strict=True)
    ]
    return Workload("trace", TRACE_BLOCK, requests)


def _spread(times: Sequence[float]) -> Iterator[float]:
    """Equal times become evenly spaced ones up to the next, those of the last tick as those before it."""
    start, gap = 0, 3.0
    while start < len(times):
        end = start
        while end < len(times) and times[end] == times[start]:
            end += 1
        if end < len(times):
            gap = times[end] - times[start]
        for position in range(end - start):
            yield times[start] + gap * position / (end - start)
        start = end


def multi_turn(requests: int, seed: int) -> Workload:
    """Chats: a system prompt for all, then turns that each begin with all that was said before, the answers included.

    A chat has 1 to 12 turns, a turn some hundred tokens; they come whether or not the answer before is complete.
    """
    rng = Random(f"multi-turn/{seed}")
    system = 512
    made: list[Request] = []
    chat = 0
    while len(made) < requests:
        at = rng.random() * requests
        length = system
        for _turn in range(rng.randint(1, 12)):
            length += _lengths(rng, 300)
            output = _lengths(rng, 250)
            after = length + output
            full = length // BLOCK
            blocks = tuple(_chat_block(chat, i, system // BLOCK) for i in range(full))
            leaves = tuple(_chat_block(chat, i, system // BLOCK) for i in range(full, after // BLOCK))
            made.append(Request(at, length, blocks, output, leaves, f"chat-{chat}"))
            length = after
            at += requests / 40 * (0.5 + rng.expovariate(2.0))
        chat += 1
    made.sort(key=lambda r: r.at)
    return Workload("multi-turn", BLOCK, made[:requests])


def shared_prefix(requests: int, seed: int) -> Workload:
    """Applications with a long system prompt each, some far more popular than others, and a short question."""
    rng = Random(f"shared-prefix/{seed}")
    weights = list(accumulate(1 / rank for rank in range(1, 101)))
    made = []
    for number in range(requests):
        app = rng.choices(range(100), cum_weights=weights)[0]
        shared = (1024 + app * 37 % 3072) // BLOCK
        tokens = shared * BLOCK + _lengths(rng, 400)
        blocks = [app * 1000 + i for i in range(shared)]
        blocks += [1_000_000 + number * 1000 + i for i in range(tokens // BLOCK - shared)]
        made.append(Request(0.0, tokens, tuple(blocks), _lengths(rng, 200)))
    at = 0.0
    timed = []
    for request in made:
        at += rng.expovariate(1.0)
        timed.append(replace(request, at=at))
    return Workload("shared-prefix", BLOCK, timed)


def _lengths(rng: Random, mean: int) -> int:
    return 1 + int(rng.expovariate(1 / mean))


def _chat_block(chat: int, position: int, system: int) -> int:
    return position if position < system else (chat + 1) * 100_000 + position
