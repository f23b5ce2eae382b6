"""What routing looks at: one data-parallel rank of one engine, with the work that this frontend has given it."""

from __future__ import annotations

from dataclasses import dataclass


class Load:
    """Requests and tokens in flight on one rank. Changed by the ledger alone."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0

    def __repr__(self) -> str:
        return f"Load(requests={self.requests}, tokens={self.tokens})"


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
