"""The count of work in flight per (engine, incarnation, rank): charged at the choice, released on every exit.

It counts what this frontend dispatched, nothing that engines report.
"""

from __future__ import annotations

from collections.abc import Iterator

from enginehouse.core.routing.candidate import Candidate, Load

Key = tuple[str, int, int | None]


class Charge:
    """One request's share of a load; `release()` gives it back, however often it is called."""

    __slots__ = ("_key", "_ledger", "_prefill", "_tokens")

    def __init__(self, ledger: Ledger, key: Key, tokens: int, uncached: int) -> None:
        self._ledger: Ledger | None = ledger
        self._key = key
        self._tokens = tokens
        self._prefill = uncached

    def prefilled(self) -> None:
        """The first token came: nothing of the prompt is left to compute."""
        if self._ledger is not None and self._prefill:
            self._ledger.prefilled(self._key, self._prefill)
            self._prefill = 0

    def release(self) -> None:
        self.prefilled()
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

    def charge(self, candidate: Candidate, tokens: int, uncached: int) -> Charge:
        """Book one request on the candidate: tokens of its prompt, and those of them that have to be computed."""
        key = (candidate.engine_id, candidate.incarnation, candidate.rank)
        load = self._loads.setdefault(key, candidate.load)
        load.requests += 1
        load.tokens += tokens
        load.prefill_tokens += uncached
        return Charge(self, key, tokens, uncached)

    def prefilled(self, key: Key, uncached: int) -> None:
        """Called by Charge, once per charge at most."""
        self._loads[key].prefill_tokens -= uncached

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
            assert 0 <= load.prefill_tokens <= load.tokens, (key, load)
            assert load.requests or not load.tokens, (key, load)
            assert load.requests or key in self._known, f"{key} is gone and idle, yet kept"
