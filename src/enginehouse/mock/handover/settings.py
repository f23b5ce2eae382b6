"""The options and the faults of a hand-over."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class HandoverFaults:
    """How passing a KV cache on goes wrong. Either engine of a pair can have them."""

    handover_mute: bool = False
    """Never meet: a prefill engine hears nobody who comes for a cache, a decode engine goes to nobody."""
    handover_wrong_room: bool = False
    """SGLang: go to another room than the request's."""
    handover_dies: bool = False
    """Die like a killed process once the two legs of a request have met."""
    handover_hold: bool = False
    """Transfers that have begun do not end."""
    handover_fails: bool = False
    """Transfers fail: SGLang ends the leg with an abort message, vLLM's decode engine with an error."""
    handover_keeps_nothing: bool = False
    """vLLM: a prefill answers no `kv_transfer_params`."""
    handover_expired: bool = False
    """vLLM: leases are over before anybody can come."""


@dataclass(frozen=True, kw_only=True)
class HandoverOptions:
    """Where and how fast caches are passed on."""

    bootstrap_port: int = 0
    """SGLang with role prefill: port where decode engines meet it; 0 takes a free one."""
    bootstrap_timeout: float = 300.0
    """SGLang: seconds that one leg of a request waits for the other."""
    side_channel_port: int | None = None
    """vLLM: port where other engines fetch what it kept; 0 takes a free one. Not given: a free one with role prefill,
    else it has no KV connector unless its role is decode."""
    lease: float = 30.0
    """vLLM: seconds for which a prefill engine keeps a cache that nobody fetches."""
    transfer_tokens_per_second: float = 0.0
    """Prompt tokens whose cache passes from engine to engine in a second; 0: a transfer takes no time."""
