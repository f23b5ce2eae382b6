"""What one request asks for, what bounds it, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from enginehouse.core.openai.needs import ability_of
from enginehouse.core.routing.decision import Decision
from enginehouse.core.routing.pairs import Alone, PairDecision
from enginehouse.domain.engine import Ability
from enginehouse.domain.request import Sampling


@dataclass(frozen=True)
class RequestSettings:
    """Deadlines and retries of one request."""

    attempts: int = 3
    """Engines that one request may be tried on, as long as nothing of the answer was sent to the client."""
    first_token_timeout: float = 120.0
    """Seconds from dispatch to the first token, queueing and prefill at the engine included. Above it the engine is
    checked and the request tried elsewhere."""
    token_timeout: float = 60.0
    """Seconds between two tokens of a running answer, not counting time in which the client does not read."""
    hold_timeout: float = 1.0
    """Seconds that a request waits for an engine when the fleet has none (any more), so that the moment between two
    generations of a rolling update costs no errors; then 503, or the error of the engine that was lost."""


Choice = Decision | PairDecision | Alone
"""One engine of an aggregated fleet; two of a disaggregated one, or one of its decode engines alone."""

Decided = Callable[[Choice], None]


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What the edge asks for: token ids in, at most so many out."""

    token_ids: Sequence[int]
    max_tokens: int
    sampling: Sampling
    fits: Callable[[], bool] = lambda: True
    """Whether the engines of now still take these ids: another generation may have another tokenizer."""
    session: str | None = None
    """Requests with the same one belong together; None: it belongs to none."""
    decided: Decided | None = None
    """Hears each attempt's choice before the engine does, where somebody wants to know."""
    needs: frozenset[Ability] = frozenset()
    """Only engines that can do all of this may be chosen; besides what every answer needs."""
    params: Mapping[Ability, str] = field(default_factory=dict)
    """The client's field behind a need, to name in errors; without it the ability's own name."""
    lora: str | None = None
    """Only engines that have this adapter loaded may be chosen; None: the model itself is asked."""

    @property
    def constraint_field(self) -> str | None:
        """The client's field that says what the answer must be; None: it may be anything."""
        constraint = self.sampling.constraint
        if constraint is None:
            return None
        ability = ability_of(constraint)
        return self.params.get(ability, ability.value)


class Outdated(Exception):
    """Between encoding and dispatch the engines were replaced by such as need the prompt encoded anew."""


@dataclass(slots=True)
class Outcome:
    """How a finished request went."""

    engine: str
    """The one that gave the answer."""
    attempts: int
    decision: Choice
    engine_tokens: int
    """Tokens received, whatever became of them."""
