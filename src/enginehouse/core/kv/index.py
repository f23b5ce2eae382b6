"""Which rank holds which block: the state of all caches, as far as it was told, within fixed memory.

Two tables. Each holder maps the engine's own ids (handles) to our keys, with the copies it has in each tier; one table
for all maps a key to the set of its holders. A lookup reads only the second, and jumps (`lookup`). What a holder
leaves behind is invisible at once, because its bit is no longer alive, and is taken apart later (`sweep`), before the
bit is used again.

Errors are on the side of less credit: what cannot be placed is dropped and counted.
"""

from __future__ import annotations

import heapq
import struct
from collections import deque
from collections.abc import Iterable, Sequence

from enginehouse.core.kv.blocks import BYTES_PER_TOKEN, Scheme, chain, extend, pack, start
from enginehouse.core.kv.holders import NOBODY, HolderSets
from enginehouse.core.kv.overlap import longest, members
from enginehouse.core.kv.table import ID, Table
from enginehouse.domain.kv import Removed, Stored, Tier

MAIN_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Attention whose cached blocks are good for any longer prompt; windows and states are not."""
COPIES = 8
"""Copies of one block in one tier that are counted."""
EVICT = 256
"""Pairs evicted at a time, so that looking for the largest holder costs little per pair."""

_ROW = struct.Struct(f"<{ID}s{ID}sIH")
"""Of a holder's table: handle; key; family and copies; how many blocks are before it."""
DEEPEST = 0xFFFF - EVICT
_ONE = {Tier.DEVICE: 0x001, Tier.HOST: 0x010, Tier.DISK: 0x100}
"""A copy: four bits for each tier."""
_COPIES = 0x00000FFF
_FAMILY = 0xFFFFF000
"""Bits of the root's key above them: blocks of one chain have them in common."""
_REST = struct.Struct(f"<{ID}sIH")
"""A row without its handle."""
_NODE = struct.Struct(f"<{ID}sI")
"""Of the table of keys: key; number of the holders' set."""
_SET = struct.Struct("<I")
"""A node without its key."""
_LINK = struct.Struct("<qIH")
"""The same with the key as a number."""
_HANDLE = struct.Struct("<Q").pack
_KEY = struct.Struct("<q").pack
_DUPLICATE_BYTES = 150
"""Of a dictionary entry with its key."""


class Holder:
    """What one rank of one incarnation holds."""

    __slots__ = ("bit", "duplicates", "hand", "ignored_groups", "malformed", "number", "orphans", "table")

    def __init__(self, number: int) -> None:
        self.number = number
        self.bit = 1 << number
        """0 once it has left: nothing changes for it any more."""
        self.table = Table(_ROW.size)
        self.duplicates: dict[bytes, int] = {}
        """Keys that more than one handle stands for, with the number of handles beyond the first."""
        self.ignored_groups: set[int] = set()
        """KV groups whose blocks are not indexed: removals do not say their kind."""
        self.hand = 0
        """Where eviction goes on."""
        self.orphans = 0
        """Blocks dropped because the block before them is not known."""
        self.malformed = 0
        """Runs dropped because they contradict themselves."""

    @property
    def blocks(self) -> int:
        """Blocks it is known to hold, by handle."""
        return self.table.count


class KvIndex:
    """All holders and their blocks; at most `max_blocks` pairs of holder and block."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.blocks = 0
        """Pairs of living holders."""
        self.pending = 0
        """Pairs of holders gone or cleared that wait for `sweep`; they count against the cap."""
        self.evicted = 0
        """Pairs given up to stay under the cap."""
        self._nodes = Table(_NODE.size)
        self._sets = HolderSets()
        self._holders: dict[int, Holder] = {}
        self._alive = 0
        self._spare_numbers: list[int] = []
        self._numbers = 0
        self._dead: deque[tuple[int, Table]] = deque()

    @property
    def memory(self) -> int:
        """Bytes of all tables, from counts."""
        tables = [
            self._nodes,
            *(holder.table for holder in self._holders.values()),
            *(table for _, table in self._dead),
        ]
        duplicates = sum(len(holder.duplicates) for holder in self._holders.values())
        return sum(table.memory for table in tables) + self._sets.memory + duplicates * _DUPLICATE_BYTES

    def join(self) -> Holder:
        """A new holder that holds nothing."""
        holder = Holder(self._take_number())
        self._holders[holder.number] = holder
        self._alive |= holder.bit
        return holder

    def leave(self, holder: Holder) -> None:
        """Forget a holder: from now on nothing is found at it. Twice is once."""
        if holder.bit:
            self._retire(holder)
            holder.bit = 0
            holder.table = Table(_ROW.size)

    def clear(self, holder: Holder) -> None:
        """It holds nothing any more, and stays."""
        if holder.bit and holder.blocks:
            self._retire(holder)
            holder.number = self._take_number()
            holder.bit = 1 << holder.number
            holder.table = Table(_ROW.size)
            holder.duplicates = {}
            self._holders[holder.number] = holder
            self._alive |= holder.bit

    def sweep(self, budget: int) -> bool:
        """Take apart about so many pairs of what is gone; true: there is more to do."""
        while self._dead and budget > 0:
            number, table = self._dead[0]
            before = table.count
            for _, key, _, _ in _ROW.iter_unpack(table.pop()):
                self._uncredit(1 << number, key)
            self.pending -= before - table.count
            budget -= before - table.count + 1
            if not table.buckets:
                self._dead.popleft()
                heapq.heappush(self._spare_numbers, number)
        return bool(self._dead)

    def store(self, holder: Holder, event: Stored) -> int:
        """Add a run of blocks; how many of them are held now because of it, those held already included."""
        hashes = event.hashes
        blocks = len(hashes)
        if (
            not holder.bit
            or not blocks
            or ((event.kind or event.group is not None) and self._is_ignored(holder, event))
        ):
            return 0
        try:
            packed, handles = pack(event.token_ids), [_HANDLE(one) for one in hashes]
        except struct.error:
            handles = []
        if not handles or not _is_sound(event, blocks):
            holder.malformed += 1
            return 0
        before, depth = start(event.block_size, event.pairs, event.namespace), 0
        family = before & _FAMILY
        if event.parent is not None:
            bucket, at = holder.table.find(_HANDLE(event.parent))
            before, state, depth = _LINK.unpack_from(bucket, at + ID) if at >= 0 else (0, ~family, 0)
            if state & _FAMILY != family:
                # Not known, or known for another adapter, salt or block size: as its child the run would be misplaced.
                holder.orphans += blocks
                return 0
            depth += 1
        if event.extras is None and not event.pairs:
            keys = chain(before, packed, event.block_size * BYTES_PER_TOKEN)
        else:
            keys = extend(before, packed, Scheme(event.block_size, event.pairs), event.extras)
        self._hold(holder, handles, [_KEY(key) for key in keys], depth, family, _ONE[event.tier])
        return blocks

    def remove(self, holder: Holder, event: Removed) -> int:
        """Take away one copy per mention from one tier; how many blocks it no longer holds at all."""
        if not holder.bit or (event.group is not None and event.group in holder.ignored_groups):
            return 0
        try:
            return self._release(holder, [_HANDLE(one) for one in event.hashes], _ONE[event.tier])
        except struct.error:
            holder.malformed += 1
            return 0

    def add(self, holder: Holder, keys: Sequence[int], depth: int = 0) -> None:
        """Keys it holds for all we know, consecutive, the first with `depth` blocks before it.

        Each key is its own handle and has one copy, so a holder gets events or keys; whoever has both joins twice.
        """
        if holder.bit:
            packed = [_KEY(key) for key in keys]
            self._hold(holder, packed, packed, depth, 0, 0)

    def drop(self, holder: Holder, keys: Sequence[int]) -> int:
        """Keys it holds no more; how many it did."""
        return self._release(holder, [_KEY(key) for key in keys], 0) if holder.bit else 0

    def lookup(self, keys: Sequence[int]) -> dict[Holder, int]:
        """How many blocks of a prompt each holder has from its start; those that have none are left out."""
        holders = self._holders
        return {holders[number]: depth for mask, depth in longest(self._holding, keys) for number in members(mask)}

    def check(self) -> None:
        """What must always hold."""
        held: dict[bytes, int] = {}
        for number, holder in self._holders.items():
            assert holder.number == number
            assert holder.bit == 1 << number
            handles: dict[bytes, int] = {}
            for row in holder.table.rows():
                _, key, _, _ = _ROW.unpack(row)
                handles[key] = handles.get(key, -1) + 1
                held[key] = held.get(key, 0) | holder.bit
            assert holder.duplicates == {key: beyond for key, beyond in handles.items() if beyond}
        for number, table in self._dead:
            assert number not in self._holders
            for row in table.rows():
                _, key, _, _ = _ROW.unpack(row)
                held[key] = held.get(key, 0) | 1 << number
        nodes = dict(_NODE.unpack(row) for row in self._nodes.rows())
        assert held == {key: self._sets.masks[number] for key, number in nodes.items()}
        used: dict[int, int] = {}
        for number in nodes.values():
            used[number] = used.get(number, 0) + 1
        self._sets.check(used)
        for table in (self._nodes, *(holder.table for holder in self._holders.values())):
            table.check()
        assert self.blocks == sum(holder.blocks for holder in self._holders.values())
        assert self.pending == sum(table.count for _, table in self._dead)
        assert self.blocks + self.pending <= self.max_blocks
        assert self._alive == sum(holder.bit for holder in self._holders.values())
        numbers = [*self._holders, *(number for number, _ in self._dead), *self._spare_numbers]
        assert sorted(numbers) == list(range(self._numbers))

    def _is_ignored(self, holder: Holder, event: Stored) -> bool:
        if event.kind not in MAIN_KINDS:
            if event.group is not None:
                holder.ignored_groups.add(event.group)
            return True
        return event.kind is None and event.group is not None and event.group in holder.ignored_groups

    def _take_number(self) -> int:
        if self._spare_numbers:
            return heapq.heappop(self._spare_numbers)
        self._numbers += 1
        return self._numbers - 1

    def _retire(self, holder: Holder) -> None:
        del self._holders[holder.number]
        self._alive &= ~holder.bit
        self.blocks -= holder.blocks
        self.pending += holder.blocks
        self._dead.append((holder.number, holder.table))

    def _holding(self, key: int) -> int:
        """The mask of who holds a block; the most of a lookup's time."""
        bucket, at = self._nodes.find(_KEY(key))
        if at < 0:
            return 0
        mask: int = self._sets.masks[_SET.unpack_from(bucket, at + ID)[0]] & self._alive
        return mask

    def _hold(
        self, holder: Holder, handles: Sequence[bytes], keys: Sequence[bytes], depth: int, family: int, one: int
    ) -> None:
        """Add a copy per handle; `one` is the copy in its tier, 0 where copies are not counted."""
        piece = min(EVICT, self.max_blocks)
        if len(handles) > piece:
            for at in range(0, len(handles), piece):
                self._hold(holder, handles[at : at + piece], keys[at : at + piece], depth + at, family, one)
            return
        if self.blocks + self.pending + len(handles) > self.max_blocks:
            self._make_room(len(handles))
        table = holder.table
        before = table.count
        new = []
        first = family | (one or 1)
        depth = min(depth, DEEPEST)
        for handle, key in zip(handles, keys, strict=True):
            bucket, at = table.find(handle)
            if at < 0:
                table.append(bucket, _ROW.pack(handle, key, first, depth))
                new.append(key)
            else:
                known, copies, _ = _REST.unpack_from(bucket, at + ID)
                if known != key:
                    # The engine gave the id to other content: of the two the newer is believed, and one copy of it.
                    self._disown(holder, known)
                    _ROW.pack_into(bucket, at, handle, key, first, depth)
                    new.append(key)
                elif copies & one * 0xF < one * COPIES:
                    _ROW.pack_into(bucket, at, handle, key, copies + one, depth)
            depth += 1
        self.blocks += table.count - before
        self._credit(holder, new)

    def _credit(self, holder: Holder, keys: Iterable[bytes]) -> None:
        """Put a holder into the sets of keys. Blocks of a run mostly have one set, so they are moved in one go."""
        nodes, sets, bit = self._nodes, self._sets, holder.bit
        was, becomes, moved, record = -1, NOBODY, 0, b""
        for key in keys:
            bucket, at = nodes.find(key)
            number = NOBODY if at < 0 else _SET.unpack_from(bucket, at + ID)[0]
            if number != was:
                if moved:
                    sets.move(was, becomes, moved)
                was, becomes, moved = number, sets.number(sets.masks[number] | bit), 0
                record = _SET.pack(becomes)
            if becomes == was:
                holder.duplicates[key] = holder.duplicates.get(key, 0) + 1
            elif at < 0:
                nodes.append(bucket, key + record)
                moved += 1
            else:
                bucket[at + ID : at + _NODE.size] = record
                moved += 1
        if moved:
            sets.move(was, becomes, moved)

    def _release(self, holder: Holder, handles: Iterable[bytes], one: int) -> int:
        """Take a copy per handle; 0: whatever it has. How many are gone altogether."""
        table = holder.table
        before = table.count
        for handle in handles:
            bucket, at = table.find(handle)
            if at < 0:
                continue
            key, copies, depth = _REST.unpack_from(bucket, at + ID)
            left = copies - one if copies & one * 0xF else copies
            if not one or not left & _COPIES:
                table.delete(bucket, at)
                self._disown(holder, key)
            elif left != copies:
                _ROW.pack_into(bucket, at, handle, key, left, depth)
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
        (was,) = _SET.unpack_from(bucket, at + ID)
        mask = sets.masks[was]
        if not mask & bit:
            return
        becomes = sets.number(mask & ~bit)
        if becomes == NOBODY:
            nodes.delete(bucket, at)
        else:
            _SET.pack_into(bucket, at + ID, becomes)
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
            holder = max(self._holders.values(), key=lambda one: one.blocks)
            table, before = holder.table, holder.blocks
            goal = max(0, before - wanted)
            while table.count > goal:
                holder.hand = (holder.hand + 1) % len(table.buckets)
                bucket = table.buckets[holder.hand]
                for place in _least_useful(bucket)[: table.count - goal]:
                    _, key, _, _ = _ROW.unpack_from(bucket, place * _ROW.size)
                    table.delete(bucket, place * _ROW.size)
                    self._disown(holder, key)
            wanted -= before - goal
            self.blocks -= before - goal
            self.evicted += before - goal


def _least_useful(bucket: bytearray) -> list[int]:
    """A quarter of a bucket, last place first: of its older half the blocks with most before them.

    A prefix that many prompts share is old and used all the time, and all behind it is worth nothing without it.
    """
    rows = len(bucket) // _ROW.size
    depths = [depth for _, _, _, depth in _ROW.iter_unpack(bucket[: (rows + 1) // 2 * _ROW.size])]
    deepest = sorted(range(len(depths)), key=depths.__getitem__, reverse=True)
    return sorted(deepest[: (rows + 3) // 4], reverse=True)


def _is_sound(event: Stored, blocks: int) -> bool:
    """Lengths agree, and no block is before itself."""
    return (
        len(event.token_ids) == blocks * event.block_size + event.pairs
        and event.block_size > 0
        and event.parent not in event.hashes
        and (blocks == 1 or len(set(event.hashes)) == blocks)
        and (event.extras is None or len(event.extras) == blocks)
    )
