"""Tells a client that asks, where the operator allows it, which engine its request went to and why: in a header."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from enginehouse.core.routing.policy import Decision
from enginehouse.http.exchange import Headers, Scope

ASK: Final = b"x-enginehouse-debug"
ASKED: Final = b"explain"
TOLD: Final = b"x-enginehouse-decision"

_LONGEST_NAME: Final = 128
"""Characters of an engine's name; pods with long names in long namespaces have more."""


def asks(scope: Scope) -> bool:
    """Whether the client asks for it."""
    return any(name == ASK and value.strip().lower() == ASKED for name, value in scope["headers"])


def teller(headers: Headers) -> Callable[[Decision], None]:
    """Called with each attempt's choice: the last one is what stands in `headers` when they leave."""

    def tell(decision: Decision) -> None:
        headers[:] = [pair for pair in headers if pair[0] != TOLD]
        headers.append((TOLD, header(decision)))

    return tell


def header(decision: Decision) -> bytes:
    """The decision in a line of ASCII, of bounded length: numbers, and the engine's name."""
    told = {
        "engine": decision.chosen.name[:_LONGEST_NAME],
        "rank": decision.chosen.rank,
        "policy": decision.policy,
        "rule": decision.rule,
        "considered": decision.considered,
        "prompt_tokens": decision.tokens,
        "predicted_cached_tokens": decision.predicted,
        "cost": next((round(part.cost, 1) for part in decision.parts if part.chosen and part.cost is not None), None),
    }
    return json.dumps(told, separators=(",", ":")).encode("ascii")
