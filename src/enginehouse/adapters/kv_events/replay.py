"""One replay: asks a publisher for the batches from a number on, and hears them out.

Each has a socket of its own, so that no late answer to an earlier question can be taken for one to this.
"""

from __future__ import annotations

from collections.abc import Callable

import zmq

from enginehouse.adapters.kv_events.rota import Rota, weight
from enginehouse.adapters.kv_events.sockets import END, NUMBER_BYTES, has_more, receive


class Replay:
    """Runs until the publisher says that this was all, it falls silent, or it is closed."""

    def __init__(
        self,
        rota: Rota,
        socket: zmq.Socket[bytes],
        start: int,
        idle_limit: float,
        on_batch: Callable[[int, bytes], None],
        on_end: Callable[[bool], None],
    ) -> None:
        self._rota = rota
        self._socket: zmq.Socket[bytes] | None = socket
        self._idle_limit = idle_limit
        self._on_batch = on_batch
        self._on_end = on_end
        self._heard_at = rota.loop.time()
        self._timer = rota.loop.call_later(idle_limit, self._look)
        # It waits in the socket until there is a connection. Watching reads at once, as one must after sending.
        socket.send_multipart([b"", start.to_bytes(NUMBER_BYTES, "big")], zmq.NOBLOCK)
        rota.watch(self, socket)

    def read(self, most: int) -> int:
        took = 0
        while took < most and self._socket is not None and has_more(self._socket):
            frames = receive(self._socket)
            took += weight(frames[-1])
            self._heard_at = self._rota.loop.time()
            # [empty, topic, number, payload], without the topic before 2026: the last two are what counts.
            if len(frames) < 3 or len(frames[-2]) != NUMBER_BYTES:
                continue
            number = int.from_bytes(frames[-2], "big")
            if number == END:
                self._end(complete=True)
            else:
                self._on_batch(number, frames[-1])
        return took

    def close(self) -> None:
        self._timer.cancel()
        socket, self._socket = self._socket, None
        if socket is not None:
            self._rota.leave(self, socket)
            socket.close()

    def _look(self) -> None:
        """Has it fallen silent? What has come and was not read yet, for our own slowness, is no silence."""
        loop, socket = self._rota.loop, self._socket
        if socket is None:
            return
        if socket.poll(0):
            self._heard_at = loop.time()
            self._rota.wake(self)
        left = self._heard_at + self._idle_limit - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._look)
        else:
            self._end(complete=False)

    def _end(self, *, complete: bool) -> None:
        self.close()
        self._on_end(complete)
