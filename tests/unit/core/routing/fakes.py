"""Candidates and prompts for tests of routing."""

from __future__ import annotations

from collections.abc import Mapping

from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.ledger import Ledger


def fleet(
    ledger: Ledger, *loads: tuple[int, int], capacity: int | None = None, most: int | None = None
) -> list[Candidate]:
    """One candidate per (requests, tokens), named e0, e1, …"""
    made = []
    for position, (requests, tokens) in enumerate(loads):
        load = ledger.load(f"e{position}", 1, None)
        load.requests, load.tokens = requests, tokens
        made.append(Candidate(f"e{position}", 1, f"e{position}", None, load, position, capacity, most))
    return made


class FakePrompt:
    """A prompt of which each engine holds what the test says."""

    def __init__(self, tokens: int, held: Mapping[str, int] | None = None, session: str | None = None) -> None:
        self.tokens = tokens
        self.session = session
        self._held = held or {}
        self.asked = 0

    def held(self, candidate: Candidate) -> int:
        self.asked += 1
        return self._held.get(candidate.engine_id, 0)
