"""A hash table of rows that begin with an 8-byte id, at little more than their own bytes and without long pauses.

Linear hashing: the table grows by one bucket at a time, by splitting one, so a row that is added moves a few others at
most. A bucket is one string of rows, searched by `bytes.find`, which for so short a string costs no more than one probe
written in Python. There are no objects per row, which a dictionary of integers would have: it takes three times the
memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

ID = 8
FULL = 8
"""Mean rows per bucket at which the next bucket is added."""
_EMPTY = 16
"""Empty buckets that `pop` passes over: about as much work as a row."""

_BUCKET_BYTES = 33 + 7 + 8
"""The head of a bytes object, what its allocation is rounded up by, and its place in the list."""


class Table:
    """Rows of `width` bytes. Buckets keep the order in which rows came."""

    __slots__ = ("_rows", "buckets", "count", "mask", "width")

    def __init__(self, width: int, room: int = 0) -> None:
        """`room`: rows for which it has buckets from the start, at a byte each, and need not split them."""
        self.width = width
        self.count = 0
        self.mask = (1 << (room // FULL).bit_length()) - 1 | 1
        self.buckets = [b""] * (self.mask + 1 >> 1)
        self._rows = struct.Struct(f"{width}s")

    @property
    def memory(self) -> int:
        """Bytes, from counts."""
        used = min(self.count, len(self.buckets))
        return self.count * self.width + used * (_BUCKET_BYTES - 8) + len(self.buckets) * 8

    def find(self, wanted: bytes) -> tuple[int, int]:
        """Number of the bucket that holds or would hold an id, and where its row begins there, negative when it does
        not."""
        buckets = self.buckets
        number = hash(wanted) & self.mask
        if number >= len(buckets):
            number &= self.mask >> 1
        at = buckets[number].find(wanted)
        while at > 0 and at % self.width:  # across two rows, or not in an id's place
            at = buckets[number].find(wanted, at + 1)
        return number, at

    def put(self, number: int, at: int, row: bytes) -> None:
        """Another row in the place of one."""
        bucket = self.buckets[number]
        self.buckets[number] = bucket[:at] + row + bucket[at + self.width :]

    def delete(self, number: int, at: int) -> None:
        """Forget one row."""
        bucket = self.buckets[number]
        self.buckets[number] = bucket[:at] + bucket[at + self.width :]
        self.count -= 1

    def grow(self) -> None:
        """Rows were added and counted, each to the bucket that `find` named: make the buckets as many as they need."""
        while self.count > len(self.buckets) * FULL:
            self._split()

    def pop(self) -> bytes:
        """Take the last bucket off a table that is only taken apart any more, or some that are empty."""
        for _ in range(_EMPTY):
            bucket = self.buckets.pop()
            if bucket or not self.buckets:
                break
        self.count -= len(bucket) // self.width
        return bucket

    def rows(self) -> Iterator[bytes]:
        """All of them."""
        for bucket in self.buckets:
            for (row,) in self._rows.iter_unpack(bucket):
                yield row

    def check(self) -> None:
        """What must always hold."""
        ids = [row[:ID] for row in self.rows()]
        assert len(set(ids)) == len(ids) == self.count <= len(self.buckets) * FULL
        for number, bucket in enumerate(self.buckets):
            for at, (row,) in enumerate(self._rows.iter_unpack(bucket)):
                assert self.find(row[:ID]) == (number, at * self.width)
        assert len(self.buckets) <= self.mask + 1 <= max(2, 2 * len(self.buckets))

    def _split(self) -> None:
        """Share the rows of the next bucket in turn with a new one at the end."""
        new = len(self.buckets)
        if new > self.mask:
            self.mask = self.mask * 2 + 1
        old, mask = new & self.mask >> 1, self.mask
        stay: list[bytes] = []
        go: list[bytes] = []
        for (row,) in self._rows.iter_unpack(self.buckets[old]):
            (go if hash(row[:ID]) & mask == new else stay).append(row)
        self.buckets[old] = b"".join(stay)
        self.buckets.append(b"".join(go))
