"""Which rank takes a request: filter out what may not be used, then let the policy pick. Randomness is an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from enginehouse.core.routing.candidate import Candidate

PolicyName = Literal["round-robin", "random", "least-loaded", "power-of-two"]


class Chance(Protocol):
    """A source of randomness, such as `random.Random`."""

    def random(self) -> float:
        """From 0 up to, not including, 1."""


@dataclass(frozen=True)
class RoutingSettings:
    """How requests are spread."""

    policy: PolicyName = "least-loaded"
    """How an engine is chosen: `least-loaded` takes the one with the fewest requests in flight, then the fewest prompt
    tokens, at random among equals, so that several frontends do not all choose the same; `power-of-two` the better of
    two random ones; `round-robin` and `random` as they say."""
    max_requests_per_engine: int = 0
    """Most requests in flight on one engine rank; above it requests get 429. 0: no limit, the engines queue."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice and what it was made from."""

    chosen: Candidate
    policy: PolicyName
    considered: int
    """Candidates left after the filter."""
    reason: str
    """The part of the load that decided, for people."""


class AllFull(Exception):
    """Engines are there, and each has all the requests it may have."""


class AllExcluded(Exception):
    """Every engine was tried for this request already, or there is none."""


class Router:
    """Applies one policy. Holds only the turn of round-robin."""

    def __init__(self, settings: RoutingSettings, rng: Chance) -> None:
        self._settings = settings
        self._pick = _PICKS[settings.policy]
        self._rng = rng
        self._turn = 0

    def choose(self, candidates: Sequence[Candidate], excluded: Collection[tuple[str, int]] = ()) -> Decision:
        """Choose among `candidates` but not on an (engine id, incarnation) in `excluded`.

        Raises AllExcluded or AllFull.
        """
        usable = candidates
        if excluded:
            usable = [c for c in usable if (c.engine_id, c.incarnation) not in excluded]
        if not usable:
            raise AllExcluded
        limit = self._settings.max_requests_per_engine
        if limit:
            usable = [c for c in usable if c.load.requests < limit]
            if not usable:
                raise AllFull
        self._turn += 1
        chosen = usable[0] if len(usable) == 1 else self._pick(usable, self._rng, self._turn)
        load = chosen.load
        return Decision(
            chosen,
            self._settings.policy,
            len(usable),
            f"{load.requests} requests and {load.tokens} prompt tokens in flight",
        )


def _round_robin(usable: Sequence[Candidate], rng: Chance, turn: int) -> Candidate:
    return usable[turn % len(usable)]


def _random(usable: Sequence[Candidate], rng: Chance, turn: int) -> Candidate:
    return usable[int(rng.random() * len(usable))]


def _least_loaded(usable: Sequence[Candidate], rng: Chance, turn: int) -> Candidate:
    best = min([(c.load.requests, c.load.tokens) for c in usable])
    equals = [c for c in usable if (c.load.requests, c.load.tokens) == best]
    return equals[int(rng.random() * len(equals))]


def _power_of_two(usable: Sequence[Candidate], rng: Chance, turn: int) -> Candidate:
    first = int(rng.random() * len(usable))
    second = (first + 1 + int(rng.random() * (len(usable) - 1))) % len(usable)
    a, b = usable[first], usable[second]
    return a if (a.load.requests, a.load.tokens) <= (b.load.requests, b.load.tokens) else b


_PICKS: dict[PolicyName, Callable[[Sequence[Candidate], Chance, int], Candidate]] = {
    "round-robin": _round_robin,
    "random": _random,
    "least-loaded": _least_loaded,
    "power-of-two": _power_of_two,
}
