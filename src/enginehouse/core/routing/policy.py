"""Which rank takes a request: filter out what may not be used, then let the policy pick. Randomness is an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy

from enginehouse.core.routing.affinity import home, overloaded
from enginehouse.core.routing.candidate import Candidate, Prompt
from enginehouse.core.routing.cost import Chance, Rule, parts, pick, weigh
from enginehouse.core.routing.decision import Decision
from enginehouse.core.routing.settings import PolicyName, RoutingSettings

__all__ = [
    "AllExcluded",
    "AllFull",
    "Chance",
    "Decision",
    "PolicyName",
    "Router",
    "RoutingSettings",
    "below",
    "untried",
]


class AllFull(Exception):
    """Engines are there, and each has all the requests it may have."""


class AllExcluded(Exception):
    """Every engine was tried for this request already, or there is none."""


def untried(candidates: Sequence[Candidate], excluded: Collection[tuple[str, int]]) -> Sequence[Candidate]:
    """Those whose (engine id, incarnation) is not excluded."""
    return [c for c in candidates if (c.engine_id, c.incarnation) not in excluded] if excluded else candidates


def below(candidates: Sequence[Candidate], limit: int) -> Sequence[Candidate]:
    """Those with fewer requests in flight than the limit; 0: there is none."""
    return [c for c in candidates if c.load.requests < limit] if limit else candidates


class Router:
    """Applies one policy. Holds only the turn of round-robin."""

    def __init__(self, settings: RoutingSettings, rng: Chance, unit: float = 1.0) -> None:
        """unit: what a token of the prompt costs at most; it says how far apart two costs are."""
        self._settings = settings
        self._rng = rng
        self._unit = unit
        self._turn = 0

    def aside(self, rng: Chance | None = None) -> Router:
        """One that decides as this one would now, and whose choices take nothing of this one's turn and chance.

        rng: a copy of its chance, where others share that.
        """
        one = copy(self)
        one._rng = copy(self._rng) if rng is None else rng
        return one

    def choose(
        self,
        candidates: Sequence[Candidate],
        excluded: Collection[tuple[str, int]] = (),
        prompt: Prompt | None = None,
        *,
        explain: bool = False,
    ) -> Decision:
        """Choose among `candidates` but not on an (engine id, incarnation) in `excluded`.

        Without a prompt no session and nothing held is known. `explain` keeps every candidate's parts in the decision.
        Raises AllExcluded or AllFull.
        """
        usable = untried(candidates, excluded)
        if not usable:
            raise AllExcluded
        usable = below(usable, self._settings.max_requests_per_engine)
        if not usable:
            raise AllFull
        return self.decide(usable, prompt, explain=explain)

    def decide(self, usable: Sequence[Candidate], prompt: Prompt | None, *, explain: bool = False) -> Decision:
        """Choose among candidates that may all be used; at least one."""
        chosen, rule = self._decide(usable, prompt)
        policy, load = self._settings.policy, chosen.load
        tokens = 0 if prompt is None else prompt.tokens
        held = prompt.held(chosen) if policy == "kv" and prompt is not None else 0
        reason = f"{load.requests} requests and {load.tokens} prompt tokens in flight"
        if policy == "kv":
            reason += f", {load.prefill_tokens} of them to compute; {held} of {tokens} held"
        seen = parts(usable, chosen, prompt, self._settings) if explain else ()
        return Decision(chosen, policy, len(usable), reason, rule, tokens, held, seen)

    def _decide(self, usable: Sequence[Candidate], prompt: Prompt | None) -> tuple[Candidate, Rule]:
        settings = self._settings
        self._turn += 1
        if len(usable) == 1:
            return usable[0], "only-one"
        if settings.affinity != "off" and prompt is not None and prompt.session is not None:
            own = home(prompt.session, usable)
            if not overloaded(own, usable, settings.affinity_load_factor):
                return own, "affinity"
        if settings.policy == "kv":
            costs = weigh(usable, prompt, settings)
            tokens = 0 if prompt is None else prompt.tokens
            position, rule = pick(costs, tokens * self._unit, settings.kv_temperature, self._rng)
            return usable[position], rule
        return _PICKS[settings.policy](usable, self._rng, self._turn), "policy"


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
