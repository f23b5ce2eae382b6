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

_POLLIN = int(zmq.POLLIN)  # a flag of an enum takes longer to compare than the socket to ask
NUMBER_BYTES = 8
END = (1 << 64) - 1
"""The number that ends a replay and that no batch has."""


Context = zmq.Context[zmq.Socket[bytes]]


def receive(socket: zmq.Socket[bytes]) -> list[bytes]:
    """One message that has come; zmq.Again when there is none. `recv_multipart` for less: a frame knows that there is
    more, and the socket need not be asked."""
    frame = socket.recv(zmq.NOBLOCK, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = socket.recv(zmq.NOBLOCK, copy=False)  # all of a message is there, or nothing
        frames.append(frame.bytes)
    return frames


def has_more(socket: zmq.Socket[bytes]) -> bool:
    """Another message has come. A third of what being told so by zmq.Again costs."""
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return events & _POLLIN != 0


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
