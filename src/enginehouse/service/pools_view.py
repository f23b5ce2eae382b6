"""What people get to read of a fleet of two pools: what the prefill pool lacks, and what becomes of requests then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.core.routing.pairs import PoolLack
from enginehouse.service.pair_counts import PairCounts

_WHY: Final[dict[PoolLack, str]] = {
    "none": "no prefill engine serves",
    "incompatible": "no decode engine can take over from a prefill engine that serves",
}


@dataclass(frozen=True, slots=True)
class PoolsView:
    """At one moment."""

    lack: PoolLack | None
    """Of the prefill pool; None: nothing."""
    works_alone: bool
    """A decode engine serves that can prefill too."""
    settings: HandoverSettings
    counts: PairCounts

    @property
    def missing(self) -> str | None:
        """Why no request can be prefilled apart; None: it can."""
        return None if self.lack is None else _WHY[self.lack]

    @property
    def then(self) -> str | None:
        """What becomes of requests meanwhile, by the settings."""
        if self.lack is None:
            return None
        match self.settings.prefill_missing:
            case "wait":
                return f"requests wait up to {self.settings.prefill_wait:g} s for one, then 503"
            case "decode" if self.works_alone:
                return "requests run on a decode engine alone"
            case "decode":
                return "503 at once: no decode engine is there that can prefill"
            case "fail":
                return "503 at once"
