"""A hash table of rows that begin with an 8-byte id, at little more than their own bytes and without long pauses.

Linear hashing: the table grows by one bucket at a time, by splitting one, so no insertion ever moves more than a few
dozen rows. A bucket is one string of rows, searched by `bytearray.find`, which for so short a string costs no more than
one probe written in Python. There are no objects per row, which a dictionary of integers would have: it takes three
times the memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

ID = 8
FULL = 16
"""Mean rows per bucket at which the next bucket is added."""

_BUCKET_BYTES = 56 + 16 + 8
"""A bytearray object, the head of its allocation, and its place in the list."""
_SLACK = 1.125
"""What a growing bytearray allocates ahead."""


class Table:
    """Rows of `width` bytes. Buckets keep the order in which rows came."""

    __slots__ = ("_rows", "buckets", "count", "mask", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.count = 0
        self.buckets = [bytearray()]
        self.mask = 1
        self._rows = struct.Struct(f"{width}s")

    @property
    def memory(self) -> int:
        """Bytes, from counts."""
        return int(self.count * self.width * _SLACK) + len(self.buckets) * _BUCKET_BYTES

    def find(self, wanted: bytes) -> tuple[bytearray, int]:
        """Bucket that holds or would hold an id, and where its row begins there, negative when it is not there."""
        buckets = self.buckets
        number = hash(wanted) & self.mask
        bucket = buckets[number if number < len(buckets) else number & self.mask >> 1]
        at = bucket.find(wanted)
        while at % self.width and at > 0:  # across two rows, or not in an id's place
            at = bucket.find(wanted, at + 1)
        return bucket, at

    def append(self, bucket: bytearray, row: bytes) -> None:
        """Add what `find` did not find, to the bucket it named. What it named for other ids is good no more."""
        bucket += row
        self.count += 1
        if self.count > len(self.buckets) * FULL:
            self._split()

    def delete(self, bucket: bytearray, at: int) -> None:
        """Forget one row."""
        del bucket[at : at + self.width]
        self.count -= 1

    def pop(self) -> bytearray:
        """Take the last bucket off a table that is only taken apart any more."""
        bucket = self.buckets.pop()
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
        assert len(set(ids)) == len(ids) == self.count
        for bucket in self.buckets:
            for at, (row,) in enumerate(self._rows.iter_unpack(bucket)):
                found, place = self.find(row[:ID])
                assert found is bucket
                assert place == at * self.width
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
        self.buckets[old] = bytearray().join(stay)
        self.buckets.append(bytearray().join(go))
