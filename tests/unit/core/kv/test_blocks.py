from __future__ import annotations

import struct
from array import array

import pytest

from enginehouse.core.kv.blocks import Scheme, extend, keys, pack, root
from enginehouse.domain.kv import namespace

TOKENS = list(range(1000, 1064))
FOUR = Scheme(4)


@pytest.mark.parametrize("kind", [list, tuple, lambda ids: array("I", ids), lambda ids: array("q", ids)])
def test_tokens_are_packed_alike_whatever_holds_them(kind) -> None:
    assert pack(kind([0, 1, 2**32 - 1])) == bytes.fromhex("00000000 01000000 ffffffff")


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_what_is_no_token_id_is_refused(bad: int) -> None:
    with pytest.raises(struct.error):
        pack([1, bad])


@pytest.mark.parametrize(
    ("tokens", "scheme", "blocks"),
    [
        (0, FOUR, 0),
        (3, FOUR, 0),
        (4, FOUR, 1),
        (7, FOUR, 1),
        (8, FOUR, 2),
        (8, Scheme(1), 8),
        (4, Scheme(4, pairs=True), 0),
        (5, Scheme(4, pairs=True), 1),
        (8, Scheme(4, pairs=True), 1),
        (9, Scheme(4, pairs=True), 2),
    ],
)
def test_only_full_blocks_have_keys_and_pairs_need_one_token_more(tokens: int, scheme: Scheme, blocks: int) -> None:
    assert len(keys(pack(TOKENS[:tokens]), scheme)) == blocks


def test_a_longer_prompt_has_the_keys_of_its_prefix() -> None:
    for scheme in (FOUR, Scheme(4, pairs=True)):
        whole = keys(pack(TOKENS), scheme)
        assert keys(pack(TOKENS[:30]), scheme) == whole[:7]
        assert len(set(whole)) == len(whole)


def test_each_token_changes_the_keys_from_its_block_on() -> None:
    whole = keys(pack(TOKENS), FOUR)
    for at in range(len(TOKENS)):
        other = keys(pack([*TOKENS[:at], 7, *TOKENS[at + 1 :]]), FOUR)
        same = [one == two for one, two in zip(whole, other, strict=True)]
        assert same == [block < at // 4 for block in range(16)]


def test_with_pairs_the_token_after_a_block_counts_too() -> None:
    scheme = Scheme(4, pairs=True)
    whole = keys(pack(TOKENS[:9]), scheme)
    other = keys(pack([*TOKENS[:8], 7]), scheme)
    assert whole[0] == other[0]
    assert whole[1] != other[1]


def test_the_same_block_at_another_position_is_another() -> None:
    assert len(set(keys(pack([5, 6, 7, 8] * 8), FOUR))) == 8


def test_k9_other_adapters_salts_sizes_and_pairs_share_no_key() -> None:
    spaces = [
        namespace(None, None),
        namespace("a", None),
        namespace("b", None),
        namespace(None, "a"),
        namespace("a", "a"),
    ]
    schemes = [FOUR, Scheme(8), Scheme(4, pairs=True)]
    found = [keys(pack(TOKENS), scheme, space) for scheme in schemes for space in spaces]
    assert len({key for some in found for key in some}) == sum(map(len, found))
    assert len({root(scheme, space) for scheme in schemes for space in spaces}) == 15


def test_k9_what_else_decides_a_block_is_in_its_key_and_in_all_after_it() -> None:
    start = root(FOUR)
    plain = extend(start, pack(TOKENS[:12]), FOUR)
    image = extend(start, pack(TOKENS[:12]), FOUR, [None, b"image", None])
    other = extend(start, pack(TOKENS[:12]), FOUR, [None, b"other", None])
    assert plain[0] == image[0] == other[0]
    assert len({plain[1], image[1], other[1]}) == len({plain[2], image[2], other[2]}) == 3
    assert extend(start, pack(TOKENS[:12]), FOUR, [None, None, None]) == plain


@pytest.mark.parametrize("scheme", [FOUR, Scheme(4, pairs=True)])
def test_a_run_goes_on_where_the_one_before_it_ended(scheme: Scheme) -> None:
    more = int(scheme.pairs)
    whole = keys(pack(TOKENS), scheme)
    first = extend(root(scheme), pack(TOKENS[: 12 + more]), scheme)
    assert first + extend(first[-1], pack(TOKENS[12:]), scheme) == whole


def test_keys_fit_eight_bytes() -> None:
    for key in keys(pack(TOKENS), Scheme(1)):
        struct.pack("<q", key)
