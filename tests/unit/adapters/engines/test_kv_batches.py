"""Batches over gRPC mean what the same batches over ZMQ mean: the real servicer's beside its engine's own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from smg_grpc_proto.generated import common_pb2 as pb

from enginehouse.adapters.engines.kv_batches import decode
from enginehouse.domain.kv import Cleared, KvBatch, Removed, Stored, Tier, namespace
from enginehouse.wire import kv_events as wire
from enginehouse.wire.kv_fields import EVENTS_LIMIT
from tests.unit.adapters.engines.doubles import golden, messages

GOLDEN = golden("vllm-0.32.0-kv")


def block(number: int, *tokens: int, size: int = 2, **more: Any) -> Any:
    return pb.KvBlock(block_hash=number, token_ids=tokens, block_size=size, **more)


def stored(*blocks: Any, **more: Any) -> Any:
    return pb.KvCacheEvent(stored=pb.KvBlocksStored(blocks=blocks, **more))


def removed(*hashes: int, **more: Any) -> Any:
    return pb.KvCacheEvent(removed=pb.KvBlocksRemoved(block_hashes=hashes, **more))


def cleared(**more: Any) -> Any:
    return pb.KvCacheEvent(cleared=pb.KvCacheCleared(**more))


def read(*events: Any, **more: Any) -> KvBatch:
    return decode(pb.KvEventBatch(sequence_number=1, events=events, **more).SerializeToString())


def one(event: Any) -> Any:
    batch = read(event)
    assert not batch.malformed
    (only,) = batch.events
    return only


@pytest.mark.parametrize("case", [name for name, case in GOLDEN.items() if "payload_hex" in case])
def test_a_relayed_batch_is_the_batch_that_the_engine_published(case: str) -> None:
    (message,) = messages(GOLDEN[case])
    assert decode(message) == wire.decode(bytes.fromhex(GOLDEN[case]["payload_hex"]))


@pytest.mark.parametrize("case", [name for name, case in GOLDEN.items() if "payload_hex" not in case])
def test_a_load_record_holds_nothing(case: str) -> None:
    (message,) = messages(GOLDEN[case])
    assert pb.KvEventBatch.FromString(message).load.load_only
    assert decode(message).events == []


def test_a_batch_has_so_many_events_and_no_more() -> None:
    assert len(read(*[cleared()] * EVENTS_LIMIT).events) == EVENTS_LIMIT
    with pytest.raises(ValueError, match="more than 32768 events"):
        read(*[cleared()] * (EVENTS_LIMIT + 1))


def test_consecutive_blocks_are_one_run_with_the_parent_of_the_first() -> None:
    run = one(stored(block(-1, 1, 2), block(7, 3, 4), parent_block_hash=-5))
    assert isinstance(run, Stored)
    assert (list(run.hashes), run.parent) == ([2**64 - 1, 7], 2**64 - 5)
    assert (list(run.token_ids), run.block_size) == ([1, 2, 3, 4], 2)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (block(7, 3, 4, 5, size=3), ("block_size", [2, 3])),
        (block(7, 3, 4, cache_level=1), ("tier", [Tier.DEVICE, Tier.HOST])),
    ],
)
def test_blocks_that_are_not_alike_are_runs_that_follow_each_other(other: Any, differs: tuple[str, list[Any]]) -> None:
    batch = read(stored(block(1, 1, 2), other, parent_block_hash=9))
    name, values = differs
    assert [getattr(run, name) for run in batch.events] == values
    assert [run.parent for run in batch.events] == [9, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("place", "tier"),
    [
        ({}, Tier.DEVICE),
        ({"tier": pb.KV_CACHE_TIER_DEVICE}, Tier.DEVICE),
        ({"tier": pb.KV_CACHE_TIER_HOST}, Tier.HOST),
        ({"tier": pb.KV_CACHE_TIER_DISK, "medium": "NVME"}, Tier.DISK),
        ({"tier": pb.KV_CACHE_TIER_EXTERNAL}, None),
        ({"tier": 9}, None),
        ({"tier": pb.KV_CACHE_TIER_UNSPECIFIED, "medium": "CPU"}, Tier.HOST),
        ({"medium": "CPU_PINNED"}, Tier.HOST),
        ({"medium": "elsewhere"}, None),
        ({"locality": pb.KV_CACHE_LOCALITY_UNSPECIFIED}, Tier.DEVICE),
        ({"locality": pb.KV_CACHE_LOCALITY_LOCAL}, Tier.DEVICE),
        ({"locality": pb.KV_CACHE_LOCALITY_REMOTE}, None),
        ({"ownership": "agent"}, None),
    ],
)
def test_where_blocks_lie(place: dict[str, Any], tier: Tier | None) -> None:
    for event in (stored(block(1, 1, 2), **place), removed(1, **place)):
        batch = read(event)
        assert [found.tier for found in batch.events] == ([] if tier is None else [tier])  # type: ignore[union-attr]
        assert batch.ignored == (tier is None)
        assert not batch.malformed


@pytest.mark.parametrize(("level", "tier"), [(0, Tier.DEVICE), (1, Tier.HOST), (2, Tier.DISK)])
def test_older_servicers_number_the_tiers(level: int, tier: Tier) -> None:
    assert one(stored(block(1, 1, 2, cache_level=level))).tier is tier
    assert one(removed(1, cache_level=level)).tier is tier


@pytest.mark.parametrize("level", [3, 4])
def test_levels_that_are_not_the_engines_own(level: int) -> None:
    assert read(stored(block(1, 1, 2, cache_level=level)), removed(1, cache_level=level)).ignored == 2


def test_k9_adapter_and_salt_are_the_namespace() -> None:
    assert one(stored(block(1, 1, 2), lora_name="a", cache_salt="s")).namespace == namespace("a", "s")
    assert one(stored(block(1, 1, 2, lora_id=3))).namespace == namespace("lora_id=3", None)
    assert one(stored(block(1, 1, 2))).namespace == ""


def test_extra_keys_read_as_in_msgpack() -> None:
    keys = [
        pb.KvBlockExtraKey(text="adapter"),
        pb.KvBlockExtraKey(multimodal=pb.KvMultimodalKey(identifier="image", offset=-3)),
        pb.KvBlockExtraKey(blob=b"digest"),
        pb.KvBlockExtraKey(number=5),
        pb.KvBlockExtraKey(text="salt"),
    ]
    relayed = one(stored(block(1, 1, 2, extra_keys=keys), block(2, 3, 4, extra_keys=keys[:1]), lora_name="adapter"))
    payload = msgspec.msgpack.encode(
        [
            1.5,
            [
                {
                    "type": "BlockStored",
                    "block_hashes": [1, 2],
                    "parent_block_hash": None,
                    "token_ids": [1, 2, 3, 4],
                    "block_size": 2,
                    "lora_name": "adapter",
                    "extra_keys": [["adapter", ["image", -3], b"digest", 5, "salt"], ["adapter"]],
                }
            ],
        ]
    )
    assert [relayed] == wire.decode(payload).events
    assert relayed.namespace == namespace("adapter", "salt")
    assert relayed.extras is not None


def test_groups_and_kinds() -> None:
    run = one(stored(block(1, 1, 2), group_idx=0, kv_cache_spec_kind="mamba"))
    assert (run.group, run.kind) == (0, "mamba")
    assert one(removed(1, group_idx=2)).group == 2
    assert one(removed(1)) == Removed([1])


def test_clears() -> None:
    assert one(cleared()) == Cleared()
    assert read(cleared(ownership="agent")).ignored == 1


def test_what_is_wrong_costs_itself() -> None:
    batch = read(
        stored(block(1, 1, 2, 3)),
        stored(block(1, size=0)),
        stored(block(1, 1, 2), parent_block_hash=1),
        pb.KvCacheEvent(event_id=3),
        stored(),
        removed(5),
    )
    assert batch.events == [Removed([5])]
    assert batch.malformed == 3
    assert batch.ignored == 1


def test_a_snapshot_begins_with_a_clear_like_any_batch() -> None:
    chunk = pb.KvSnapshotChunk(index=0, count=1, blocks=1, unknown_before=4)
    batch = read(cleared(), stored(block(1, 1, 2)), snapshot=chunk, dp_rank=3, timestamp=2.5)
    assert [type(event) for event in batch.events] == [Cleared, Stored]
    assert (batch.rank, batch.timestamp) == (3, 2.5)


def test_what_is_no_batch() -> None:
    with pytest.raises(ValueError, match="not a KvEventBatch"):
        decode(b"\xff\xff\xff")
