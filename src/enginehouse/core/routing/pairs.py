"""Which two engines take a request, one to prefill and one to decode; or which one decode engine does all of it.

The prefill rank is chosen first, by the policy, among those that some decode rank fits; then the decode rank, among
those that fit it, by the work that decode ranks have. A session belongs to the rank that computes its prompts: the
prefill rank of a pair. Its decode rank is free, because a long answer weighs more there than a transfer saved.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

from enginehouse.core.routing.candidate import Candidate, Prompt
from enginehouse.core.routing.cost import Chance
from enginehouse.core.routing.decision import Decision
from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.core.routing.mates import Mates
from enginehouse.core.routing.policy import AllExcluded, AllFull, Router, RoutingSettings, below, untried
from enginehouse.domain.engine import ProtocolName

_WORK_ALONE = frozenset({ProtocolName.VLLM, ProtocolName.VLLM_NATIVE})
"""Protocols whose decode engines can prefill too. SGLang's take only what a prefill engine hands them."""

AloneReason = Literal["short-prompt", "mostly-cached", "no-prefill-engine", "prompt-logprobs"]
PoolLack = Literal["none", "incompatible"]
"""`none`: the pool is empty; `incompatible`: no decode engine can take a cache from those that are there."""
Lack = Literal[PoolLack, "tried"]
"""`tried`: those that could were tried for this request already."""


class NoPrefill(Exception):
    """No prefill engine can take this request, however long its turn; another fleet might."""

    def __init__(self, lack: Lack) -> None:
        super().__init__(lack)
        self.lack: Lack = lack


class Busy(Exception):
    """Prefill engines are there, and each has all the hand-overs that it may have: one that ends makes room."""


@dataclass(frozen=True, slots=True)
class PairDecision:
    """Both choices. The decode engine has nothing of the prompt to compute, whatever its decision predicts."""

    prefill: Decision
    decode: Decision

    def explain(self) -> dict[str, object]:
        """As JSON. The decode candidates are those that fit the chosen prefill rank."""
        return {"prefill": self.prefill.explain(), "decode": self.decode.explain()}


@dataclass(frozen=True, slots=True)
class Alone:
    """One decode engine does the whole request."""

    decode: Decision
    because: AloneReason

    def explain(self) -> dict[str, object]:
        """As JSON."""
        return {"alone": self.because, "decode": self.decode.explain()}


class PairRouter:
    """Applies one policy to two pools. Holds, besides the turns of round-robin, what fits what in the fleet of now."""

    def __init__(self, settings: RoutingSettings, handover: HandoverSettings, rng: Chance) -> None:
        self._limit = settings.max_requests_per_engine
        self._handover = handover
        self._rng = rng
        self._alone = Router(settings, rng)
        # What slows the steps of an engine that decodes is no matter on one that only prefills.
        self._prefill = Router(replace(settings, kv_decode_weight=0.0, kv_request_weight=0.0), rng)
        # Turns and chance know nothing of how long answers are: a decode rank is always chosen by its work.
        self._decode = Router(
            replace(
                settings,
                policy="least-loaded" if settings.policy in ("round-robin", "random") else settings.policy,
                affinity="off",
                kv_prefill_weight=settings.kv_transfer_weight,
            ),
            rng,
            unit=max(settings.kv_transfer_weight, settings.kv_decode_weight),
        )
        self._pools: tuple[tuple[Candidate, ...], tuple[Candidate, ...]] = ((), ())
        self._mates = Mates((), ())

    def aside(self) -> PairRouter:
        """One that decides as this one would now, and whose choices take nothing of this one's turns and chance."""
        one, rng = copy(self), copy(self._rng)
        one._rng = rng
        one._alone, one._prefill, one._decode = (of.aside(rng) for of in (self._alone, self._prefill, self._decode))
        return one

    def choose(
        self,
        prefill: tuple[Candidate, ...],
        decode: tuple[Candidate, ...],
        prompt: Prompt,
        excluded: Collection[tuple[str, int]] = (),
        *,
        explain: bool = False,
    ) -> PairDecision | Alone:
        """Choose from the two pools, but not on an (engine id, incarnation) in `excluded`.

        The tuples are new ones after each change of a pool, and the same ones until then.
        Raises AllExcluded (no decode engine), AllFull, NoPrefill, Busy.
        """
        there = untried(decode, excluded)
        if not there:
            raise AllExcluded
        free = below(there, self._limit)
        if not free:
            raise AllFull
        if self._handover.prefill_min_tokens and (alone := self._spared(free, prompt, explain)) is not None:
            return alone
        mates = self._fitting(prefill, decode)
        able = mates.with_mate(untried(prefill, excluded), there)
        if not able:
            if self._handover.prefill_missing == "decode" and any(works_alone(c) for c in there):
                return self._without_prefill(free, prompt, explain)
            raise NoPrefill(self.lack(prefill, decode) or "tried")
        able = mates.with_mate(below(able, self._limit), free)
        if not able:
            raise AllFull
        able = below(able, self._handover.max_handovers_per_prefill)
        if not able:
            raise Busy
        first = self._prefill.decide(able, prompt, explain=explain)
        return PairDecision(first, self._decode.decide(mates.of(first.chosen, free), prompt, explain=explain))

    def whole_prompt(
        self,
        decode: Sequence[Candidate],
        prompt: Prompt,
        excluded: Collection[tuple[str, int]] = (),
        *,
        explain: bool = False,
    ) -> Alone:
        """For a request that asks what only the engine knows that has computed the whole prompt, and answers.

        decode: those that can work alone. Raises AllExcluded, AllFull.
        """
        there = untried(decode, excluded)
        if not there:
            raise AllExcluded
        free = below(there, self._limit)
        if not free:
            raise AllFull
        return Alone(self._alone.decide(free, prompt, explain=explain), "prompt-logprobs")

    def _spared(self, free: Sequence[Candidate], prompt: Prompt, explain: bool) -> Alone | None:
        """A decode rank that has too little of the prompt to compute for a hand-over to be worth it."""
        least = self._handover.prefill_min_tokens
        short = prompt.tokens < least
        able = [c for c in free if works_alone(c) and (short or prompt.tokens - prompt.held(c) < least)]
        if not able:
            return None
        return Alone(self._alone.decide(able, prompt, explain=explain), "short-prompt" if short else "mostly-cached")

    def _without_prefill(self, free: Sequence[Candidate], prompt: Prompt, explain: bool) -> Alone:
        able = [c for c in free if works_alone(c)]
        if not able:
            raise AllFull
        return Alone(self._alone.decide(able, prompt, explain=explain), "no-prefill-engine")

    def lack(self, prefill: tuple[Candidate, ...], decode: tuple[Candidate, ...]) -> PoolLack | None:
        """What is wrong with the prefill pool, whoever asks and whatever the settings make of it; None: nothing.

        Without a decode engine there is nothing to fit.
        """
        if not prefill:
            return "none"
        return None if not decode or self._fitting(prefill, decode).with_mate(prefill, decode) else "incompatible"

    def _fitting(self, prefill: tuple[Candidate, ...], decode: tuple[Candidate, ...]) -> Mates:
        if prefill is not self._pools[0] or decode is not self._pools[1]:
            self._pools = (prefill, decode)
            self._mates = Mates(prefill, decode)
        return self._mates


def works_alone(candidate: Candidate) -> bool:
    """Whether a decode engine can also prefill."""
    return candidate.pairing is not None and candidate.pairing.protocol in _WORK_ALONE
