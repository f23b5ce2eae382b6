"""How the sockets are set up, the same for live batches and replays."""

from __future__ import annotations

import zmq

from enginehouse.adapters.kv_events.settings import KvEventSettings

_FIRST_RECONNECT_MS = 100
_KEEPALIVE = (
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 15),
    (zmq.TCP_KEEPALIVE_INTVL, 5),
    (zmq.TCP_KEEPALIVE_CNT, 3),
)
"""A peer that vanished without a word is noticed after half a minute."""

NUMBER_BYTES = 8
END = (1 << 64) - 1
"""The number that ends a replay and that no batch has."""


Context = zmq.Context[zmq.Socket[bytes]]


def new_socket(context: Context, kind: int, endpoint: str, settings: KvEventSettings) -> zmq.Socket[bytes]:
    """A socket made for that endpoint, not connected yet."""
    socket = context.socket(kind)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)  # what we do not take fast enough the other side would drop, silently
        socket.setsockopt(zmq.MAXMSGSIZE, settings.message_limit)
        # For a host name this would mean its IPv6 address, where no engine's publisher listens: `tcp://*` is IPv4.
        socket.setsockopt(zmq.IPV6, "[" in endpoint)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _ms(settings.connect_timeout))
        socket.setsockopt(zmq.HANDSHAKE_IVL, _ms(settings.connect_timeout))
        socket.setsockopt(zmq.RECONNECT_IVL, min(_FIRST_RECONNECT_MS, _ms(settings.reconnect_limit)))
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _ms(settings.reconnect_limit))
        for option, value in _KEEPALIVE:
            socket.setsockopt(option, value)
    except BaseException:
        socket.close()
        raise
    return socket


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
