"""Which holders have which key: one table for all, with the number of a set of holders for each key."""

from __future__ import annotations

from collections.abc import Iterable

from enginehouse.core.kv.holders import NOBODY, HolderSets
from enginehouse.core.kv.rows import NODE, SET, pack_key
from enginehouse.core.kv.table import ID, Table


class Credits:
    """All keys that any holder has. A holder is a bit; what a bit has is seen while it is alive."""

    __slots__ = ("alive", "sets", "table")

    def __init__(self, room: int) -> None:
        self.table = Table(NODE.size, room)
        self.sets = HolderSets()
        self.alive = 0

    @property
    def memory(self) -> int:
        """Bytes, from counts."""
        return self.table.memory + self.sets.memory

    def enter(self, bit: int) -> int:
        """A bit that has nothing is alive; the number of its own set, kept for it: most blocks have one holder."""
        self.alive |= bit
        alone = self.sets.number(bit)
        self.sets.move(NOBODY, alone)
        return alone

    def exit(self, bit: int, alone: int) -> None:
        """A bit is seen no more."""
        self.alive &= ~bit
        self.sets.move(alone, NOBODY)

    def holding(self, key: int) -> int:
        """The mask of who has a key; the most of a lookup's time."""
        number, at = self.table.find(pack_key(key))
        if at < 0:
            return 0
        mask: int = self.sets.masks[SET.unpack_from(self.table.buckets[number], at + ID)[0]] & self.alive
        return mask

    def credit(self, bit: int, alone: int, key: int) -> bool:
        """Put a bit into the set of one key; whether it was in it already."""
        packed = pack_key(key)
        number, at = self.table.find(packed)
        if at >= 0:
            return bool(self.share(bit, [(key, packed)]))
        self.table.buckets[number] += packed + SET.pack(alone)
        self.table.count += 1
        self.table.grow()
        self.sets.move(NOBODY, alone)
        return False

    def share(self, bit: int, keys: Iterable[tuple[int, bytes]]) -> list[int]:
        """Put a bit into the sets of keys that somebody has, given as numbers and packed; those it was in already."""
        table, sets = self.table, self.sets
        again: list[int] = []
        # Blocks of a run mostly have one set, so they are moved in one go.
        was, becomes, moved, record = -1, NOBODY, 0, b""
        for key, packed in keys:
            place, at = table.find(packed)
            (number,) = SET.unpack_from(table.buckets[place], at + ID)
            if number != was:
                if moved:
                    sets.move(was, becomes, moved)
                was, becomes, moved = number, sets.number(sets.masks[number] | bit), 0
                record = SET.pack(becomes)
            if becomes == was:
                again.append(key)
            else:
                table.put(place, at, packed + record)
                moved += 1
        if moved:
            sets.move(was, becomes, moved)
        return again

    def uncredit(self, bit: int, key: int) -> None:
        """Take a bit out of the set of a key, if it is in it."""
        table, sets = self.table, self.sets
        packed = pack_key(key)
        place, at = table.find(packed)
        if at < 0:
            return
        (was,) = SET.unpack_from(table.buckets[place], at + ID)
        mask = sets.masks[was]
        if not mask & bit:
            return
        becomes = sets.number(mask & ~bit)
        if becomes == NOBODY:
            table.delete(place, at)
        else:
            table.put(place, at, packed + SET.pack(becomes))
        sets.move(was, becomes)

    def check(self, held: dict[int, int], alone: dict[int, int]) -> None:
        """What must always hold, given the mask of each key, and each living bit with the number of its own set."""
        numbers = dict(NODE.unpack(row) for row in self.table.rows())
        assert held == {key: self.sets.masks[number] for key, number in numbers.items()}
        used: dict[int, int] = {}
        for number in (*numbers.values(), *alone.values()):
            used[number] = used.get(number, 0) + 1
        self.sets.check(used)
        self.table.check()
        assert self.alive == sum(alone)
        assert all(self.sets.masks[number] == bit for bit, number in alone.items())
