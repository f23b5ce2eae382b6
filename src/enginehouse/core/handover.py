"""Decides where and with whom an engine passes KV caches on, from what it says and what the operator said of it."""

from __future__ import annotations

from enginehouse.core.routing.candidate import Pairing
from enginehouse.domain.engine import EngineInfo, ProtocolName, Target


def meeting_point(target: Target, info: EngineInfo) -> tuple[str, int] | None:
    """Host and port where decode engines meet this prefill engine of SGLang; None: its port is not known.

    The operator's word goes before the engine's, and the address that we dial stands in for a host that nobody names.
    """
    port = target.bootstrap_port or info.bootstrap_port
    return None if port is None else (target.bootstrap_host or info.bootstrap_host or target.host, port)


def pairing(target: Target, info: EngineInfo) -> Pairing:
    """What must agree between two engines of one pair."""
    return Pairing(info.protocol, info.transfer_backend, info.kv_dtype, info.block_size, target.group)


def no_meeting_point(target: Target, info: EngineInfo) -> str | None:
    """Why nobody could meet a prefill engine; None where that is no question."""
    if info.protocol is not ProtocolName.SGLANG or meeting_point(target, info) is not None:
        return None
    return (
        "does not say its bootstrap port (disaggregation_bootstrap_port), where decode engines would meet it;"
        " name it in the address (?bootstrap-port=N) or the pod's annotation"
    )
