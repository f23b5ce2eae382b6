"""How the rows of the index's tables are laid out, and one holder's table with what is kept beside it."""

from __future__ import annotations

import struct

from enginehouse.core.kv.table import ID, Table

DEEPEST = 0xFF00
"""Blocks before a block; where there are more it does not matter how many."""

FAMILY = 0xFFFFF000
"""Bits of a row's state that blocks of one chain have in common."""
COPIES = 0x00000FFF
"""Bits below them: copies, four bits for each tier."""
MOST_COPIES = 8
"""Copies of one block in one tier that are counted."""

ROW = struct.Struct(f"<{ID}s{ID}sIH")
"""Of a holder's table: handle; key; state; how many blocks are before it."""
REST = struct.Struct(f"<{ID}sIH")
"""A row without its handle."""
LINK = struct.Struct("<qIH")
"""The same with the key as a number."""
NODE = struct.Struct(f"<{ID}sI")
"""Of the table of keys: key; number of the holders' set."""
SET = struct.Struct("<I")
"""A node without its key."""
pack_key = struct.Struct("<q").pack


class Holder:
    """What one rank of one incarnation holds."""

    __slots__ = ("bit", "duplicates", "hand", "ignored_groups", "malformed", "number", "orphans", "table")

    def __init__(self, number: int) -> None:
        self.number = number
        self.bit = 1 << number
        """0 once it has left: nothing changes for it any more."""
        self.table = Table(ROW.size)
        self.duplicates: dict[bytes, int] = {}
        """Keys that more than one handle stands for, with the number of handles beyond the first."""
        self.ignored_groups: set[int] = set()
        """KV groups whose blocks are not indexed: removals do not say their kind."""
        self.hand = 0
        """Where eviction goes on."""
        self.orphans = 0
        """Blocks dropped because the block before them is not known, or known as one of other adapter, salt or size."""
        self.malformed = 0
        """Runs dropped because they contradict themselves."""

    @property
    def blocks(self) -> int:
        """Blocks it is known to hold, by handle."""
        return self.table.count
