"""How the KV cache of a prompt passes from the engine that prefills to the one that decodes. Never through us."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """SGLang: both legs are sent at once and meet at the prefill engine under one number. The same for both."""

    host: str
    """The prefill engine's address as decode engines reach it; an IPv6 address without brackets."""
    port: int
    """Its bootstrap port."""
    room: int
    """Random, 1 to 2**63 - 1, new for every attempt, never a client's; its rest by the prefill engine's ranks is the
    rank that prefills."""


@dataclass(frozen=True, slots=True)
class Keep:
    """vLLM, to the prefill engine: keep what was computed for whoever brings what you answer."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """vLLM, to the decode engine: fetch what was kept."""

    params: bytes
    """What the prefill engine answered, as it was encoded there. Nobody here reads it, so nothing about it can change;
    the decode engine has to speak the same protocol."""


Handover = Rendezvous | Keep | Fetch
