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

from enginehouse.core.kv.blocks import Scheme, extend, pack, root
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

_ROW = struct.Struct(f"<{ID}sHH")
"""Of a holder's table: key; copies, four bits for each tier; how many blocks are before it."""
DEEPEST = 0xFFFF
_ONE = {Tier.DEVICE: 0x001, Tier.HOST: 0x010, Tier.DISK: 0x100}
_SET = struct.Struct("<I")
"""Of the table of keys: number of the holders' set."""
_KEY = struct.Struct("<q")
_WORDS = struct.Struct(f"{ID}s")
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
        self._nodes = Table(_SET.size)
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
            ids, records = table.pop()
            pairs = len(ids) // ID
            for key, _, _ in _ROW.iter_unpack(records):
                self._uncredit(1 << number, key)
            self.pending -= pairs
            budget -= pairs + 1
            if not table.ids:
                self._dead.popleft()
                heapq.heappush(self._spare_numbers, number)
        return bool(self._dead)

    def store(self, holder: Holder, event: Stored) -> int:
        """Add a run of blocks; how many of them are held now because of it, those held already included."""
        if not holder.bit or not event.hashes or self._is_ignored(holder, event):
            return 0
        blocks = len(event.hashes)
        if not _is_sound(event):
            holder.malformed += 1
            return 0
        scheme = Scheme(event.block_size, event.pairs)
        try:
            packed, handles = pack(event.token_ids), struct.pack(f"<{blocks}Q", *event.hashes)
        except struct.error:
            holder.malformed += 1
            return 0
        if event.parent is None:
            before, depth = root(scheme, event.namespace), 0
        else:
            bucket, place = holder.table.find(event.parent.to_bytes(ID, "little"))
            if place < 0:
                holder.orphans += blocks
                return 0
            row = holder.table.records[bucket][place * _ROW.size : (place + 1) * _ROW.size]
            key, _, depth = _ROW.unpack(row)
            (before,) = _KEY.unpack(key)
            depth += 1
        keys = struct.pack(f"<{blocks}q", *extend(before, packed, scheme, event.extras))
        self._hold(holder, handles, keys, depth, _ONE[event.tier])
        return blocks

    def remove(self, holder: Holder, event: Removed) -> int:
        """Take away one copy per mention from one tier; how many blocks it no longer holds at all."""
        if not holder.bit or (event.group is not None and event.group in holder.ignored_groups):
            return 0
        try:
            handles = struct.pack(f"<{len(event.hashes)}Q", *event.hashes)
        except struct.error:
            holder.malformed += 1
            return 0
        return self._release(holder, handles, _ONE[event.tier])

    def add(self, holder: Holder, keys: Sequence[int], depth: int = 0) -> None:
        """Keys it holds for all we know, consecutive, the first with `depth` blocks before it.

        Each key is its own handle and has one copy, so a holder gets events or keys; whoever has both joins twice.
        """
        if holder.bit:
            packed = struct.pack(f"<{len(keys)}q", *keys)
            self._hold(holder, packed, packed, depth, 0)

    def drop(self, holder: Holder, keys: Sequence[int]) -> int:
        """Keys it holds no more; how many it did."""
        if not holder.bit:
            return 0
        return self._release(holder, struct.pack(f"<{len(keys)}q", *keys), 0)

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
            for _, row in holder.table.entries():
                key, _, _ = _ROW.unpack(row)
                handles[key] = handles.get(key, -1) + 1
                held[key] = held.get(key, 0) | holder.bit
            assert holder.duplicates == {key: beyond for key, beyond in handles.items() if beyond}
        for number, table in self._dead:
            assert number not in self._holders
            for _, row in table.entries():
                key, _, _ = _ROW.unpack(row)
                held[key] = held.get(key, 0) | 1 << number
        nodes = {key: _SET.unpack(row)[0] for key, row in self._nodes.entries()}
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
        nodes = self._nodes
        bucket, place = nodes.find(_KEY.pack(key))
        if place < 0:
            return 0
        (number,) = _SET.unpack_from(nodes.records[bucket], place * _SET.size)
        mask: int = self._sets.masks[number] & self._alive
        return mask

    def _hold(self, holder: Holder, handles: bytes, keys: bytes, depth: int, one: int) -> None:
        """Add a copy per handle; `one` is the copy in its tier, 0 where copies are not counted."""
        piece = min(EVICT, self.max_blocks)
        for at in range(0, len(handles) // ID, piece):
            run = slice(at * ID, (at + piece) * ID)
            self._make_room(len(handles[run]) // ID)
            before = holder.blocks
            self._credit(holder, self._enter(holder, handles[run], keys[run], depth + at, one))
            self.blocks += holder.blocks - before

    def _enter(self, holder: Holder, handles: bytes, keys: bytes, depth: int, one: int) -> list[bytes]:
        """Enter each handle once; the keys that these handles did not stand for before."""
        table, find, size = holder.table, holder.table.find, _ROW.size
        new = []
        tier, most, first = one * 0xF, one * COPIES, one or 1
        for (handle,), (key,) in zip(_WORDS.iter_unpack(handles), _WORDS.iter_unpack(keys), strict=True):
            bucket, place = find(handle)
            if place < 0:
                table.append(bucket, handle, _ROW.pack(key, first, min(depth, DEEPEST)))
                new.append(key)
            else:
                records = table.records[bucket]
                known, copies, _ = _ROW.unpack_from(records, place * size)
                if known != key:
                    # The engine gave the id to other content: of the two the newer is believed, and one copy of it.
                    self._disown(holder, known)
                    _ROW.pack_into(records, place * size, key, first, min(depth, DEEPEST))
                    new.append(key)
                elif copies & tier < most:
                    _ROW.pack_into(records, place * size, key, copies + one, min(depth, DEEPEST))
            depth += 1
        return new

    def _credit(self, holder: Holder, keys: Iterable[bytes]) -> None:
        """Put a holder into the sets of keys. Blocks of a run mostly have one set, so they are moved in one go."""
        nodes, sets, size, bit, duplicates = self._nodes, self._sets, _SET.size, holder.bit, holder.duplicates
        was = becomes = moved = NOBODY
        record = b""
        for key in keys:
            bucket, place = nodes.find(key)
            number = _SET.unpack_from(nodes.records[bucket], place * size)[0] if place >= 0 else NOBODY
            if number != was or not record:
                sets.move(was, becomes, moved)
                was, moved = number, 0
                becomes = sets.number(sets.masks[number] | bit)
                record = _SET.pack(becomes)
            if becomes == was:
                duplicates[key] = duplicates.get(key, 0) + 1
            elif place < 0:
                nodes.append(bucket, key, record)
                moved += 1
            else:
                nodes.records[bucket][place * size : place * size + size] = record
                moved += 1
        sets.move(was, becomes, moved)

    def _release(self, holder: Holder, handles: bytes, one: int) -> int:
        """Take a copy per handle; 0: whatever it has. How many are gone altogether."""
        table, size = holder.table, _ROW.size
        before = table.count
        for (handle,) in _WORDS.iter_unpack(handles):
            bucket, place = table.find(handle)
            if place < 0:
                continue
            records = table.records[bucket]
            key, copies, depth = _ROW.unpack_from(records, place * size)
            left = copies - one if copies & one * 0xF else copies
            if not one or not left:
                table.delete(bucket, place)
                self._disown(holder, key)
            elif left != copies:
                _ROW.pack_into(records, place * size, key, left, depth)
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
        bucket, place = nodes.find(key)
        if place < 0:
            return
        records = nodes.records[bucket]
        (was,) = _SET.unpack_from(records, place * _SET.size)
        mask = sets.masks[was]
        if not mask & bit:
            return
        becomes = sets.number(mask & ~bit)
        if becomes == NOBODY:
            nodes.delete(bucket, place)
        else:
            _SET.pack_into(records, place * _SET.size, becomes)
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
                holder.hand = (holder.hand + 1) % len(table.ids)
                for place in _least_useful(table.records[holder.hand])[: table.count - goal]:
                    key, _, _ = _ROW.unpack_from(table.records[holder.hand], place * _ROW.size)
                    table.delete(holder.hand, place)
                    self._disown(holder, key)
            wanted -= before - goal
            self.blocks -= before - goal
            self.evicted += before - goal


def _least_useful(records: bytearray) -> list[int]:
    """A quarter of a bucket, last place first: of its older half the blocks with most before them.

    A prefix that many prompts share is old and used all the time, and all behind it is worth nothing without it.
    """
    rows = len(records) // _ROW.size
    half, quarter = (rows + 1) // 2, (rows + 3) // 4
    depths = [depth for _, _, depth in _ROW.iter_unpack(records[: half * _ROW.size])]
    return sorted(sorted(range(half), key=depths.__getitem__, reverse=True)[:quarter], reverse=True)


def _is_sound(event: Stored) -> bool:
    """Lengths agree, and no block is before itself."""
    blocks = len(event.hashes)
    return (
        event.block_size > 0
        and len(event.token_ids) == blocks * event.block_size + event.pairs
        and (event.extras is None or len(event.extras) == blocks)
        and event.parent not in event.hashes
        and len(set(event.hashes)) == blocks
    )
