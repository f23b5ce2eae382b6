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

ROW = struct.Struct(f"<{ID}sqIH")
"""Of a holder's table: handle; key; state; how many blocks are before it."""
REST = struct.Struct("<qIH")
"""A row without its handle."""
NODE = struct.Struct("<qI")
"""Of the table of keys: key; number of the holders' set."""
SET = struct.Struct("<I")
"""A node without its key."""
pack_key = struct.Struct("<q").pack
pack_row = ROW.pack


Tail = tuple[int | None, int, int, int]
"""Of a block: handle; key; family; how many blocks are before it."""
NO_TAIL: Tail = (None, 0, 0, 0)

OWN_ROOM = 8192
"""Blocks for which a holder has buckets from the start, or fewer under a small cap."""


class Holder:
    """What one rank of one incarnation holds."""

    __slots__ = (
        "alone",
        "bit",
        "duplicates",
        "hand",
        "ignored_groups",
        "malformed",
        "number",
        "orphans",
        "record",
        "table",
        "tail",
    )

    def __init__(self) -> None:
        self.number = 0
        self.bit = 0
        """0 once it has left: nothing changes for it any more."""
        self.alone = 0
        """Number of the set of this holder and no other."""
        self.record = b""
        """The same, packed."""
        self.table = Table(ROW.size)
        self.tail = NO_TAIL
        """The last block that was stored, if it is held: the next run mostly begins behind it."""
        self.duplicates: dict[int, int] = {}
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
