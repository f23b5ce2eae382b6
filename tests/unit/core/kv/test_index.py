from __future__ import annotations

import itertools

import pytest

from enginehouse.core.kv.blocks import Scheme, keys, pack
from enginehouse.core.kv.index import MOST_GROUPS, Holder, KvIndex
from enginehouse.core.kv.pairs import EVICT
from enginehouse.core.kv.rows import MOST_COPIES
from enginehouse.domain.kv import Removed, Stored, Tier, namespace

SIZE = 4
FOUR = Scheme(SIZE)
PROMPT = list(range(100, 140))
"""Ten blocks."""


def stored(first: int = 1, blocks: int = 10, parent: int | None = None, **fields) -> Stored:
    size = fields.get("block_size", SIZE)
    fields = {"token_ids": PROMPT[: blocks * size], "block_size": size} | fields
    return Stored(list(range(first, first + blocks)), parent, **fields)


def found(index: KvIndex, tokens=PROMPT, scheme: Scheme = FOUR, space: str = "") -> dict[Holder, int]:
    index.check()
    return index.lookup(keys(pack(tokens), scheme, space))


@pytest.fixture
def index() -> KvIndex:
    return KvIndex(1000)


@pytest.fixture
def holder(index: KvIndex) -> Holder:
    return index.join()


def test_a_prompt_is_found_as_far_as_it_is_held(index: KvIndex, holder: Holder) -> None:
    assert index.store(holder, stored(blocks=6)) == 6
    assert found(index) == {holder: 6}
    assert found(index, PROMPT[:11]) == {holder: 2}
    assert found(index, [1, *PROMPT]) == {}
    assert found(index, PROMPT[:3]) == {}
    assert (holder.blocks, index.blocks) == (6, 6)


def test_each_holder_has_its_own_depth(index: KvIndex) -> None:
    holders = [index.join() for _ in range(4)]
    for depth, holder in enumerate(holders):
        index.store(holder, stored(first=50 * depth, blocks=depth))
    assert found(index) == {holder: depth for depth, holder in enumerate(holders) if depth}


def test_a_run_goes_on_behind_its_parent(index: KvIndex, holder: Holder) -> None:
    index.store(holder, stored(blocks=3))
    index.store(holder, stored(first=4, blocks=7, parent=3, token_ids=PROMPT[12:]))
    assert found(index) == {holder: 10}


def test_k2_a_run_behind_an_unknown_parent_is_dropped_and_counted(index: KvIndex, holder: Holder) -> None:
    other = index.join()
    index.store(other, stored(blocks=3))
    assert index.store(holder, stored(first=4, blocks=7, parent=3, token_ids=PROMPT[12:])) == 0
    assert holder.orphans == 7
    assert found(index) == {other: 3}


@pytest.mark.parametrize(
    "event",
    [
        stored(token_ids=PROMPT[:39]),
        stored(token_ids=[*PROMPT, 1]),
        stored(pairs=True),
        stored(block_size=0, token_ids=[]),
        stored(block_size=-4, token_ids=[]),
        stored(parent=1),
        stored(parent=10),
        stored(extras=[None]),
        stored(token_ids=[-1, *PROMPT[1:]]),
        stored(token_ids=[2**32, *PROMPT[1:]]),
        Stored([1, 2, 1], None, PROMPT[:12], SIZE),
        Stored([-1], None, PROMPT[:4], SIZE),
        Stored([2**64], None, PROMPT[:4], SIZE),
        stored(parent=-1),
        stored(parent=2**64),
    ],
)
def test_a_run_that_contradicts_itself_is_dropped_and_counted(index: KvIndex, holder: Holder, event: Stored) -> None:
    assert index.store(holder, event) == 0
    assert holder.malformed == 1
    assert found(index) == {}


def test_removals_of_what_is_unknown_or_no_id_change_nothing(index: KvIndex, holder: Holder) -> None:
    index.store(holder, stored())
    assert index.remove(holder, Removed([77])) == 0
    assert index.remove(holder, Removed([1], Tier.HOST)) == 0
    assert index.remove(holder, Removed([-1])) == 0
    assert holder.malformed == 1
    assert found(index) == {holder: 10}


def test_a_block_is_held_while_any_tier_has_a_copy(index: KvIndex, holder: Holder) -> None:
    for tier in Tier:
        index.store(holder, stored(tier=tier))
    gone = []
    for tier in Tier:
        gone.append(index.remove(holder, Removed([10], tier)))
        assert found(index) == {holder: 10 - sum(gone)}
    assert gone == [0, 0, 1]


def test_copies_are_counted_up_to_a_limit(index: KvIndex, holder: Holder) -> None:
    for _ in range(MOST_COPIES + 3):
        index.store(holder, stored())
    for copy in range(MOST_COPIES):
        assert found(index) == {holder: 10}
        assert index.remove(holder, Removed(list(range(1, 11)))) == (10 if copy == MOST_COPIES - 1 else 0)
    assert found(index) == {}


def test_two_ids_of_one_block_count_both(index: KvIndex, holder: Holder) -> None:
    index.store(holder, stored(first=1))
    index.store(holder, stored(first=101))
    assert holder.blocks == 20
    index.remove(holder, Removed(list(range(1, 11))))
    assert found(index) == {holder: 10}
    index.remove(holder, Removed([110]))
    assert found(index) == {holder: 9}


def test_an_id_given_to_other_content_stands_for_that_alone(index: KvIndex, holder: Holder) -> None:
    other = PROMPT[::-1]
    index.store(holder, stored())
    index.store(holder, stored())
    index.store(holder, stored(token_ids=other))
    assert found(index) == {}
    assert found(index, other) == {holder: 10}
    assert index.remove(holder, Removed([1])) == 1
    assert found(index, other) == {}


@pytest.mark.parametrize("kind", [None, "full_attention", "mla_attention", "sink_full_attention"])
def test_blocks_of_main_attention_are_held(index: KvIndex, holder: Holder, kind: str | None) -> None:
    index.store(holder, stored(group=3, kind=kind))
    assert found(index) == {holder: 10}
    index.remove(holder, Removed([10], group=3))
    assert found(index) == {holder: 9}


@pytest.mark.parametrize("kind", ["sliding_window", "mamba", "chunked_local_attention", "cross_attention", "new"])
def test_blocks_of_other_attention_are_not_and_their_removals_neither(
    index: KvIndex, holder: Holder, kind: str
) -> None:
    index.store(holder, stored(group=0, kind="full_attention"))
    assert index.store(holder, stored(group=1, kind=kind)) == 0
    assert index.store(holder, stored(group=1)) == 0
    index.remove(holder, Removed(list(range(1, 11)), group=1))
    assert found(index) == {holder: 10}
    index.clear(holder)
    index.store(holder, stored(group=0, kind="full_attention"))
    index.remove(holder, Removed(list(range(1, 11)), group=1))
    assert found(index) == {holder: 10}
    index.remove(holder, Removed([1], group=7))
    assert found(index) == {}


def test_groups_are_not_remembered_without_bound(index: KvIndex, holder: Holder) -> None:
    for group in range(-10, 3 * MOST_GROUPS):
        index.store(holder, stored(group=group, kind="mamba"))
    assert holder.ignored_groups == set(range(MOST_GROUPS))


@pytest.mark.parametrize("group", [-1, MOST_GROUPS])
def test_a_group_that_cannot_be_is_ignored(index: KvIndex, holder: Holder, group: int) -> None:
    assert index.store(holder, stored(group=group, kind="full_attention")) == 0
    index.store(holder, stored())
    index.remove(holder, Removed([1], group=group))
    assert found(index) == {holder: 10}


def test_a_group_is_what_was_last_said_of_it(index: KvIndex, holder: Holder) -> None:
    index.store(holder, stored(group=1, kind="mamba"))
    index.store(holder, stored(group=1, kind="full_attention"))
    assert found(index) == {holder: 10}
    index.remove(holder, Removed([1], group=1))
    assert found(index) == {}


def test_k5_engines_with_other_ids_and_block_sizes_have_their_right_overlap(index: KvIndex) -> None:
    seeds = [index.join(), index.join()]
    for seed, holder in enumerate(seeds):
        index.store(holder, stored(first=1 + 500 * seed, blocks=8))
    coarse = index.join()
    index.store(coarse, stored(first=1, blocks=3, block_size=8))
    pairs = index.join()
    index.store(pairs, stored(first=1, blocks=5, pairs=True, token_ids=PROMPT[:21]))
    assert found(index) == dict.fromkeys(seeds, 8)
    assert found(index, scheme=Scheme(8)) == {coarse: 3}
    assert found(index, scheme=Scheme(SIZE, pairs=True)) == {pairs: 5}
    assert found(index, PROMPT[:20], Scheme(SIZE, pairs=True)) == {pairs: 4}


@pytest.mark.parametrize("fields", [{"block_size": 2}, {"namespace": namespace("b", None)}, {"pairs": True}])
def test_k5_a_run_of_another_size_or_namespace_than_its_parent_is_refused(
    index: KvIndex, holder: Holder, fields: dict[str, object]
) -> None:
    space = namespace("a", None)
    index.store(holder, stored(blocks=3, namespace=space))
    fields = {"block_size": SIZE, "namespace": space, "pairs": False} | fields
    length = 2 * fields["block_size"] + fields["pairs"]
    assert index.store(holder, stored(first=4, blocks=2, parent=3, token_ids=PROMPT[:length], **fields)) == 0
    assert holder.orphans == 2


def test_k9_the_same_tokens_under_another_adapter_salt_or_image_earn_nothing(index: KvIndex) -> None:
    spaces = [namespace(None, None), namespace("a", None), namespace(None, "a"), namespace("a", "s")]
    holders = {space: index.join() for space in spaces}
    for space, holder in holders.items():
        index.store(holder, stored(namespace=space))
    image = index.join()
    index.store(image, stored(extras=[None, None, b"image", *[None] * 7]))
    for space, holder in holders.items():
        assert found(index, space=space) == {holder: 10} | ({image: 2} if not space else {})
    assert found(index, space=namespace("b", None)) == {}


def test_k9_clear_and_leave_show_at_once_and_are_swept_later(index: KvIndex) -> None:
    one, two, three = (index.join() for _ in range(3))
    for holder in (one, two, three):
        index.store(holder, stored())
    index.clear(one)
    index.leave(two)
    assert found(index) == {three: 10}
    assert (one.blocks, two.blocks, index.blocks, index.pending) == (0, 0, 10, 20)
    index.store(one, stored(blocks=2))
    assert found(index) == {three: 10, one: 2}
    while index.sweep(3):
        assert found(index) == {three: 10, one: 2}
    assert index.pending == 0
    assert found(index) == {three: 10, one: 2}


def test_a_sweep_takes_no_more_than_about_its_budget(index: KvIndex, holder: Holder) -> None:
    index.store(holder, Stored(list(range(900)), None, [1] * 900, 1))
    index.leave(holder)
    assert index.sweep(100)
    assert 700 <= index.pending <= 850


def test_k2_a_new_holder_never_inherits(index: KvIndex) -> None:
    for _ in range(5):
        holder = index.join()
        assert found(index) == {}
        index.store(holder, stored())
        assert found(index) == {holder: 10}
        index.leave(holder)
        index.sweep(4)
    while index.sweep(100):
        pass
    assert index.blocks == index.pending == 0
    assert index.memory <= KvIndex(1).memory + 5 * 200


def test_k2_who_was_found_before_is_not_found_under_a_number_used_again(index: KvIndex) -> None:
    first = index.join()
    index.store(first, stored())
    assert found(index) == {first: 10}
    index.leave(first)
    while index.sweep(100):
        pass
    second = index.join()
    assert second.number == 0
    index.store(second, stored())
    assert found(index) == {second: 10}


def test_numbers_are_used_again_once_swept(index: KvIndex) -> None:
    for _ in range(50):
        holder = index.join()
        index.store(holder, stored())
        index.clear(holder)
        assert holder.number <= 1
        index.leave(holder)
        while index.sweep(100):
            pass


def test_k1_without_removals_the_cap_holds_and_memory_with_it() -> None:
    index = KvIndex(20_000)
    holders = [index.join() for _ in range(4)]
    ids = itertools.count(1)
    full = 0
    for turn in range(2_000):
        blocks = 64
        tokens = list(range(turn * blocks, (turn + 1) * blocks))
        hashes = list(itertools.islice(ids, blocks))
        index.store(holders[turn % 4], Stored(hashes, None, tokens, 1))
        assert index.blocks <= 20_000
        full = full or (index.memory if index.evicted else 0)
        assert not full or index.memory <= 1.1 * full
    assert index.evicted == 2_000 * 64 - index.blocks
    assert index.memory <= 80 * 20_000
    index.check()


def test_k1_the_largest_gives_way_and_the_newest_of_it_stays() -> None:
    index = KvIndex(4_000)
    small, large = index.join(), index.join()
    index.store(small, stored())
    for turn in range(100):
        index.store(large, Stored(list(range(turn * 100, turn * 100 + 100)), None, [turn] * 100, 1))
    assert found(index) == {small: 10}
    newest = index.lookup(keys(pack([99] * 100), Scheme(1)))
    assert newest == {large: 100}


def test_k1_a_prefix_that_many_share_outlives_what_is_behind_it() -> None:
    """Nearly always: which blocks are held against each other depends on this process's hashes."""
    kept = 0
    for trial in range(15):
        index = KvIndex(4_000)
        holder = index.join()
        base = trial * 100_000
        index.store(holder, stored(base + 1))
        for turn in range(100):
            hashes = list(range(base + 1000 + turn * 100, base + 1100 + turn * 100))
            index.store(holder, Stored(hashes, base + 10, [turn] * 100 * SIZE, SIZE))
        kept += found(index) == {holder: 10}
    assert kept > 7


def test_k1_gone_holders_make_room_before_anything_is_evicted() -> None:
    index = KvIndex(100)
    gone = index.join()
    index.store(gone, Stored(list(range(90)), None, [1] * 90, 1))
    index.leave(gone)
    holder = index.join()
    index.store(holder, Stored(list(range(80)), None, [2] * 80, 1))
    assert (index.evicted, holder.blocks) == (0, 80)
    index.check()


def test_k1_blocks_that_come_one_by_one_stay_within_the_cap() -> None:
    index = KvIndex(5)
    holder = index.join()
    for one in range(20):
        index.store(holder, Stored([one], None, [one], 1))
        assert index.blocks <= 5
        index.check()
    assert index.evicted == 20 - holder.blocks


def test_k2_a_run_behind_what_was_evicted_or_removed_is_dropped() -> None:
    index = KvIndex(1)
    one, two = index.join(), index.join()
    index.store(one, Stored([1], None, [1], 1))
    index.store(two, Stored([1], None, [2], 1))
    assert index.store(one, Stored([2], 1, [3], 1)) == 0
    index.remove(two, Removed([1]))
    assert index.store(two, Stored([2], 1, [3], 1)) == 0
    assert (one.orphans, two.orphans, index.blocks) == (1, 1, 0)


def test_k1_a_run_longer_than_all_room_leaves_the_rest_within_it() -> None:
    for cap in (1, 7, EVICT + 10):
        index = KvIndex(cap)
        holder = index.join()
        index.store(holder, Stored(list(range(1000)), None, [1] * 1000, 1))
        assert 0 < index.blocks <= cap
        index.check()


def test_memory_is_counted_from_what_there_is(index: KvIndex, holder: Holder) -> None:
    empty = index.memory
    index.store(holder, stored())
    assert index.memory >= empty + 10 * 2 * 16
    index.clear(holder)
    assert index.memory >= empty + 10 * 2 * 16
    while index.sweep(100):
        pass
    assert index.memory <= empty + 4 * 80
