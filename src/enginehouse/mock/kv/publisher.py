"""What one rank says on its event sockets: numbers, what a replay still has, and the faults that bend both."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from enginehouse.mock.kv.encode import GARBAGE, Encode
from enginehouse.mock.kv.news import News
from enginehouse.mock.settings import Faults


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one step."""

    number: int
    timestamp: float
    news: Sequence[News]
    payload: bytes
    sent: bool
    """Live; else only a replay can bring it."""
    kept: bool
    """A replay can bring it."""


class Publisher:
    """One rank. Knows no sockets and no clock."""

    def __init__(self, rank: int, encode: Encode, faults: Faults) -> None:
        self.rank = rank
        self._encode = encode
        self._faults = faults
        self._next = 0
        self._buffer: deque[Batch] = deque()
        self.set_faults(faults)

    def set_faults(self, faults: Faults) -> None:
        """Misbehave like this from now on."""
        if faults.kv_restarts != self._faults.kv_restarts:
            self._next = 0
            self._buffer.clear()
        self._faults = faults
        self._to_drop = faults.kv_drop_batches
        self._to_garble = faults.kv_garbage_batches
        self._buffer = deque(self._buffer, faults.kv_buffer_batches)

    def publish(self, news: Sequence[News], now: float) -> Batch | None:
        """The batch that tells this; None: it is lost. now: Unix seconds."""
        faults = self._faults
        if faults.kv_silent:
            return None
        number, self._next = self._next, self._next + 1
        dropped, self._to_drop = self._to_drop > 0, self._to_drop - 1
        garbled, self._to_garble = self._to_garble > 0, self._to_garble - 1
        payload = GARBAGE if garbled else self._encode(now, news, self.rank, faults.kv_malformed)
        kept = not (dropped and faults.kv_drop_for_ever)
        batch = Batch(number, now, () if garbled else news, payload, not dropped, kept)
        if kept:
            self._buffer.append(batch)
        return batch

    def replay(self, start: int) -> list[Batch]:
        """What is still there from a number on."""
        return [batch for batch in self._buffer if batch.number >= start]
