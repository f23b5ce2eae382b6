"""What is asked of an engine, in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enginehouse.domain.constraint import Constraint
from enginehouse.domain.handover import Handover


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request; None: the engine's (or the model's) default.

    Stop strings are not here: the frontend matches them and aborts the engine.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """-1 switches it off."""
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit), from -100 to 100."""
    constraint: Constraint | None = None
    logprobs: int | None = None
    """Log probabilities of the answer's tokens, each with so many of the most likely ones; 0: its own only."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens."""
    priority: int = 0
    """Smaller ones go first, where the engine schedules by priority."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One attempt at one choice, as an adapter encodes it."""

    request_id: str
    """Ours, random, fixed length, new for each attempt and choice; never the client's."""
    token_ids: Sequence[int]
    max_tokens: int
    """At least 1, and prompt and answer together fit the context."""
    sampling: Sampling = Sampling()
    rank: int | None = None
    """Data-parallel rank; None: the engine chooses."""
    handover: Handover | None = None
    """None: this engine does all of it."""
    prefill_only: bool = False
    """Goes to the prefill engine of a pair, with Rendezvous or Keep: its KV cache is wanted, not its answer. Whatever
    the rest says it generates one token. With Rendezvous the room chooses the rank, and `rank` is not sent."""
    lora: str | None = None
    """Name of the adapter that answers; None: the model itself."""
