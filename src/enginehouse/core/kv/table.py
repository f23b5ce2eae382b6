"""A hash table from 8-byte ids to small records, at little more than their own bytes and without long pauses.

Linear hashing: the table grows by one bucket at a time, by splitting one, so no insertion ever moves more than a few
dozen entries. A bucket is two byte strings, ids and records, searched by `bytearray.find`, which for a bucket of this
length costs no more than a probe written in Python. There are no objects per entry: a dictionary of integers takes
three times the memory, and here the garbage collector has nothing to visit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

ID = 8
FULL = 32
"""Mean entries per bucket at which the next bucket is added."""

_IDS = struct.Struct(f"{ID}s")
_BUCKET_BYTES = 2 * (56 + 16 + 8)
"""Two bytearray objects, their allocations' heads, and their places in the lists."""
_SLACK = 1.125
"""What a growing bytearray allocates ahead."""


class Table:
    """One table; `width` is the length of each record. Buckets keep the order in which entries came."""

    __slots__ = ("_mask", "count", "ids", "records", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.count = 0
        self.ids: list[bytearray] = [bytearray()]
        self.records: list[bytearray] = [bytearray()]
        self._mask = 1

    @property
    def memory(self) -> int:
        """Bytes, from counts."""
        return int(self.count * (ID + self.width) * _SLACK) + len(self.ids) * _BUCKET_BYTES

    def find(self, wanted: bytes) -> tuple[int, int]:
        """Bucket that holds or would hold an id, and the entry's place in it, negative when it is not there."""
        bucket = hash(wanted) & self._mask
        ids = self.ids
        if bucket >= len(ids):
            bucket &= self._mask >> 1
        held = ids[bucket]
        at = held.find(wanted)
        while at > 0 and at & 7:  # a match across two entries
            at = held.find(wanted, at + 1)
        return bucket, at >> 3

    def append(self, bucket: int, new: bytes, record: bytes) -> None:
        """Add what `find` did not find, at the bucket it named; what it named before for other ids is then stale."""
        self.ids[bucket] += new
        self.records[bucket] += record
        self.count += 1
        if self.count > len(self.ids) * FULL:
            self._split()

    def delete(self, bucket: int, place: int) -> None:
        """Forget one entry."""
        width = self.width
        del self.ids[bucket][place * ID : place * ID + ID]
        del self.records[bucket][place * width : place * width + width]
        self.count -= 1

    def pop(self) -> tuple[bytearray, bytearray]:
        """Take the last bucket off a table that is only taken apart any more."""
        self.count -= len(self.ids[-1]) // ID
        return self.ids.pop(), self.records.pop()

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """All ids with their records."""
        for ids, records in zip(self.ids, self.records, strict=True):
            for at, (one,) in enumerate(_IDS.iter_unpack(ids)):
                yield one, bytes(records[at * self.width : (at + 1) * self.width])

    def check(self) -> None:
        """What must always hold."""
        assert self.count == sum(len(ids) for ids in self.ids) // ID
        seen = set()
        for bucket, (ids, records) in enumerate(zip(self.ids, self.records, strict=True)):
            assert len(ids) // ID * self.width == len(records)
            for place, (one,) in enumerate(_IDS.iter_unpack(ids)):
                assert self.find(one) == (bucket, place)
                seen.add(one)
        assert len(seen) == self.count
        assert len(self.ids) <= self._mask + 1 <= max(2, 2 * len(self.ids))

    def _split(self) -> None:
        """Share the entries of the next bucket in turn with a new one at the end."""
        new = len(self.ids)
        if new > self._mask:
            self._mask = self._mask * 2 + 1
        old = new & (self._mask >> 1)
        ids, records, width, mask = self.ids[old], self.records[old], self.width, self._mask
        goes = [hash(one) & mask == new for (one,) in _IDS.iter_unpack(ids)]
        parts = [bytearray() for _ in range(4)]
        for place, away in enumerate(goes):
            parts[away] += ids[place * ID : place * ID + ID]
            parts[2 + away] += records[place * width : place * width + width]
        self.ids[old], self.records[old] = parts[0], parts[2]
        self.ids.append(parts[1])
        self.records.append(parts[3])
