"""Who can pass a cache to whom."""

from __future__ import annotations

from itertools import product

import pytest

from enginehouse.core.routing.candidate import Candidate, Load, Pairing
from enginehouse.core.routing.mates import Mates, compatible
from enginehouse.domain.engine import ProtocolName

VLLM, SGLANG = ProtocolName.VLLM, ProtocolName.SGLANG


@pytest.mark.parametrize(
    ("a", "b", "fits"),
    [
        (Pairing(VLLM), Pairing(VLLM), True),
        (Pairing(VLLM), Pairing(SGLANG), False),
        (Pairing(VLLM), Pairing(ProtocolName.VLLM_NATIVE), False),
        (Pairing(SGLANG, "nixl"), Pairing(SGLANG, "nixl"), True),
        (Pairing(SGLANG, "nixl"), Pairing(SGLANG, "mooncake"), False),
        (Pairing(SGLANG, "nixl"), Pairing(SGLANG, None), True),
        (Pairing(VLLM, None, "auto"), Pairing(VLLM, None, "fp8"), False),
        (Pairing(VLLM, None, "fp8"), Pairing(VLLM, None, None), True),
        (Pairing(VLLM, None, None, 16), Pairing(VLLM, None, None, 64), False),
        (Pairing(VLLM, None, None, 16), Pairing(VLLM, None, None, None), True),
        (Pairing(VLLM, None, None, 16), Pairing(VLLM, None, None, 16), True),
        (Pairing(VLLM, group="a"), Pairing(VLLM, group="a"), True),
        (Pairing(VLLM, group="a"), Pairing(VLLM, group="b"), False),
        (Pairing(VLLM, group="a"), Pairing(VLLM), False),
        (Pairing(SGLANG, "nixl", "auto", 64, "a"), Pairing(SGLANG, "nixl", "auto", 64, "a"), True),
    ],
)
def test_p5_what_must_agree(a: Pairing, b: Pairing, fits: bool) -> None:
    assert compatible(a, b) is fits
    assert compatible(b, a) is fits


def made(name: str, pairing: Pairing | None) -> Candidate:
    return Candidate(name, 1, name, None, Load(), 0, pairing=pairing)


def test_the_classes_say_what_comparing_each_with_each_says() -> None:
    kinds = [
        Pairing(protocol, backend, dtype, size, group)
        for protocol, backend, dtype, size, group in product(
            (VLLM, SGLANG), ("nixl", "mooncake", None), ("fp8", None), (16, 64, None), ("a", "b", None)
        )
    ]
    prefill = tuple(made(f"p{n}", kind) for n, kind in enumerate(kinds))
    decode = tuple(made(f"d{n}", kind) for n, kind in enumerate(kinds))
    mates = Mates(prefill, decode)
    for first in prefill:
        assert first.pairing is not None
        fit = [c for c in decode if c.pairing is not None and compatible(first.pairing, c.pairing)]
        assert mates.of(first, decode) == fit
    for other in decode:
        assert other.pairing is not None
        able = [c for c in prefill if c.pairing is not None and compatible(c.pairing, other.pairing)]
        assert mates.with_mate(prefill, [other]) == able


def test_an_engine_of_which_nothing_is_known_is_paired_with_nobody() -> None:
    pools = (made("p", None),), (made("d", None), made("e", Pairing(VLLM)))
    assert Mates(*pools).with_mate(*pools) == []
