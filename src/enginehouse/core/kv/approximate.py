"""What our own requests make likely: an index for ranks whose events say nothing, and the time before events come.

Both are asked with the chained keys of a prompt's blocks, and both hold whole prefixes: with a key they hold all keys
before it. So a longest prefix is found by halving, not block by block.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence


def depth(keys: Sequence[int], held: Collection[int]) -> int:
    """How many keys at the head of `keys` are in `held`, which holds whole prefixes."""
    if not keys or keys[0] not in held:
        return 0
    low, high = 1, len(keys)
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] in held:
            low = middle
        else:
            high = middle - 1
    return low


class Approximate:
    """What one rank likely holds of the prompts that it computed, bounded by its capacity and aged by time.

    Two generations instead of a list in order of use: what is sent goes into the young one; when that is full, or half
    of `ttl` old, it takes the place of the old one, which is forgotten. So a prefix is remembered for half of `ttl` at
    least and `ttl` at most since it was last sent, unless there is no room; forgetting costs nothing per block.
    """

    def __init__(self, blocks: int, ttl: float) -> None:
        """blocks: most that are held; ttl: seconds."""
        self._half = max(1, blocks // 2)
        self._span = ttl / 2
        self._young: set[int] = set()
        self._old: set[int] = set()
        self._twice = 0
        """Blocks in both."""
        self._turn_at = 0.0

    def __len__(self) -> int:
        """Blocks, as of when it was last aged."""
        return len(self._young) + len(self._old) - self._twice

    def sent(self, keys: Sequence[int], now: float) -> None:
        """The rank computed a prompt with these blocks. Of one that it cannot hold only the head counts."""
        self.age(now)
        keys = keys[: self._half]
        known = depth(keys, self._young)
        if len(self._young) + len(keys) - known > self._half:
            self._turn(now)
            known = 0
        if not self._young and not self._old:
            self._turn_at = now + self._span
        self._twice += max(0, depth(keys, self._old) - known)
        self._young.update(keys[known:])

    def depth(self, keys: Sequence[int], now: float) -> int:
        """Blocks at the prompt's head that the rank likely holds."""
        self.age(now)
        return max(depth(keys, self._young), depth(keys, self._old))

    def limit(self, blocks: int) -> None:
        """Hold no more than this from now on."""
        self._half = max(1, blocks // 2)
        if len(self._young) > self._half:
            self._young, self._twice = set(), 0
        if len(self._old) > self._half:
            self._old, self._twice = set(), 0

    def age(self, now: float) -> None:
        """Let go what is too old."""
        if now >= self._turn_at and (self._young or self._old):
            late = now >= self._turn_at + self._span
            self._turn(self._turn_at)
            if late:
                self._old = set()

    def _turn(self, now: float) -> None:
        self._old, self._young, self._twice = self._young, set(), 0
        self._turn_at = now + self._span

    def check(self) -> None:
        """Invariants, for tests."""
        assert len(self._young) <= self._half
        assert len(self._old) <= self._half
        assert self._twice == len(self._young & self._old)


class Expected:
    """What a rank will hold by the requests that are on their way: it counts at once, though no event has come.

    Each prompt counts until some seconds after its first token, in which its events must have come, and no longer.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        """Keys, with the number of prompts on their way that have them. Read only."""
        self._due: deque[tuple[float, Sequence[int]]] = deque()
        """Answered prompts, and when their events must have come; in that order."""

    def __len__(self) -> int:
        return len(self.counts)

    def sent(self, keys: Sequence[int]) -> None:
        """A prompt with these blocks goes to the rank."""
        self.counts.update(keys)

    def answered(self, keys: Sequence[int], until: float) -> None:
        """Its first token came; `until` never decreases."""
        self._due.append((until, keys))

    def drop(self, keys: Sequence[int]) -> None:
        """Nothing will come of it."""
        counts = self.counts
        for key in keys:
            left = counts.pop(key) - 1
            if left:
                counts[key] = left

    def depth(self, keys: Sequence[int], now: float) -> int:
        """Blocks at the prompt's head that the rank is about to hold."""
        self.expire(now)
        return depth(keys, self.counts)

    def expire(self, now: float) -> None:
        """Let go what is overdue."""
        while self._due and self._due[0][0] <= now:
            self.drop(self._due.popleft()[1])
