from __future__ import annotations

import pytest

from enginehouse.core.kv.blocks import Scheme, extend, pack
from enginehouse.core.kv.slices import split
from enginehouse.domain.kv import Stored, Tier

TOKENS = list(range(1000, 1064))


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("blocks", [1, 3, 5, 8])
def test_a_long_run_is_the_same_in_pieces(blocks: int, pairs: bool) -> None:
    event = Stored(
        hashes=list(range(1, 6)),
        parent=99,
        token_ids=TOKENS[: 20 + pairs],
        block_size=4,
        tier=Tier.HOST,
        pairs=pairs,
        namespace="n",
        extras=[None, b"1", None, b"3", None],
        group=2,
        kind="full_attention",
    )
    pieces = list(split(event, blocks))
    assert [len(piece.hashes) for piece in pieces] == [min(blocks, 5 - at) for at in range(0, 5, blocks)]
    key, parent, found = 11, 99, []
    for piece in pieces:
        assert piece.parent == parent
        assert (piece.block_size, piece.tier, piece.pairs, piece.namespace) == (4, Tier.HOST, pairs, "n")
        assert (piece.group, piece.kind) == (2, "full_attention")
        assert len(piece.token_ids) == 4 * len(piece.hashes) + pairs
        some = extend(key, pack(piece.token_ids), Scheme(4, pairs), piece.extras)
        found += some
        key, parent = some[-1], piece.hashes[-1]
    assert found == extend(11, pack(event.token_ids), Scheme(4, pairs), event.extras)
