"""Sets of holders as bit masks, each distinct mask kept once and named by a small number.

Blocks held by the same holders are many and the sets of holders few, so a block costs the four bytes of a number. Uses
are counted, so a mask that no block has any more is forgotten at once.
"""

from __future__ import annotations

NOBODY = 0
"""The number of the empty set, which always exists and whose uses are not counted."""


class HolderSets:
    """All masks in use. A number is good as long as some block uses it."""

    __slots__ = ("_numbers", "_spare", "masks", "uses")

    def __init__(self) -> None:
        self.masks: list[int] = [0]
        self.uses: list[int] = [0]
        self._numbers: dict[int, int] = {0: NOBODY}
        self._spare: list[int] = []

    @property
    def memory(self) -> int:
        """Bytes, about: an integer, its dictionary entry, its use count and their places, per mask."""
        return len(self.masks) * (160 + self.masks[-1].bit_length() // 8)

    def number(self, mask: int) -> int:
        """The number of a mask; one that is new must be moved to before the next call."""
        found = self._numbers.get(mask)
        if found is not None:
            return found
        if self._spare:
            new = self._spare.pop()
            self.masks[new] = mask
        else:
            new = len(self.masks)
            self.masks.append(mask)
            self.uses.append(0)
        self._numbers[mask] = new
        return new

    def move(self, old: int, new: int, blocks: int = 1) -> None:
        """So many blocks went from one set to another."""
        uses = self.uses
        if new:
            uses[new] += blocks
        if old:
            uses[old] -= blocks
            if not uses[old]:
                del self._numbers[self.masks[old]]
                self.masks[old] = 0
                self._spare.append(old)

    def check(self, used: dict[int, int]) -> None:
        """What must always hold, given how many blocks have each number."""
        assert used == {number: uses for number, uses in enumerate(self.uses) if uses}
        assert self._numbers == {0: NOBODY} | {self.masks[number]: number for number in used}
        assert sorted([NOBODY, *used, *self._spare]) == list(range(len(self.masks)))
