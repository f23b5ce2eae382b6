"""What a request asks of its answer besides length and ends, as a front has read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from enginehouse.domain.constraint import Constraint

MOST_LOGPROBS: Final = 20
"""Of the most likely tokens an engine of vLLM tells so many, unless it is started otherwise."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Nothing of it unless it is asked for."""

    constraint: Constraint | None = None
    logprobs: int | None = None
    """So many of the most likely tokens besides each of the answer; None: not even its own probability."""
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Only noted."""
    priority: int = 0
    """Only noted."""

    def told(self) -> dict[str, object]:
        """For the journal: what was asked for, and nothing else."""
        found: dict[str, object] = {}
        if self.constraint is not None:
            found["constraint"] = {"kind": type(self.constraint).__name__, **asdict(self.constraint)}
        for name in ("logprobs", "prompt_logprobs"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        if self.logit_bias:
            found["logit_bias"] = dict(self.logit_bias)
        if self.priority:
            found["priority"] = self.priority
        return found


NONE: Final = Wishes()
