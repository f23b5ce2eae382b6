"""What benchmarks share at their end: bars that figures are held against, and the programs' last words on a failure."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

_R = TypeVar("_R")


@dataclass(frozen=True)
class Bar:
    """A figure that must not be above a limit."""

    what: str
    unit: str
    value: float
    limit: float
    rounds: Sequence[float] | None = None
    """Of which the value is made, where it is worth showing."""

    @property
    def met(self) -> bool:
        """Is it not?"""
        return self.value <= self.limit

    def told(self) -> dict[str, object]:
        """For JSON."""
        rounds = {} if self.rounds is None else {"rounds": list(self.rounds)}
        value = round(self.value, 3)
        return {"what": self.what, "unit": self.unit, "value": value, "limit": self.limit, **rounds, "met": self.met}


def print_bars(bars: Iterable[Mapping[str, Any]], *, rounds: bool = False) -> None:
    """For people, as they stand in the JSON. rounds: also those of bars that are met."""
    for bar in bars:
        verdict = "met" if bar["met"] else "MISSED"
        if "rounds" in bar and (rounds or not bar["met"]):
            verdict += f" {bar['rounds']}"
        print(f"{bar['what']:55}{bar['value']:>10.3f} {bar['unit']:14} (at most {bar['limit']:g}) {verdict}")


def run_in_folder(name: str, measure: Callable[[Path], Coroutine[Any, Any, _R]]) -> _R:
    """Measure with a folder for the logs of programs; on a RuntimeError print their ends, exit with what is wrong."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as folder:
        try:
            return uvloop.run(measure(Path(folder)))
        except RuntimeError as error:
            for log in sorted(Path(folder).rglob("*.log")):
                print(f"{log.name}: {log.read_text(errors='replace')[-1500:]}", file=sys.stderr)
            sys.exit(f"bench.{name}: {error}")
