"""Tells a client that asks, where the operator allows it, which engine its request went to and why: in a header."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from enginehouse.core.routing.decision import Decision
from enginehouse.core.routing.pairs import Alone, PairDecision
from enginehouse.http.exchange import Headers, Scope
from enginehouse.service.request import Choice

ASK: Final = b"x-enginehouse-debug"
ASKED: Final = b"explain"
TOLD: Final = b"x-enginehouse-decision"

_LONGEST_NAME: Final = 128
"""Characters of an engine's name; pods with long names in long namespaces have more."""


def asks(scope: Scope) -> bool:
    """Whether the client asks for it."""
    return any(name == ASK and value.strip().lower() == ASKED for name, value in scope["headers"])


def teller(headers: Headers) -> Callable[[Choice], None]:
    """Called with each attempt's choice: the last one is what stands in `headers` when they leave."""

    def tell(choice: Choice) -> None:
        headers[:] = [pair for pair in headers if pair[0] != TOLD]
        headers.append((TOLD, header(choice)))

    return tell


def header(choice: Choice) -> bytes:
    """The choice in a line of ASCII, of bounded length: numbers, and the names of engines."""
    told: dict[str, object]
    match choice:
        case PairDecision():
            told = {"prefill": _told(choice.prefill), "decode": _told(choice.decode)}
        case Alone():
            told = {"alone": choice.because, "decode": _told(choice.decode)}
        case _:
            told = _told(choice)
    return json.dumps(told, separators=(",", ":")).encode("ascii")


def _told(decision: Decision) -> dict[str, object]:
    return {
        "engine": decision.chosen.name[:_LONGEST_NAME],
        "rank": decision.chosen.rank,
        "policy": decision.policy,
        "rule": decision.rule,
        "considered": decision.considered,
        "prompt_tokens": decision.tokens,
        "predicted_cached_tokens": decision.predicted,
        "cost": next((round(part.cost, 1) for part in decision.parts if part.chosen and part.cost is not None), None),
    }
