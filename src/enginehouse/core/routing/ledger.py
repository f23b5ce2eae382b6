"""The count of work in flight per (engine, incarnation, rank): charged at the choice, released on every exit.

It counts what this frontend dispatched, nothing that engines report.
"""

from __future__ import annotations

from collections.abc import Iterator

from enginehouse.core.routing.candidate import Candidate, Load

Key = tuple[str, int, int | None]


class Charge:
    """One request's share of a load; `release()` gives it back, however often it is called."""

    __slots__ = ("_key", "_ledger", "_tokens")

    def __init__(self, ledger: Ledger, key: Key, tokens: int) -> None:
        self._ledger: Ledger | None = ledger
        self._key = key
        self._tokens = tokens

    def release(self) -> None:
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.settle(self._key, self._tokens)


class Ledger:
    """Owns every Load. A rank's Load lives while it is known to routing or still has work in flight."""

    def __init__(self) -> None:
        self._loads: dict[Key, Load] = {}
        self._known: frozenset[Key] = frozenset()

    def load(self, engine_id: str, incarnation: int, rank: int | None) -> Load:
        return self._loads.setdefault((engine_id, incarnation, rank), Load())

    def keep_only(self, known: frozenset[Key]) -> None:
        """These ranks are the fleet now; others are forgotten once they have nothing in flight."""
        self._known = known
        for key in [key for key, load in self._loads.items() if key not in known and not load.requests]:
            del self._loads[key]

    def charge(self, candidate: Candidate, tokens: int) -> Charge:
        """Book one request of `tokens` (prompt tokens to begin with) on the candidate."""
        key = (candidate.engine_id, candidate.incarnation, candidate.rank)
        load = self._loads.setdefault(key, candidate.load)
        load.requests += 1
        load.tokens += tokens
        return Charge(self, key, tokens)

    def settle(self, key: Key, tokens: int) -> None:
        """Called by Charge.release, once per charge."""
        load = self._loads[key]
        load.requests -= 1
        load.tokens -= tokens
        if not load.requests and key not in self._known:
            del self._loads[key]

    def __iter__(self) -> Iterator[tuple[Key, Load]]:
        return iter(self._loads.items())

    @property
    def in_flight(self) -> int:
        return sum(load.requests for load in self._loads.values())

    def check(self) -> None:
        """Invariants, for tests."""
        for key, load in self._loads.items():
            assert load.requests >= 0, (key, load)
            assert load.tokens >= 0, (key, load)
            assert load.requests or not load.tokens, (key, load)
            assert load.requests or key in self._known, f"{key} is gone and idle, yet kept"
