"""The two ends of KV events in tests: a sink that can be waited for, and a publisher that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

WITHIN = 30.0
"""Seconds for what should take milliseconds."""
END = b"\xff" * 8


@dataclass
class Heard:
    """A KvSink that remembers what it was told, in order, and wakes whoever waits for it."""

    live: list[tuple[int, int, bytes]] = field(default_factory=list)
    replayed: list[tuple[int, int, bytes]] = field(default_factory=list)
    ends: list[tuple[int, bool]] = field(default_factory=list)
    lost: list[tuple[str, bool]] = field(default_factory=list)
    connections: int = 0
    told: list[str] = field(default_factory=list)
    """Everything, as words: lost, connected, numbers of batches, end."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def on_batch(self, rank: int, seq: int, payload: bytes) -> None:
        self.live.append((rank, seq, payload))
        self._tell(str(seq))

    def on_replayed(self, rank: int, seq: int, payload: bytes) -> None:
        self.replayed.append((rank, seq, payload))
        self._tell(f"r{seq}")

    def on_replay_end(self, rank: int, *, complete: bool) -> None:
        self.ends.append((rank, complete))
        self._tell("end")

    def on_connected(self) -> None:
        self.connections += 1
        self._tell("connected")

    def on_lost(self, reason: str, *, permanent: bool = False) -> None:
        self.lost.append((reason, permanent))
        self._tell("lost")

    def _tell(self, word: str) -> None:
        self.told.append(word)
        self._news.set()

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(WITHIN):
            while not what():
                self._news.clear()
                await self._news.wait()

    @property
    def numbers(self) -> list[int]:
        return [seq for _, seq, _ in self.live]

    @property
    def replayed_numbers(self) -> list[int]:
        return [seq for _, seq, _ in self.replayed]


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


class Publisher:
    """The engine's sockets, one rank, on 127.0.0.1 unless told otherwise. XPUB where engines use PUB: the same on the
    wire, and it tells who has subscribed."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, replay_port: int = 0) -> None:
        self._context = zmq.Context()
        self.live = self._socket(zmq.XPUB)
        self.router = self._socket(zmq.ROUTER)
        self.router.setsockopt(zmq.SNDHWM, 0)
        self.endpoint = self._bind(self.live, host, port)
        self.replay_endpoint = self._bind(self.router, host, replay_port)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        return socket

    @staticmethod
    def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> str:
        socket.setsockopt(zmq.IPV6, ":" in host)
        socket.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        return socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    async def subscribed(self) -> bytes:
        """Wait for a subscription; its topic."""
        while (message := await self._next(self.live))[0][:1] != b"\1":
            pass
        return message[0][1:]

    def publish(self, *numbers: int, topic: bytes = b"") -> None:
        for each in numbers:
            self.live.send_multipart([topic, number(each), b"batch %d" % each])

    def send(self, *frames: bytes) -> None:
        self.live.send_multipart(frames)

    async def asked(self) -> tuple[bytes, int]:
        """Wait for a replay to be asked for: by whom, from where."""
        peer, empty, start = await self._next(self.router)
        assert empty == b""
        return peer, int.from_bytes(start, "big")

    def answer(self, peer: bytes, numbers: range, *, old: bool = False) -> None:
        """A replay as vLLM 0.32 sends it, or (old) without the topic."""
        lead = [peer, b""] if old else [peer, b"", b"topic"]
        for each in numbers:
            self.router.send_multipart([*lead, number(each), b"batch %d" % each])

    def end(self, peer: bytes, *, old: bool = False) -> None:
        self.router.send_multipart([peer, b"", END, b""] if old else [peer, b"", b"", END, b""])

    async def _next(self, socket: zmq.Socket[bytes]) -> list[bytes]:
        async with asyncio.timeout(WITHIN):
            while not socket.poll(0):
                await asyncio.sleep(0.005)
        return socket.recv_multipart()

    def close(self) -> None:
        self.live.close()
        self.router.close()
        self._context.term()
