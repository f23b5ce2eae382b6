"""Which holder holds which key, within fixed memory: the pairs, with no idea of events or tokens.

Two tables. Each holder maps the engine's own ids (handles) to our keys, with the copies it has in each tier; one table
for all maps a key to the set of its holders. What a holder leaves behind is invisible at once, because its bit is no
longer alive, and is taken apart later (`sweep`), before the bit is used again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from enginehouse.core.kv.holders import NOBODY, HolderSets
from enginehouse.core.kv.overlap import members
from enginehouse.core.kv.rows import COPIES, DEEPEST, MOST_COPIES, NODE, REST, ROW, SET, Holder, pack_key
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
        self._piece = min(EVICT, max_blocks)
        self.blocks = 0
        """Pairs of living holders."""
        self.pending = 0
        """Pairs of holders gone or cleared that wait for `sweep`; they count against the cap."""
        self.evicted = 0
        """Pairs given up to stay under the cap."""
        self._nodes = Table(NODE.size)
        self._sets = HolderSets()
        self.holders: dict[int, Holder] = {}
        self._alive = 0
        self._named: dict[int, tuple[Holder, ...]] = {}
        self._spare_numbers: list[int] = []
        self._numbers = 0
        self._dead: deque[tuple[int, Table]] = deque()

    @property
    def memory(self) -> int:
        """Bytes of all tables, from counts."""
        tables = [
            self._nodes,
            *(holder.table for holder in self.holders.values()),
            *(table for _, table in self._dead),
        ]
        duplicates = sum(len(holder.duplicates) for holder in self.holders.values())
        return sum(table.memory for table in tables) + self._sets.memory + duplicates * _DUPLICATE_BYTES

    def join(self) -> Holder:
        """A new holder that holds nothing."""
        holder = Holder(self._take_number())
        self.holders[holder.number] = holder
        self._alive |= holder.bit
        return holder

    def leave(self, holder: Holder) -> None:
        """Forget a holder: from now on nothing is found at it. Twice is once."""
        if holder.bit:
            self._retire(holder)
            holder.bit = 0
            holder.table = Table(ROW.size)
            holder.duplicates = {}

    def clear(self, holder: Holder) -> None:
        """It holds nothing any more, and stays."""
        if holder.bit and holder.blocks:
            self._retire(holder)
            holder.number = self._take_number()
            holder.bit = 1 << holder.number
            holder.table = Table(ROW.size)
            holder.duplicates = {}
            self.holders[holder.number] = holder
            self._alive |= holder.bit

    def sweep(self, budget: int) -> bool:
        """Take apart about so many pairs of what is gone; true: there is more to do."""
        while self._dead and budget > 0:
            number, table = self._dead[0]
            before = table.count
            for _, key, _, _ in ROW.iter_unpack(table.pop()):
                self._uncredit(1 << number, key)
            self.pending -= before - table.count
            budget -= before - table.count + 1
            if not table.buckets:
                self._dead.popleft()
                heapq.heappush(self._spare_numbers, number)
        return bool(self._dead)

    def check(self) -> None:
        """What must always hold."""
        held: dict[bytes, int] = {}
        for number, holder in self.holders.items():
            assert holder.number == number
            assert holder.bit == 1 << number
            handles: dict[bytes, int] = {}
            for row in holder.table.rows():
                _, key, _, _ = ROW.unpack(row)
                handles[key] = handles.get(key, -1) + 1
                held[key] = held.get(key, 0) | holder.bit
            assert holder.duplicates == {key: beyond for key, beyond in handles.items() if beyond}
        for number, table in self._dead:
            assert number not in self.holders
            for row in table.rows():
                _, key, _, _ = ROW.unpack(row)
                held[key] = held.get(key, 0) | 1 << number
        nodes = dict(NODE.unpack(row) for row in self._nodes.rows())
        assert held == {key: self._sets.masks[number] for key, number in nodes.items()}
        used: dict[int, int] = {}
        for number in nodes.values():
            used[number] = used.get(number, 0) + 1
        self._sets.check(used)
        for table in (self._nodes, *(holder.table for holder in self.holders.values())):
            table.check()
        assert self.blocks == sum(holder.blocks for holder in self.holders.values())
        assert self.pending == sum(table.count for _, table in self._dead)
        assert self.blocks + self.pending <= self.max_blocks
        assert self._alive == sum(holder.bit for holder in self.holders.values())
        assert all(holder.bit & mask for mask, holders in self._named.items() for holder in holders)
        numbers = [*self.holders, *(number for number, _ in self._dead), *self._spare_numbers]
        assert sorted(numbers) == list(range(self._numbers))

    def _take_number(self) -> int:
        if self._spare_numbers:
            return heapq.heappop(self._spare_numbers)
        self._numbers += 1
        return self._numbers - 1

    def _retire(self, holder: Holder) -> None:
        del self.holders[holder.number]
        self._alive &= ~holder.bit
        self._named.clear()
        self.blocks -= holder.blocks
        self.pending += holder.blocks
        self._dead.append((holder.number, holder.table))

    def holding(self, key: int) -> int:
        """The mask of who holds a block; the most of a lookup's time."""
        bucket, at = self._nodes.find(pack_key(key))
        if at < 0:
            return 0
        mask: int = self._sets.masks[SET.unpack_from(bucket, at + ID)[0]] & self._alive
        return mask

    def named(self, mask: int) -> tuple[Holder, ...]:
        """The living holders of a mask. The same few masks are asked for again and again."""
        holders = self._named.get(mask)
        if holders is None:
            if len(self._named) >= NAMED:
                self._named.clear()
            holders = self._named[mask] = tuple(self.holders[number] for number in members(mask))
        return holders

    def hold(
        self, holder: Holder, handles: Sequence[bytes], keys: Sequence[bytes], depth: int, family: int, one: int
    ) -> None:
        """Add a copy per handle; `one` is the copy in its tier, 0 where copies are not counted."""
        blocks = len(handles)
        if blocks > self._piece:
            for at in range(0, blocks, self._piece):
                run = slice(at, at + self._piece)
                self.hold(holder, handles[run], keys[run], depth + at, family, one)
            return
        if self.blocks + self.pending + blocks > self.max_blocks:
            self._make_room(blocks)
        table = holder.table
        find, append, pack_row = table.find, table.append, ROW.pack
        before = table.count
        new = []
        first = family | (one or 1)
        if depth > DEEPEST:
            depth = DEEPEST
        for handle, key in zip(handles, keys):  # noqa: B905 - as long as each other, and asking costs as much as a block
            bucket, at = find(handle)
            if at < 0:
                append(bucket, pack_row(handle, key, first, depth))
                new.append(key)
            else:
                known, copies, _ = REST.unpack_from(bucket, at + ID)
                if known != key:
                    # The engine gave the id to other content: of the two the newer is believed, and one copy of it.
                    self._disown(holder, known)
                    ROW.pack_into(bucket, at, handle, key, first, depth)
                    new.append(key)
                elif copies & one * 0xF < one * MOST_COPIES:
                    ROW.pack_into(bucket, at, handle, key, copies + one, depth)
            depth += 1
        self.blocks += table.count - before
        if new:
            self._credit(holder, new)

    def _credit(self, holder: Holder, keys: Iterable[bytes]) -> None:
        """Put a holder into the sets of keys. Blocks of a run mostly have one set, so they are moved in one go."""
        nodes, sets, bit = self._nodes, self._sets, holder.bit
        was, becomes, moved, record = -1, NOBODY, 0, b""
        for key in keys:
            bucket, at = nodes.find(key)
            number = NOBODY if at < 0 else SET.unpack_from(bucket, at + ID)[0]
            if number != was:
                if moved:
                    sets.move(was, becomes, moved)
                was, becomes, moved = number, sets.number(sets.masks[number] | bit), 0
                record = SET.pack(becomes)
            if becomes == was:
                holder.duplicates[key] = holder.duplicates.get(key, 0) + 1
            elif at < 0:
                nodes.append(bucket, key + record)
                moved += 1
            else:
                bucket[at + ID : at + NODE.size] = record
                moved += 1
        if moved:
            sets.move(was, becomes, moved)

    def release(self, holder: Holder, handles: Iterable[bytes], one: int) -> int:
        """Take a copy per handle; 0: whatever it has. How many are gone altogether."""
        table = holder.table
        before = table.count
        for handle in handles:
            bucket, at = table.find(handle)
            if at < 0:
                continue
            key, copies, depth = REST.unpack_from(bucket, at + ID)
            left = copies - one if copies & one * 0xF else copies
            if not one or not left & COPIES:
                table.delete(bucket, at)
                self._disown(holder, key)
            elif left != copies:
                ROW.pack_into(bucket, at, handle, key, left, depth)
        self.blocks -= before - table.count
        return before - table.count

    def _disown(self, holder: Holder, key: bytes) -> None:
        """One handle fewer stands for a key."""
        beyond = holder.duplicates.get(key) if holder.duplicates else None
        if beyond is None:
            self._uncredit(holder.bit, key)
        elif beyond > 1:
            holder.duplicates[key] = beyond - 1
        else:
            del holder.duplicates[key]

    def _uncredit(self, bit: int, key: bytes) -> None:
        """Take a holder out of the set of a key, if it is in it."""
        nodes, sets = self._nodes, self._sets
        bucket, at = nodes.find(key)
        if at < 0:
            return
        (was,) = SET.unpack_from(bucket, at + ID)
        mask = sets.masks[was]
        if not mask & bit:
            return
        becomes = sets.number(mask & ~bit)
        if becomes == NOBODY:
            nodes.delete(bucket, at)
        else:
            SET.pack_into(bucket, at + ID, becomes)
        sets.move(was, becomes)

    def _make_room(self, blocks: int) -> None:
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
            while table.count > goal:
                holder.hand = (holder.hand + 1) % len(table.buckets)
                bucket = table.buckets[holder.hand]
                for place in _least_useful(bucket)[: table.count - goal]:
                    _, key, _, _ = ROW.unpack_from(bucket, place * ROW.size)
                    table.delete(bucket, place * ROW.size)
                    self._disown(holder, key)
            wanted -= before - goal
            self.blocks -= before - goal
            self.evicted += before - goal


def _least_useful(bucket: bytearray) -> list[int]:
    """A quarter of a bucket, last place first: of its older half the blocks with most before them.

    A prefix that many prompts share is old and used all the time, and all behind it is worth nothing without it.
    """
    rows = len(bucket) // ROW.size
    depths = [depth for _, _, _, depth in ROW.iter_unpack(bucket[: (rows + 1) // 2 * ROW.size])]
    deepest = sorted(range(len(depths)), key=depths.__getitem__, reverse=True)
    return sorted(deepest[: (rows + 3) // 4], reverse=True)
