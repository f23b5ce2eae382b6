"""Where an engine's KV-cache events can be fetched from here.

Engines name the address that they bind, often a wildcard or their own loopback: the address that we dialled stands in.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


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
    """`tcp://…` for a bound host and port, the engine's own host standing in for wildcards and loopback."""
    bound = bound.strip("[]")
    if bound in ("", "*", "localhost") or _is_local(bound):
        bound = host
    return f"tcp://[{bound}]:{port}" if ":" in bound else f"tcp://{bound}:{port}"


def _is_local(bound: str) -> bool:
    try:
        found = ip_address(bound)
    except ValueError:
        return False
    return found.is_unspecified or found.is_loopback
