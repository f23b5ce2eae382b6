"""What comes back from an engine, the same for every protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Finish(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    """An end-of-sequence or stop token, which is then the last id; or a stop string, found by the frontend."""
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was at its place, by natural logarithm."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log probability) of the most likely ones there, best first: as many as were asked for. The token
    itself is among them only if it is one of the best."""


@dataclass(slots=True)
class Delta:
    """News of one answer: only ids not delivered before, whatever the engine repeats.

    One is made per message of every stream; freezing it would triple what that costs. Nobody changes one, but for what
    the decode engine of a pair cannot know and the prefill engine told: `cached_tokens`.

    An engine's abort or failure is never a Delta: it ends the stream with an EngineError.
    """

    token_ids: Sequence[int]
    finish: Finish | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the engine took from its cache; None: not said (yet)."""
    kept: bytes | None = None
    """With the finish of a request that said Keep, and always there: what Fetch has to bring."""
    logprobs: Sequence[TokenLogprob] | None = None
    """One for each of `token_ids`, where they were asked for."""
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    """Once, where they were asked for, one for each token of the prompt; None: the first, which nothing foretells."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """What an embedding model makes of a prompt."""

    values: Sequence[float]
    prompt_tokens: int
