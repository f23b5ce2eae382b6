"""What routing looks at: one data-parallel rank of one engine, with the work that this frontend has given it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Load:
    """Requests and tokens in flight on one rank. Changed by the ledger alone."""

    __slots__ = ("prefill_tokens", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        """Prompt tokens of all requests in flight."""
        self.prefill_tokens = 0
        """Of these, what the engine still has to compute: uncached tokens of requests without a first token."""

    def __repr__(self) -> str:
        return f"Load(requests={self.requests}, tokens={self.tokens}, prefill_tokens={self.prefill_tokens})"


class Pairing(NamedTuple):
    """What two engines must have in common to pass a KV cache on. None: not said, which agrees with anything."""

    protocol: str
    transfer_backend: str | None = None
    kv_dtype: str | None = None
    block_size: int | None = None
    group: str | None = None
    """The exception: None agrees only with None."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One rank that may take a request. A tuple of these is made once per change of the fleet, not per request."""

    engine_id: str
    incarnation: int
    name: str
    rank: int | None
    """None: the engine has one rank, or cannot be told which to use."""
    load: Load
    """Live: what is in flight now."""
    member: int
    """Position of the engine in the list of members that the candidates were made from."""
    capacity_tokens: int | None = None
    """Tokens that the rank's KV cache holds; None: unknown."""
    max_running: int | None = None
    """Requests that the engine works on at once on one rank; None: unknown."""
    pairing: Pairing | None = None
    """None: the fleet is aggregated."""


class Prompt(Protocol):
    """What routing may ask of one request."""

    tokens: int
    """Length of the prompt."""
    session: str | None
    """Requests with the same one belong together; None: it belongs to none."""

    def held(self, candidate: Candidate) -> int:
        """Tokens at the prompt's head that the rank is believed to hold: at most all but one of them."""


@dataclass(slots=True)
class PlainPrompt:
    """A Prompt of which nothing is known but what it says of itself."""

    tokens: int
    session: str | None

    def held(self, candidate: Candidate) -> int:
        return 0
