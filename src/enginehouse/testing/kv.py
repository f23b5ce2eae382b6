"""Owns fake KV-event publishers: what a rank says of its cache, with losses, restarts and replays, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from enginehouse.domain.engine import KvEventSource
from enginehouse.domain.kv import KvBatch, KvEvent, Stored
from enginehouse.ports import KvSink, KvSubscription


def fake_stored(token_ids: Sequence[int], *, block_size: int = 16, first: int = 0, base: int = 1) -> Stored:
    """The prompt's full blocks from number `first` on, as an engine stores them: its id of block n is `base` + n."""
    blocks = len(token_ids) // block_size
    return Stored(
        hashes=[base + n for n in range(first, blocks)],
        parent=None if first == 0 else base + first - 1,
        token_ids=list(token_ids[first * block_size : blocks * block_size]),
        block_size=block_size,
    )


_numbers = count(1)


class FakePublisher:
    """One rank's publisher. What it publishes while nobody is connected is kept for replays only."""

    def __init__(self, *, replays: bool = True, keep: int = 10_000) -> None:
        """replays: it can be asked for what it published; keep: batches that it keeps for that."""
        self.replays = replays
        self.keep = keep
        self.reachable = True
        self.asked: list[int] = []
        """Numbers from which replays were asked."""
        self.mute = False
        """Replays are asked for and not answered."""
        self.slow = 0.0
        """Seconds until a replay is answered, with what there was when it was asked for."""
        self._next = 0
        self._kept: list[tuple[int, bytes]] = []
        self._batches: dict[bytes, KvBatch] = {}
        """By payload; one that cannot be read is not here."""
        self._heard_by: list[tuple[FakeSubscription, int]] = []

    def publish(self, *events: KvEvent, lost: bool = False, rank: int | None = None, readable: bool = True) -> int:
        """One batch; returns its number. lost: it never arrives live; rank: as the batch says; readable: it can be."""
        number, self._next = self._next, self._next + 1
        payload = next(_numbers).to_bytes(8, "big")
        if readable:
            self._batches[payload] = KvBatch(list(events), rank=rank)
        self._kept = [*self._kept, (number, payload)][-self.keep :]
        for subscription, own in self._heard_by:
            if not lost and self.reachable:
                subscription.sink.on_batch(own, number, payload)
        return number

    def decode(self, payload: bytes) -> KvBatch | None:
        """The batch, if it is one of this publisher's that can be read."""
        return self._batches.get(payload)

    def restart(self) -> None:
        """Another process, which begins at 0 and knows nothing of what was published before."""
        self._next, self._kept = 0, []

    def lose(self, reason: str = "connection reset") -> None:
        """It cannot be reached any more."""
        self.reachable = False
        for subscription, _ in self._heard_by:
            subscription.sink.on_lost(reason)

    def connect(self) -> None:
        """It can be reached (again)."""
        self.reachable = True
        for subscription, _ in self._heard_by:
            subscription.sink.on_connected()

    def hear(self, subscription: FakeSubscription, rank: int) -> None:
        """Somebody subscribes."""
        self._heard_by.append((subscription, rank))

    def leave(self, subscription: FakeSubscription) -> None:
        """Somebody has enough."""
        self._heard_by = [(one, rank) for one, rank in self._heard_by if one is not subscription]

    def ask(self, start: int) -> list[tuple[int, bytes]]:
        """Somebody wants everything from there on; what there is of it now."""
        self.asked.append(start)
        return [batch for batch in self._kept if batch[0] >= start]

    def answer(self, subscription: FakeSubscription, rank: int, batches: Sequence[tuple[int, bytes]]) -> None:
        """Replay these."""
        if self.mute or not self.reachable:
            subscription.sink.on_replay_end(rank, complete=False)
            return
        for number, payload in batches:
            subscription.sink.on_replayed(rank, number, payload)
        subscription.sink.on_replay_end(rank, complete=True)


class FakeSubscription:
    """One open subscription."""

    def __init__(self, publishers: dict[int, FakePublisher], sink: KvSink) -> None:
        """publishers: by rank."""
        self.sink = sink
        self.publishers = publishers
        self.can_replay = all(publisher.replays for publisher in publishers.values())
        self.closed = False
        self.decoded = 0
        self._loop = asyncio.get_running_loop()
        for rank, publisher in publishers.items():
            publisher.hear(self, rank)
        if all(publisher.reachable for publisher in publishers.values()):
            self._loop.call_soon(self._connected)

    def decode(self, payload: bytes) -> KvBatch:
        self.decoded += 1
        for publisher in self.publishers.values():
            batch = publisher.decode(payload)
            if batch is not None:
                return batch
        raise ValueError("not readable")

    def replay(self, rank: int, start: int) -> None:
        publisher = self.publishers[rank]
        self._loop.call_later(publisher.slow, self._answer, rank, publisher.ask(start))

    def close(self) -> None:
        self.closed = True
        for publisher in self.publishers.values():
            publisher.leave(self)

    def _connected(self) -> None:
        if not self.closed:
            self.sink.on_connected()

    def _answer(self, rank: int, batches: Sequence[tuple[int, bytes]]) -> None:
        if not self.closed:
            self.publishers[rank].answer(self, rank, batches)


class FakeKvEvents:
    """The KvEvents port."""

    def __init__(self) -> None:
        self.publishers: dict[str, FakePublisher] = {}
        """By endpoint; one that is not there can never be reached."""
        self.opened: list[tuple[KvEventSource, FakeSubscription]] = []
        """Every subscription there was."""

    def listen(self, endpoint: str, *, replays: bool = True, keep: int = 10_000) -> FakePublisher:
        """A publisher is there now."""
        publisher = self.publishers[endpoint] = FakePublisher(replays=replays, keep=keep)
        return publisher

    def subscribe(self, source: KvEventSource, sink: KvSink) -> KvSubscription:
        publisher = self.publishers.get(source.endpoint)
        if publisher is None:
            publisher = FakePublisher()
            publisher.reachable = False
            asyncio.get_running_loop().call_soon(sink.on_lost, f"{source.endpoint} cannot be reached")
        subscription = FakeSubscription({source.rank: publisher}, sink)
        self.opened.append((source, subscription))
        return subscription

    @property
    def following(self) -> list[KvEventSource]:
        """What is subscribed to now."""
        return [source for source, subscription in self.opened if not subscription.closed]
