"""The event sockets of an engine: for each rank a PUB, and a ROUTER that replays, all on the engine's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import zmq

from enginehouse.mock.kv.encode import encoder
from enginehouse.mock.kv.news import News
from enginehouse.mock.kv.publisher import Batch, Publisher
from enginehouse.mock.settings import Faults, MockSettings

HWM = 100_000
"""Batches that wait for a slow subscriber before more of them are dropped: the engines' default."""
_END = b"\xff" * 8
_TRIES = 100

Listener = Callable[[int, Batch], None]
"""Told of each batch of each rank that a relay beside the engine would come to have."""


class KvEvents:
    """Publishes what the ranks' caches do. Everything is synchronous and nothing blocks."""

    def __init__(self, settings: MockSettings) -> None:
        self.settings = settings
        self.port = 0
        """Of rank 0; the others follow."""
        self.replay_port: int | None = None
        self.listeners: set[Listener] = set()
        encode, faults = encoder(settings), settings.faults()
        self._publishers = [Publisher(rank, encode, faults) for rank in range(settings.ranks)]
        self._faults = faults
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pubs: list[zmq.Socket[bytes]] = []
        self._routers: list[zmq.Socket[bytes]] = []

    def open(self) -> None:
        """Bind. Raises OSError for a port that cannot be had."""
        settings = self.settings
        self.port, self._pubs = self._bind(zmq.PUB, settings.kv_events_port or 0)
        if settings.kv_replay_port is not None:
            self.replay_port, self._routers = self._bind(zmq.ROUTER, settings.kv_replay_port)
        if settings.kv_unreachable:
            self._close_sockets()
        loop = asyncio.get_running_loop()
        for rank, router in enumerate(self._routers):
            loop.add_reader(router.fileno(), self._serve, rank)
            loop.call_soon(self._serve, rank)

    def close(self) -> None:
        """Leave nothing open."""
        loop = asyncio.get_running_loop()
        for router in self._routers:
            loop.remove_reader(router.fileno())
        self._close_sockets()
        self._context.term()

    def _close_sockets(self) -> None:
        for socket in (*self._pubs, *self._routers):
            socket.close(0)
        self._pubs, self._routers = [], []

    def endpoints(self, host: str) -> list[str]:
        """Where the ranks publish."""
        return [f"tcp://{host}:{self.port + rank}" for rank in range(self.settings.ranks)]

    def replay_endpoints(self, host: str) -> list[str]:
        """Where the ranks replay; empty: nowhere."""
        first, ranks = self.replay_port, range(self.settings.ranks)
        return [] if first is None else [f"tcp://{host}:{first + rank}" for rank in ranks]

    def set_faults(self, faults: Faults) -> None:
        """Misbehave like this from now on."""
        self._faults = faults
        for publisher in self._publishers:
            publisher.set_faults(faults)

    def publish(self, rank: int, news: Sequence[News]) -> None:
        """Tell what a rank's cache did in one step."""
        batch = self._publishers[rank].publish(news, time.time())
        if batch is None:
            return
        if batch.sent and self._pubs:
            frames = [self.settings.kv_topic.encode(), batch.number.to_bytes(8, "big"), batch.payload]
            self._pubs[rank].send_multipart(frames, zmq.NOBLOCK)
        if batch.sent or (batch.kept and self._routers):
            for listener in tuple(self.listeners):
                listener(rank, batch)

    def _serve(self, rank: int) -> None:
        """Answer the requests for replays that have come. The descriptor tells of a first one only, so take all."""
        if rank >= len(self._routers):
            return
        router = self._routers[rank]
        while router.poll(0):
            frames = router.recv_multipart(zmq.NOBLOCK)
            if len(frames) != 3 or len(frames[2]) != 8 or self._faults.kv_replay_mute:
                continue
            for batch in self._publishers[rank].replay(int.from_bytes(frames[2], "big")):
                self._reply(
                    router, frames[0], self.settings.kv_topic.encode(), batch.number.to_bytes(8, "big"), batch.payload
                )
            if not self._faults.kv_replay_endless:
                self._reply(router, frames[0], b"", _END, b"")

    def _reply(self, router: zmq.Socket[bytes], peer: bytes, topic: bytes, number: bytes, payload: bytes) -> None:
        lead = [peer, b""] if self.settings.kv_events_old else [peer, b"", topic]
        router.send_multipart([*lead, number, payload], zmq.NOBLOCK)

    def _bind(self, kind: int, port: int) -> tuple[int, list[zmq.Socket[bytes]]]:
        """A socket for each rank, on neighbouring ports; 0: wherever so many are free."""
        for tries in range(_TRIES, 0, -1):
            sockets: list[zmq.Socket[bytes]] = []
            first = port
            try:
                for rank in range(self.settings.ranks):
                    sockets.append(self._socket(kind))
                    bound = self._listen(sockets[-1], first + rank if first else 0)
                    first = first or bound
            except OSError:
                for socket in sockets:
                    socket.close(0)
                if port or tries == 1:
                    raise
            else:
                break
        return first, sockets

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, HWM if kind == zmq.PUB else 0)
        socket.setsockopt(zmq.IPV6, int(":" in self.settings.host))
        return socket

    def _listen(self, socket: zmq.Socket[bytes], port: int) -> int:
        host = self.settings.host
        try:
            socket.bind(f"tcp://[{host}]:{port or '*'}" if ":" in host else f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            raise OSError(f"cannot listen on {host} port {port} for KV events: {error.strerror}") from error
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
