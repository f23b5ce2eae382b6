"""The ledger's loads by the engine that they are on: a page about every engine goes through the ledger once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from enginehouse.core.routing.candidate import Load
from enginehouse.core.routing.ledger import Ledger

Loads = Mapping[tuple[str, int], Sequence[tuple[int | None, Load]]]
"""(Rank, load) pairs by engine id and incarnation. Absent: none."""


def by_engine(ledger: Ledger) -> Loads:
    """As they are now."""
    found: defaultdict[tuple[str, int], list[tuple[int | None, Load]]] = defaultdict(list)
    for (engine_id, incarnation, rank), load in ledger:
        found[engine_id, incarnation].append((rank, load))
    return dict(found)
