"""Owns what waits of one rank's KV events, within bounds: what arrived, what is held back, what was let go of again."""

from __future__ import annotations

from collections import deque

from enginehouse.core.kv import cursor
from enginehouse.service.kv_bounds import Room

MOST_BATCHES = 16_384
"""Batches of one rank that may wait: more than the history that engines keep by default (10,000)."""
MOST_BYTES = 32 * 1024 * 1024
"""Bytes of one rank's batches that may wait, and again as many that the cursor holds back during a replay."""


class Backlog:
    """In the order in which it is to be taken. Live batches take room of what all ranks share, until they are taken."""

    def __init__(self, shared: Room) -> None:
        self._shared = shared
        self._arrived: deque[tuple[cursor.Event, bytes, float]] = deque()
        """With the time of arrival."""
        self._arrived_bytes = 0
        self._released: deque[tuple[int, bytes]] = deque()
        """Batches that were held, to be taken before anything else."""
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        self.taken_at = 0.0
        """When that arrived which was taken last, or when those before it were released."""

    def __len__(self) -> int:
        """Batches, and other news, that can be taken."""
        return len(self._arrived) + len(self._released)

    @property
    def since(self) -> float | None:
        """Since when the first of them waits; None: there is none."""
        if self._released:
            return self.taken_at
        return self._arrived[0][2] if self._arrived else None

    @property
    def newest(self) -> cursor.Event | None:
        """What arrived last, unless it was taken."""
        return self._arrived[-1][0] if self._arrived else None

    def add(self, event: cursor.Event, payload: bytes, now: float) -> bool:
        """It arrived. False: it is a batch, and there is no room for it."""
        size = len(payload)
        if isinstance(event, cursor.Live | cursor.Replayed) and (
            len(self._arrived) >= MOST_BATCHES or self._arrived_bytes + size > MOST_BYTES
        ):
            return False
        if isinstance(event, cursor.Live) and not self._shared.take(size):
            return False
        self._arrived.append((event, payload, now))
        self._arrived_bytes += size
        return True

    def take(self) -> tuple[cursor.Event, bytes]:
        """The next one; there must be one."""
        if self._released:
            seq, payload = self._released.popleft()
            self._shared.give(len(payload))
            return cursor.Held(seq, cursor.mark(payload)), payload
        event, payload, self.taken_at = self._arrived.popleft()
        self._arrived_bytes -= len(payload)
        if isinstance(event, cursor.Live):
            self._shared.give(len(payload))
        return event, payload

    def hold(self, seq: int, payload: bytes) -> bool:
        """Keep a batch for later. False: there is no room, and nothing is kept any more."""
        size = len(payload)
        full = len(self._held) >= MOST_BATCHES or self._held_bytes + size > MOST_BYTES
        if full or not self._shared.take(size):
            self.discard()
            return False
        self._held.append((seq, payload))
        self._held_bytes += size
        return True

    def release(self, now: float) -> None:
        """What is held comes next."""
        self._released, self._held, self._held_bytes = self._held, deque(), 0
        self.taken_at = now

    def discard(self) -> None:
        """What is held is not needed."""
        self._shared.give(self._held_bytes)
        self._held.clear()
        self._held_bytes = 0

    def clear(self) -> None:
        """Nothing is needed."""
        while self:
            self.take()
        self.discard()
