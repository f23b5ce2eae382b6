"""Whatever the history, the index credits exactly what a naive one does; under a cap, never more."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enginehouse.core.kv.blocks import Scheme, keys, pack
from enginehouse.core.kv.index import Holder, KvIndex
from enginehouse.core.kv.rows import MOST_COPIES
from enginehouse.core.kv.table import FULL
from enginehouse.domain.kv import Removed, Stored, Tier

SIZES = (1, 2)
SPACES = ("", "adapter")
ALPHABET = (5, 6)
LONGEST = 4
"""Tokens of a prompt that is looked up."""

Content = tuple[int, str, tuple[int, ...]]
"""Block size, namespace and all tokens from the start of the prompt."""

PROMPTS: dict[Content, int] = {
    (size, space, tokens): keys(pack(tokens), Scheme(size), space)[-1]
    for size in SIZES
    for space in SPACES
    for length in range(size, LONGEST + 1, size)
    for tokens in itertools.product(ALPHABET, repeat=length)
}


class Naive:
    """What one holder holds: content and copies per tier of each handle."""

    def __init__(self) -> None:
        self.content: dict[int, Content] = {}
        self.copies: dict[int, dict[Tier, int]] = {}
        self.orphans = 0

    def store(self, event: Stored) -> None:
        size, space = event.block_size, event.namespace
        tokens: tuple[int, ...] = ()
        if event.parent is not None:
            before = self.content.get(event.parent)
            if before is None or before[:2] != (size, space):
                self.orphans += len(event.hashes)
                return
            tokens = before[2]
        for number, handle in enumerate(event.hashes):
            tokens += tuple(event.token_ids[number * size : (number + 1) * size])
            content = (size, space, tokens)
            if self.content.get(handle) != content:
                self.content[handle], self.copies[handle] = content, {}
            copies = self.copies[handle]
            copies[event.tier] = min(MOST_COPIES, copies.get(event.tier, 0) + 1)

    def remove(self, event: Removed) -> None:
        for handle in event.hashes:
            copies = self.copies.get(handle, {})
            if copies.get(event.tier):
                copies[event.tier] -= 1
                if not any(copies.values()):
                    del self.content[handle], self.copies[handle]

    @property
    def held(self) -> set[Content]:
        return set(self.content.values())


TIERS = st.sampled_from(Tier)
BUDGETS = st.integers(1, 6)


class Machine(RuleBasedStateMachine):
    """Some holders that come and go; the ids of blocks may be anything, also wrong."""

    MAX_BLOCKS = 10_000
    index: KvIndex

    @initialize()
    def begin(self) -> None:
        self.index = KvIndex(self.MAX_BLOCKS)
        self.naive: dict[Holder, Naive] = {}
        self.gone: list[Holder] = []
        self.join()

    @rule()
    def join(self) -> None:
        if len(self.naive) < 4:
            self.naive[self.index.join()] = Naive()

    @rule(data=st.data())
    @precondition(lambda self: self.naive)
    def leave(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(list(self.naive)))
        self.index.leave(holder)
        del self.naive[holder]
        self.gone.append(holder)

    @rule(data=st.data())
    @precondition(lambda self: self.naive)
    def clear(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(list(self.naive)))
        self.index.clear(holder)
        orphans = self.naive[holder].orphans
        self.naive[holder] = Naive()
        self.naive[holder].orphans = orphans

    @rule(budget=BUDGETS)
    def sweep(self, budget: int) -> None:
        before = self.index.pending
        more = self.index.sweep(budget)
        assert before - budget - FULL * 3 <= self.index.pending <= before
        if not more:
            assert not self.index.pending

    def teardown(self) -> None:
        calls = 0
        while self.index.sweep(8):
            calls += 1
            assert calls < 10_000
        assert not self.index.pending
        self.index.check()

    def run(self, data: st.DataObject, holder: Holder) -> Stored:
        size = data.draw(st.sampled_from(SIZES))
        hashes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True))
        parents = [one for one in range(10) if one not in hashes]
        length = len(hashes) * size
        return Stored(
            hashes=hashes,
            parent=data.draw(st.none() | st.sampled_from(parents)),
            token_ids=data.draw(st.lists(st.sampled_from(ALPHABET), min_size=length, max_size=length)),
            block_size=size,
            tier=data.draw(TIERS),
            namespace=data.draw(st.sampled_from(SPACES)),
        )

    @rule(data=st.data(), times=st.sampled_from([1, 1, 1, 2, MOST_COPIES + 1]))
    @precondition(lambda self: self.naive)
    def store(self, data: st.DataObject, times: int) -> None:
        holder = data.draw(st.sampled_from(list(self.naive)))
        event = self.run(data, holder)
        for _ in range(times):
            self.index.store(holder, event)
            self.naive[holder].store(event)

    @rule(data=st.data(), tier=TIERS)
    @precondition(lambda self: self.naive)
    def remove(self, data: st.DataObject, tier: Tier) -> None:
        holder = data.draw(st.sampled_from(list(self.naive)))
        known = list(self.naive[holder].content) or [0]
        handles = data.draw(st.lists(st.sampled_from(known) | st.integers(0, 9), max_size=4))
        event = Removed(handles, tier)
        self.index.remove(holder, event)
        self.naive[holder].remove(event)

    @rule(data=st.data(), tier=TIERS)
    @precondition(lambda self: self.gone)
    def what_comes_late_changes_nothing(self, data: st.DataObject, tier: Tier) -> None:
        holder = data.draw(st.sampled_from(self.gone))
        assert self.index.store(holder, self.run(data, holder)) == 0
        assert self.index.remove(holder, Removed([1, 2], tier)) == 0
        self.index.clear(holder)
        self.index.leave(holder)
        assert holder.blocks == 0

    def credited(self) -> dict[Holder, set[Content]]:
        found: dict[Holder, set[Content]] = {holder: set() for holder in self.naive}
        for content, key in PROMPTS.items():
            for holder, depth in self.index.lookup([key]).items():
                assert depth == 1
                found[holder].add(content)
        return found

    @invariant()
    def holds(self) -> None:
        self.index.check()
        self.compare()

    def compare(self) -> None:
        credited = self.credited()
        for holder, naive in self.naive.items():
            assert credited[holder] == naive.held & PROMPTS.keys()
            assert holder.blocks == len(naive.content)
            assert holder.orphans == naive.orphans
        assert self.index.blocks == sum(len(naive.content) for naive in self.naive.values())


class CappedMachine(Machine):
    """The same with little room; each content has an id of its own, as engines have it."""

    MAX_BLOCKS = 9

    def run(self, data: st.DataObject, holder: Holder) -> Stored:
        event = super().run(data, holder)
        naive = self.naive.get(holder, Naive())
        event.parent = data.draw(st.none() | st.sampled_from(list(naive.content))) if naive.content else None
        tokens = naive.content[event.parent][2] if event.parent is not None else ()
        size = event.block_size
        ids = []
        for number in range(len(event.hashes)):
            tokens += tuple(event.token_ids[number * size : (number + 1) * size])
            ids.append(hash((size, event.namespace, tokens)) % 2**64)
        event.hashes = ids
        return event

    def compare(self) -> None:
        credited = self.credited()
        for holder, naive in self.naive.items():
            assert credited[holder] <= naive.held
            assert holder.blocks <= len(naive.content)
        assert self.index.blocks + self.index.pending <= self.MAX_BLOCKS


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
CappedMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestIndex = Machine.TestCase
TestCappedIndex = CappedMachine.TestCase
