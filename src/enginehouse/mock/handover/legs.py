"""The part that a request asks an engine to play in a hand-over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Offer:
    """SGLang, prefill: wait in this room until a decode engine comes, then prefill and hand over."""

    room: int


@dataclass(frozen=True, slots=True)
class Meet:
    """SGLang, decode: go to the prefill engine's room and take what it computes."""

    host: str
    port: int
    room: int


@dataclass(frozen=True, slots=True)
class Keep:
    """vLLM, prefill: keep the cache under a lease when the answer ends."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """vLLM, decode: fetch what was kept, as these parameters say where."""

    params: Mapping[str, Any]


Leg = Offer | Meet | Keep | Fetch


def waits(leg: Leg | None) -> bool:
    """Whether the engine must meet another one before it can work on the request."""
    return isinstance(leg, Offer | Meet | Fetch)


def told(leg: Leg) -> dict[str, object]:
    """For the journal."""
    match leg:
        case Offer(room):
            return {"kind": "offer", "room": room}
        case Meet(host, port, room):
            return {"kind": "meet", "room": room, "host": host, "port": port}
        case Keep():
            return {"kind": "keep"}
        case Fetch(params):
            return {"kind": "fetch", "params": dict(params)}
