"""The two legs share a prompt's bytes; nobody else ever gets them."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest

from enginehouse._proto import sglang_runtime_v1_pb2 as pb
from enginehouse.adapters.engines import sglang_prompt
from enginehouse.adapters.engines.sglang_prompt import Prompts


def read(field: bytes) -> list[int]:
    return list(pb.GenerateRequest.FromString(pb.GenerateRequest(rid="r").SerializeToString() + field).input_ids)


def test_the_decode_leg_takes_what_the_prefill_leg_has_made() -> None:
    prompts, tokens = Prompts(), [1, 2, 150_000]
    first = prompts.for_prefill(tokens)
    with patch.object(sglang_prompt, "_field", side_effect=AssertionError):
        assert prompts.for_decode(tokens) is first
    assert read(first) == tokens


def test_it_is_taken_once_and_then_forgotten() -> None:
    prompts, tokens = Prompts(), [1, 2]
    prompts.for_prefill(tokens)
    prompts.for_decode(tokens)
    assert (prompts._tokens, prompts._field) == (None, b"")
    assert read(prompts.for_decode([3])) == [3]


@pytest.mark.parametrize("other", [[1, 3], [1, 2], [], (1, 2)])
def test_another_prompt_is_another_also_if_it_looks_the_same(other: Sequence[int]) -> None:
    prompts = Prompts()
    prompts.for_prefill([1, 2])
    assert read(prompts.for_decode(other)) == list(other)


def test_a_prompt_that_cannot_be_carried_leaves_nothing_to_take() -> None:
    prompts, good, bad = Prompts(), [1, 2], [1, 1 << 40]
    prompts.for_prefill(good)
    with pytest.raises((ValueError, OverflowError)):
        prompts.for_prefill(bad)
    with pytest.raises((ValueError, OverflowError)):
        prompts.for_decode(bad)
    assert read(prompts.for_decode(good)) == good
