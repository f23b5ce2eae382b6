"""Adding pairs: the hot path of every stored block, written for speed."""

from __future__ import annotations

from collections.abc import Sequence

from enginehouse.core.kv.pairs import Pairs
from enginehouse.core.kv.rows import DEEPEST, MOST_COPIES, REST, Holder, pack_key, pack_row
from enginehouse.core.kv.table import FULL, ID


class Filling(Pairs):
    """Pairs that are added to, in runs of consecutive blocks.

    What a run costs once is half the time of one block, so a run of one has a method of its own. In both of them the
    tables' `find` is written out, because a call per block would cost as much as all else.
    """

    def hold(
        self, holder: Holder, handles: Sequence[bytes], keys: Sequence[int], depth: int, family: int, one: int
    ) -> None:
        """Add a copy per handle; `one` is the copy in its tier, `depth` how many blocks are before the first."""
        blocks = len(handles)
        if blocks > self.piece:
            for at in range(0, blocks, self.piece):
                run = slice(at, at + self.piece)
                self.hold(holder, handles[run], keys[run], depth + at, family, one)
            return
        if self.blocks + self.pending + blocks > self.max_blocks:
            self.make_room(blocks)
        if depth > DEEPEST:
            depth = DEEPEST
        first, record, alone = family | one, holder.record, holder.alone
        credits, table = self.credits, holder.table
        nodes = credits.table
        buckets, mask, size = table.buckets, table.mask, len(table.buckets)
        places, cover, extent = nodes.buckets, nodes.mask, len(nodes.buckets)
        known: list[tuple[bytes, int, int]] = []
        shared: list[tuple[int, bytes]] = []
        # Both tables' `find`, written out: a call per block would cost as much as all else. They grow afterwards.
        for handle, key in zip(handles, keys):  # noqa: B905 - as long as each other, and asking costs time
            number = hash(handle) & mask
            if number >= size:
                number &= mask >> 1
            bucket = buckets[number]
            if bucket.find(handle) >= 0 and table.find(handle)[1] >= 0:
                known.append((handle, key, depth))
            else:
                buckets[number] = bucket + pack_row(handle, key, first, depth)
                packed = pack_key(key)
                number = hash(packed) & cover
                if number >= extent:
                    number &= cover >> 1
                bucket = places[number]
                if bucket.find(packed) >= 0 and nodes.find(packed)[1] >= 0:
                    shared.append((key, packed))
                else:
                    places[number] = bucket + packed + record
            depth += 1
        added = blocks - len(known)
        fresh = added - len(shared)
        self.blocks += added
        table.count += added
        nodes.count += fresh
        credits.sets.uses[alone] += fresh
        if table.count > size * FULL:
            table.grow()
        if nodes.count > extent * FULL:
            nodes.grow()
        if shared:
            for key in credits.share(holder.bit, shared):
                holder.duplicates[key] = holder.duplicates.get(key, 0) + 1
        for handle, key, depth in known:
            self._again(holder, handle, (key, first, depth), one)

    def hold_one(self, holder: Holder, handle: bytes, key: int, depth: int, family: int, one: int) -> None:
        """`hold` for one block, which is what most events bring: what a run costs once is half of its time."""
        if self.blocks + self.pending >= self.max_blocks:
            self.make_room(1)
        if depth > DEEPEST:
            depth = DEEPEST
        table = holder.table
        buckets, mask = table.buckets, table.mask
        number = hash(handle) & mask
        if number >= len(buckets):
            number &= mask >> 1
        bucket = buckets[number]
        if bucket.find(handle) >= 0 and table.find(handle)[1] >= 0:
            self._again(holder, handle, (key, family | one, depth), one)
            return
        buckets[number] = bucket + pack_row(handle, key, family | one, depth)
        self.blocks += 1
        table.count += 1
        if table.count > len(buckets) * FULL:
            table.grow()
        credits = self.credits
        table = credits.table
        buckets, mask = table.buckets, table.mask
        packed = pack_key(key)
        number = hash(packed) & mask
        if number >= len(buckets):
            number &= mask >> 1
        bucket = buckets[number]
        if bucket.find(packed) >= 0 and table.find(packed)[1] >= 0:
            for again in credits.share(holder.bit, [(key, packed)]):
                holder.duplicates[again] = holder.duplicates.get(again, 0) + 1
            return
        buckets[number] = bucket + packed + holder.record
        credits.sets.uses[holder.alone] += 1
        table.count += 1
        if table.count > len(buckets) * FULL:
            table.grow()

    def _again(self, holder: Holder, handle: bytes, rest: tuple[int, int, int], one: int) -> None:
        """A copy of a block whose handle it has."""
        table = holder.table
        number, at = table.find(handle)
        known, state, depth = REST.unpack_from(table.buckets[number], at + ID)
        if known != rest[0]:
            # The engine gave the id to other content: of the two the newer is believed, and one copy of it.
            table.put(number, at, pack_row(handle, *rest))
            self.disown(holder, known)
            if self.credits.credit(holder.bit, holder.alone, rest[0]):
                holder.duplicates[rest[0]] = holder.duplicates.get(rest[0], 0) + 1
        elif state & one * 0xF < one * MOST_COPIES:
            table.put(number, at, pack_row(handle, known, state + one, depth))
