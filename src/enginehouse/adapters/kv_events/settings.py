"""What an operator may set about KV events over ZMQ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvEventSettings:
    """Connections to the engines' publishers of KV-cache events."""

    connect_timeout: float = 5.0
    """Seconds for connecting to a publisher, and again for its ZMQ handshake. It is tried again for ever; until it
    succeeds the engine is routed to without its events."""
    reconnect_limit: float = 3.0
    """Seconds: the longest wait between two tries. The first come after a tenth of a second."""
    replay_idle_limit: float = 2.0
    """Seconds without a batch after which a replay is given up. Publishers answer between two steps of the engine."""
    message_limit: int = 4 * 1024 * 1024
    """Largest frame accepted from a publisher, in bytes; a larger one ends its connection. A batch takes some 5 bytes
    for each token that one step of the engine computed, and is read in one go."""

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "reconnect_limit", "replay_idle_limit"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0 seconds")
        if self.message_limit < 1:
            raise ValueError("message_limit must be at least 1")
