"""Which holder holds which key, within fixed memory: the pairs, with no idea of events or tokens.

Each holder has a table from the engine's own ids (handles) to our keys, with the copies it has in each tier; `Credits`
maps a key to the set of its holders. What a holder leaves behind is invisible at once, because its bit is no longer
alive, and is taken apart later (`sweep`), before the bit is used again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from enginehouse.core.kv.credits import Credits
from enginehouse.core.kv.overlap import members
from enginehouse.core.kv.rows import (
    COPIES,
    FAMILY,
    NO_TAIL,
    OWN_ROOM,
    REST,
    ROW,
    SET,
    Holder,
    pack_row,
)
from enginehouse.core.kv.table import ID, Table

EVICT = 256
"""Pairs evicted at a time, so that looking for the largest holder costs little per pair."""
NAMED = 256
"""Masks whose holders are remembered."""
_DUPLICATE_BYTES = 150
"""Of a dictionary entry with its key."""


class Pairs:
    """All holders and what they hold; at most `max_blocks` pairs of holder and handle."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.piece = min(EVICT, max_blocks)
        self.blocks = 0
        """Pairs of living holders."""
        self.pending = 0
        """Pairs of holders gone or cleared that wait for `sweep`; they count against the cap."""
        self.evicted = 0
        """Pairs given up to stay under the cap."""
        self.credits = Credits(max_blocks // 32)
        self.holders: dict[int, Holder] = {}
        self._named: dict[int, tuple[Holder, ...]] = {}
        self._spare_numbers: list[int] = []
        self._numbers = 0
        self._dead: deque[tuple[int, Table]] = deque()

    @property
    def memory(self) -> int:
        """Bytes of all tables, from counts."""
        tables = [*(holder.table for holder in self.holders.values()), *(table for _, table in self._dead)]
        duplicates = sum(len(holder.duplicates) for holder in self.holders.values())
        return self.credits.memory + sum(table.memory for table in tables) + duplicates * _DUPLICATE_BYTES

    def join(self) -> Holder:
        """A new holder that holds nothing."""
        holder = Holder()
        self._enter(holder)
        return holder

    def leave(self, holder: Holder) -> None:
        """Forget a holder: from now on nothing is found at it. Twice is once."""
        if holder.bit:
            self._exit(holder)

    def clear(self, holder: Holder) -> None:
        """It holds nothing any more, and stays."""
        if holder.bit and holder.blocks:
            self._exit(holder)
            self._enter(holder)

    def sweep(self, budget: int) -> bool:
        """Take apart about so many pairs of what is gone; true: there is more to do."""
        while self._dead and budget > 0:
            number, table = self._dead[0]
            before = table.count
            for _, key, _, _ in ROW.iter_unpack(table.pop()):
                self.credits.uncredit(1 << number, key)
            self.pending -= before - table.count
            budget -= before - table.count + 1
            if not table.count:
                self._dead.popleft()
                heapq.heappush(self._spare_numbers, number)
        return bool(self._dead)

    def check(self) -> None:
        """What must always hold."""
        held: dict[int, int] = {}
        for number, holder in self.holders.items():
            assert holder.number == number
            assert holder.bit == 1 << number
            handles: dict[int, int] = {}
            for row in holder.table.rows():
                _, key, _, _ = ROW.unpack(row)
                handles[key] = handles.get(key, -1) + 1
                held[key] = held.get(key, 0) | holder.bit
            assert holder.duplicates == {key: beyond for key, beyond in handles.items() if beyond}
            holder.table.check()
            if holder.tail != NO_TAIL:
                handle, key, family, depth = holder.tail
                assert handle is not None
                place, at = holder.table.find(handle.to_bytes(ID, "little"))
                assert at >= 0
                known, state, before = REST.unpack_from(holder.table.buckets[place], at + ID)
                assert (known, state & FAMILY, before) == (key, family, min(depth, before))
        for number, table in self._dead:
            assert number not in self.holders
            for row in table.rows():
                _, key, _, _ = ROW.unpack(row)
                held[key] = held.get(key, 0) | 1 << number
        self.credits.check(held, {holder.bit: holder.alone for holder in self.holders.values()})
        assert self.blocks == sum(holder.blocks for holder in self.holders.values())
        assert self.pending == sum(table.count for _, table in self._dead)
        assert self.blocks + self.pending <= self.max_blocks
        assert all(holder.bit & mask for mask, holders in self._named.items() for holder in holders)
        numbers = [*self.holders, *(number for number, _ in self._dead), *self._spare_numbers]
        assert sorted(numbers) == list(range(self._numbers))

    def _take_number(self) -> int:
        if self._spare_numbers:
            return heapq.heappop(self._spare_numbers)
        self._numbers += 1
        return self._numbers - 1

    def _enter(self, holder: Holder) -> None:
        holder.number = self._take_number()
        holder.bit = 1 << holder.number
        holder.alone = self.credits.enter(holder.bit)
        holder.record = SET.pack(holder.alone)
        holder.table = Table(ROW.size, min(OWN_ROOM, self.max_blocks // 512))
        self.holders[holder.number] = holder

    def _exit(self, holder: Holder) -> None:
        del self.holders[holder.number]
        self.credits.exit(holder.bit, holder.alone)
        self._named.clear()
        self.blocks -= holder.blocks
        self.pending += holder.blocks
        if holder.blocks:
            self._dead.append((holder.number, holder.table))
        else:
            heapq.heappush(self._spare_numbers, holder.number)
        holder.bit = 0
        holder.table = Table(ROW.size)
        holder.tail = NO_TAIL
        holder.duplicates = {}

    def named(self, mask: int) -> tuple[Holder, ...]:
        """The living holders of a mask. The same few masks are asked for again and again."""
        holders = self._named.get(mask)
        if holders is None:
            if len(self._named) >= NAMED:
                self._named.clear()
            holders = self._named[mask] = tuple(self.holders[number] for number in members(mask))
        return holders

    def release(self, holder: Holder, handles: Iterable[bytes], one: int) -> int:
        """Take a copy per handle from a tier. How many are gone altogether."""
        table = holder.table
        before = table.count
        for handle in handles:
            number, at = table.find(handle)
            if at < 0:
                continue
            key, state, depth = REST.unpack_from(table.buckets[number], at + ID)
            left = state - one if state & one * 0xF else state
            if not left & COPIES:
                table.delete(number, at)
                self.disown(holder, key)
            elif left != state:
                table.put(number, at, pack_row(handle, key, left, depth))
        gone = before - table.count
        if gone:
            self.blocks -= gone
            holder.tail = NO_TAIL
        return gone

    def disown(self, holder: Holder, key: int) -> None:
        """One handle fewer stands for a key."""
        beyond = holder.duplicates.get(key) if holder.duplicates else None
        if beyond is None:
            self.credits.uncredit(holder.bit, key)
        elif beyond > 1:
            holder.duplicates[key] = beyond - 1
        else:
            del holder.duplicates[key]

    def make_room(self, blocks: int) -> None:
        """What is gone makes way first, then blocks of whoever holds most."""
        room = self.max_blocks - blocks
        while self.blocks + self.pending > room and self.pending:
            self.sweep(EVICT)
        excess = self.blocks - room
        if excess > 0:
            self._evict(max(excess, min(EVICT, self.max_blocks // 16)))

    def _evict(self, wanted: int) -> None:
        """Nothing wrong is credited for it: the engine may still hold what is given up here."""
        while wanted > 0 and self.blocks:
            holder = max(self.holders.values(), key=lambda one: one.blocks)
            table, before = holder.table, holder.blocks
            goal = max(0, before - wanted)
            holder.tail = NO_TAIL
            while table.count > goal:
                holder.hand = (holder.hand + 1) % len(table.buckets)
                bucket = table.buckets[holder.hand]
                for place in _least_useful(bucket)[: table.count - goal]:
                    _, key, _, _ = ROW.unpack_from(bucket, place * ROW.size)
                    table.delete(holder.hand, place * ROW.size)
                    self.disown(holder, key)
            wanted -= before - goal
            self.blocks -= before - goal
            self.evicted += before - goal


def _least_useful(bucket: bytes) -> list[int]:
    """A quarter of a bucket, last place first: of its older half the blocks with most before them.

    A prefix that many prompts share is old and used all the time, and all behind it is worth nothing without it.
    """
    rows = len(bucket) // ROW.size
    depths = [depth for _, _, _, depth in ROW.iter_unpack(bucket[: (rows + 1) // 2 * ROW.size])]
    deepest = sorted(range(len(depths)), key=depths.__getitem__, reverse=True)
    return sorted(deepest[: (rows + 3) // 4], reverse=True)
