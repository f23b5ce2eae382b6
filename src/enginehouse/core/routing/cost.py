"""What a request costs on each rank, and which cost to take. The unit is one token that waits for prefill there.

cost = prefill weight x tokens of the prompt that the rank does not hold
     + queue weight x tokens that it still has to prefill for requests in flight
     + decode weight x prompt tokens of requests in flight
     + request weight x requests in flight
     + wait weight x the share of its work that has to end before this request can begin (0 unless it is full)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Literal, Protocol

from enginehouse.core.routing.candidate import Candidate, Prompt
from enginehouse.core.routing.settings import RoutingSettings

NEAR = 1 / 64
"""Costs that differ by less than this share of the prompt's tokens count as equal: what we know is not more exact, and
the random choice among them keeps frontends that know the same from all choosing the same."""

Rule = Literal["policy", "only-one", "affinity", "best", "near-tie", "temperature"]
"""What decided. `policy`: one that weighs no costs."""


class Chance(Protocol):
    """A source of randomness, such as `random.Random`."""

    def random(self) -> float:
        """From 0 up to, not including, 1."""


@dataclass(frozen=True, slots=True)
class Parts:
    """One rank as a decision saw it. Made only to explain."""

    engine: str
    engine_id: str
    rank: int | None
    chosen: bool
    full: bool
    """It has all the requests or tokens that it can work on at once."""
    requests: int
    tokens: int
    """Prompt tokens of the requests in flight."""
    queued: int
    """Of these, not yet computed."""
    held: int | None = None
    """Tokens of the prompt in its cache, by what is known. None, as what follows: the policy does not ask."""
    prefill: int | None = None
    """Tokens of the prompt that it would have to compute."""
    prefill_cost: float | None = None
    queue_cost: float | None = None
    decode_cost: float | None = None
    """Of the requests in flight and their tokens."""
    wait_cost: float | None = None
    cost: float | None = None
    """The sum."""


def waiting(candidate: Candidate, tokens: int) -> float:
    """The share of the rank's work that has to end before `tokens` more find room: 0 if they do now.

    At least one request's share, and above 1 when so much waits there already.
    """
    load = candidate.load
    share = 0.0
    capacity = candidate.capacity_tokens
    if capacity and load.tokens + tokens > capacity:
        share = max((load.tokens + tokens - capacity) / capacity, 1 / max(load.requests, 1))
    most = candidate.max_running
    if most and load.requests >= most:
        share = max(share, (load.requests - most + 1) / most)
    return share


def weigh(candidates: Sequence[Candidate], prompt: Prompt | None, settings: RoutingSettings) -> list[float]:
    """The cost on each. Without a prompt only the load counts."""
    tokens = 0 if prompt is None else prompt.tokens
    prefill, queue = settings.kv_prefill_weight, settings.kv_queue_weight
    decode, request, wait = settings.kv_decode_weight, settings.kv_request_weight, settings.kv_wait_weight
    costs = []
    for candidate in candidates:
        load = candidate.load
        missing = 0 if prompt is None else tokens - prompt.held(candidate)
        cost = prefill * missing + queue * load.prefill_tokens + decode * load.tokens + request * load.requests
        if share := waiting(candidate, tokens):
            cost += wait * share
        costs.append(cost)
    return costs


def pick(costs: Sequence[float], tokens: float, temperature: float, rng: Chance) -> tuple[int, Rule]:
    """The position to take, for a prompt that costs so much where nothing of it is held: as many as it has tokens."""
    best = min(costs)
    if temperature > 0:
        scale = temperature * max(tokens, 1)
        odds = [exp((best - cost) / scale) for cost in costs]
        left = rng.random() * sum(odds)
        for position, chance in enumerate(odds):
            left -= chance
            if left < 0:
                return position, "temperature"
        return costs.index(best), "temperature"  # rounding ate the last share
    limit = best + NEAR * tokens
    near = [position for position, cost in enumerate(costs) if cost <= limit]
    if len(near) == 1:
        return near[0], "best"
    return near[int(rng.random() * len(near))], "near-tie"


def parts(
    candidates: Sequence[Candidate], chosen: Candidate, prompt: Prompt | None, settings: RoutingSettings
) -> tuple[Parts, ...]:
    """Every rank as `weigh` saw it; for a policy that does not weigh, its load alone."""
    tokens = 0 if prompt is None else prompt.tokens
    ask = settings.policy == "kv" and prompt is not None
    return tuple([_parts(c, c is chosen, tokens, prompt if ask else None, settings) for c in candidates])


def _parts(candidate: Candidate, chosen: bool, tokens: int, prompt: Prompt | None, settings: RoutingSettings) -> Parts:
    load = candidate.load
    share = waiting(candidate, tokens)
    seen = Parts(
        engine=candidate.name,
        engine_id=candidate.engine_id,
        rank=candidate.rank,
        chosen=chosen,
        full=share > 0,
        requests=load.requests,
        tokens=load.tokens,
        queued=load.prefill_tokens,
    )
    if prompt is None:
        return seen
    held = prompt.held(candidate)
    prefill = settings.kv_prefill_weight * (tokens - held)
    queue = settings.kv_queue_weight * load.prefill_tokens
    decode = settings.kv_decode_weight * load.tokens + settings.kv_request_weight * load.requests
    wait = settings.kv_wait_weight * share
    return replace(
        seen,
        held=held,
        prefill=tokens - held,
        prefill_cost=prefill,
        queue_cost=queue,
        decode_cost=decode,
        wait_cost=wait,
        cost=prefill + queue + decode + wait,
    )
