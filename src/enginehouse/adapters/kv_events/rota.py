"""Takes turns at reading many ZMQ sockets on one event loop: a few messages, then the loop may do something else."""

from __future__ import annotations

import asyncio
from typing import Protocol

import zmq

AT_ONCE = 32
"""Messages in one turn, over all sockets: some 10 µs each."""
_BYTES = 32 * 1024
"""A message of so many bytes counts as one more."""


class Reader(Protocol):
    """Somebody whose sockets are watched."""

    def read(self, most: int) -> int:
        """Take messages of about so much weight and return how much. Less: every socket was read until it had no more.

        ZMQ's descriptor tells only changes: who stops before a socket is empty, or sends on it and does not look
        again, is not woken any more.
        """


def weight(payload: bytes) -> int:
    """Of one message, in the unit of `AT_ONCE`."""
    return 1 + len(payload) // _BYTES


class Rota:
    """Who has something to read, first come first served; who is not done goes to the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: dict[Reader, None] = {}
        self._next: asyncio.Handle | None = None

    def watch(self, reader: Reader, *sockets: zmq.Socket[bytes]) -> None:
        for socket in sockets:
            self.loop.add_reader(socket.FD, self.wake, reader)
        self.wake(reader)  # what has changed until now is told to nobody

    def leave(self, reader: Reader, *sockets: zmq.Socket[bytes]) -> None:
        """Before its sockets are closed."""
        for socket in sockets:
            self.loop.remove_reader(socket.FD)
        self._ready.pop(reader, None)

    def wake(self, reader: Reader) -> None:
        """There may be something for it to read."""
        self._ready[reader] = None
        if self._next is None:
            self._next = self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        room = AT_ONCE
        try:
            while self._ready and room > 0:
                reader = next(iter(self._ready))
                took = reader.read(room)
                if took >= room and reader in self._ready:
                    self._ready[reader] = self._ready.pop(reader)
                else:
                    self._ready.pop(reader, None)
                room -= max(took, 1)
        finally:  # also when a sink raised: its reader is not done
            self._next = self.loop.call_soon(self._turn) if self._ready else None
