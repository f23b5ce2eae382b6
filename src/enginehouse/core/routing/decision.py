"""A choice and what it was made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.cost import Parts, Rule
from enginehouse.core.routing.settings import PolicyName


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice and what it was made from. Lives as long as its request: small unless an explanation was asked for."""

    chosen: Candidate
    policy: PolicyName
    considered: int
    """Candidates left after the filter."""
    reason: str
    """The part of the load that decided, for people."""
    rule: Rule = "policy"
    tokens: int = 0
    """Length of the prompt; 0: none was shown."""
    predicted: int = 0
    """Of these, held by the chosen rank by what is known; 0 for policies that do not ask."""
    parts: tuple[Parts, ...] = ()
    """Every candidate as it was at that moment; empty unless asked for."""

    @property
    def uncached(self) -> int:
        """Tokens that the chosen rank has to compute."""
        return self.tokens - self.predicted

    def explain(self) -> dict[str, object]:
        """As JSON: what decided, and each candidate with the parts of its cost."""
        return {
            "policy": self.policy,
            "rule": self.rule,
            "reason": self.reason,
            "chosen": {"engine": self.chosen.name, "engine_id": self.chosen.engine_id, "rank": self.chosen.rank},
            "considered": self.considered,
            "prompt_tokens": self.tokens,
            "predicted_cached_tokens": self.predicted,
            "candidates": [asdict(part) for part in self.parts],
        }
