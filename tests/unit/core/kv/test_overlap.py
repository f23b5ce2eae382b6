from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from enginehouse.core.kv.overlap import MOST_JUMPS, SHORTEST_JUMP, longest, members


def spread(ends: list[tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for mask, depth in ends:
        for number in members(mask):
            assert number not in found
            found[number] = depth
    return found


def holding(masks: list[int], probes: list[int] | None = None):
    def of(key: int) -> int:
        if probes is not None:
            probes.append(key)
        return masks[key]

    return of


def masks_of(depths: dict[int, int], length: int) -> list[int]:
    return [sum(1 << one for one, depth in depths.items() if at < depth) for at in range(length)]


@given(st.dictionaries(st.integers(0, 80), st.integers(0, 300), max_size=12), st.integers(0, 300))
@example({0: 100, 1: 2000}, 2000)
def test_prefixes_without_holes_are_exact(depths: dict[int, int], length: int) -> None:
    exact = {one: min(depth, length) for one, depth in depths.items() if min(depth, length)}
    assert spread(longest(holding(masks_of(depths, length)), range(length))) == exact


@given(st.lists(st.integers(0, 7), max_size=150))
def test_with_holes_nobody_gets_less_than_it_holds_nor_ends_where_it_holds_the_next_probe(masks: list[int]) -> None:
    exact = {one: next((at for at, mask in enumerate(masks) if not mask >> one & 1), len(masks)) for one in range(3)}
    found = spread(longest(holding(masks), range(len(masks))))
    assert found.keys() == {one for one, depth in exact.items() if depth}
    for one, depth in found.items():
        assert depth >= exact[one]
        assert masks[depth - 1] >> one & 1
        assert depth == len(masks) or not masks[depth] >> one & 1


@given(st.integers(0, 400), st.integers(0, 400))
def test_a_hole_longer_than_a_jump_is_always_seen(first: int, more: int) -> None:
    masks = [1] * (1 + first) + [0] * SHORTEST_JUMP + [1] * (1 + more)
    jump = max(SHORTEST_JUMP, (len(masks) - 1) // MOST_JUMPS)
    assert jump == SHORTEST_JUMP or len(masks) > MOST_JUMPS * SHORTEST_JUMP
    masks[1 + first : 1 + first] = [0] * (jump - SHORTEST_JUMP + MOST_JUMPS)
    assert spread(longest(holding(masks), range(len(masks)))) == {0: 1 + first}


def test_a_long_prompt_that_nobody_or_everybody_holds_takes_few_probes() -> None:
    for mask, most in ((0, 1), (3, MOST_JUMPS + 2)):
        probes: list[int] = []
        longest(holding([mask] * 5000, probes), range(5000))
        assert len(probes) <= most


def test_changes_are_found_by_halving() -> None:
    probes: list[int] = []
    masks = masks_of({0: 2000} | dict.fromkeys(range(1, 64), 100), 2000)
    assert spread(longest(holding(masks, probes), range(2000)))[5] == 100
    assert len(probes) <= MOST_JUMPS + 2 + 7


@given(st.sets(st.integers(0, 300)))
def test_members_of_a_mask(numbers: set[int]) -> None:
    assert members(sum(1 << number for number in numbers)) == sorted(numbers)
