"""Where an engine's KV-cache events can be fetched from here.

Engines name the address that they bind, often a wildcard or their own loopback: the address that we dialled stands in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from enginehouse.domain.engine import LINK, EngineInfo, KvEventSource, Target


@dataclass(frozen=True, slots=True)
class KvSourceSettings:
    """KV events of engines that do not say where they publish them."""

    kv_events_port: int | None = None
    """Port of rank 0; each further rank publishes on the next, as SGLang and vLLM do. What an engine says itself comes
    before it, and what its address or its pod says (`kv-events-port`) before both."""
    kv_replay_port: int | None = None
    """Port of rank 0 where past events are asked for (`replay_endpoint` of the engine's `--kv-events-config`), counted
    like `kv-events-port`. Without it an engine's knowledge begins when it joins."""


def with_sources(info: EngineInfo, target: Target, settings: KvSourceSettings, *, over_link: bool) -> EngineInfo:
    """The engine with the sources that count: what was said of this engine, what it says, what is said of all.

    over_link: its protocol can carry events, though only a subscription shows whether it does. That comes last, since
    it knows no history.
    """
    if target.kv_events_port is not None:
        sources = _by_port(info, target.host, target.kv_events_port, target.kv_replay_port)
    elif info.kv_event_sources:
        return info
    elif settings.kv_events_port is not None:
        sources = _by_port(info, target.host, settings.kv_events_port, settings.kv_replay_port)
    elif over_link:
        sources = (KvEventSource(info.first_rank, LINK, block_size=info.block_size),)
    else:
        return info
    return replace(info, kv_event_sources=sources)


def _by_port(info: EngineInfo, host: str, port: int, replay: int | None) -> tuple[KvEventSource, ...]:
    return tuple(
        KvEventSource(
            rank,
            _tcp(host, port + rank),
            replay_endpoint=_tcp(host, replay + rank) if replay is not None else None,
            block_size=info.block_size,
        )
        for rank in range(info.first_rank, info.first_rank + info.ranks)
    )


def reachable(endpoint: str, host: str) -> str | None:
    """The endpoint with a host that works from here; None where it is not TCP."""
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme != "tcp" or port is None:
        return None
    return address(parts.hostname or "", port, host)


def address(bound: str, port: int, host: str) -> str:
    """`tcp://…` for a bound host and port, the engine's own host standing in for wildcards and its loopback.

    When it is on our own machine (we dialled a loopback address), its loopback is ours.
    """
    bound = bound.strip("[]")
    if _is_wildcard(bound) or (_is_loopback(bound) and not _is_loopback(host)):
        bound = host
    return _tcp(bound, port)


def _tcp(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def host_of(text: str) -> str | None:
    """The host of `host:port`, of a URL, or of a host alone, without brackets; None where none can be told."""
    bare = text if "://" in text else f"//{text}"
    if "[" not in bare and bare.partition("//")[2].count(":") > 1:
        return None  # an IPv6 address whose last part may be a port
    try:
        return urlsplit(bare).hostname
    except ValueError:
        return None


def is_local(host: str) -> bool:
    """A wildcard or loopback address: nothing that another machine could use."""
    return _is_wildcard(host) or _is_loopback(host)


def _is_wildcard(host: str) -> bool:
    if host in ("", "*"):
        return True
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
