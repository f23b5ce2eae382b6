"""Batches of `SubscribeKvEvents` into `KvBatch`, by the rules for the msgpack events that they were made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from google.protobuf.message import DecodeError
from smg_grpc_proto.generated import common_pb2 as pb

from enginehouse.domain.kv import KvBatch
from enginehouse.wire.kv_events import batch_of
from enginehouse.wire.kv_fields import EVENTS_LIMIT

_TIER_MEDIA = {
    pb.KV_CACHE_TIER_DEVICE: "GPU",
    pb.KV_CACHE_TIER_HOST: "CPU",
    pb.KV_CACHE_TIER_DISK: "DISK",
    pb.KV_CACHE_TIER_EXTERNAL: "EXTERNAL",
}
_LEVEL_MEDIA = {0: "GPU", 1: "CPU", 2: "DISK", 3: "EXTERNAL"}
_LOCALITIES = {pb.KV_CACHE_LOCALITY_UNSPECIFIED: None, pb.KV_CACHE_LOCALITY_LOCAL: "LOCAL"}


def decode(message: bytes) -> KvBatch:
    """Read one batch. Raises ValueError."""
    try:
        batch = pb.KvEventBatch.FromString(message)
    except DecodeError:
        raise ValueError("not a KvEventBatch") from None
    if len(batch.events) > EVENTS_LIMIT:
        raise ValueError(f"more than {EVENTS_LIMIT} events")
    return batch_of(
        (event for one in batch.events for event in _events(one)),
        timestamp=batch.timestamp or None,
        rank=batch.dp_rank if batch.HasField("dp_rank") else None,
    )


def _events(event: Any) -> Iterator[dict[str, object]]:
    """What one event would have been in msgpack. A store becomes several where its blocks are not alike."""
    kind = event.WhichOneof("data")
    if kind == "stored":
        stored = event.stored
        parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
        for (size, _), alike in groupby(stored.blocks, key=lambda block: (block.block_size, block.cache_level)):
            blocks = list(alike)
            yield _stored(stored, blocks, size, parent)
            parent = blocks[-1].block_hash
    elif kind == "removed":
        removed = event.removed
        level = removed.cache_level if removed.HasField("cache_level") else None
        yield {"type": "BlockRemoved", "block_hashes": removed.block_hashes[:], **_place(removed, level)}
    elif kind == "cleared":
        yield {"type": "AllBlocksCleared", "ownership": event.cleared.ownership}
    else:
        yield {"type": ""}  # of a later release: counted as ignored


def _stored(stored: Any, blocks: Sequence[Any], size: int, parent: int | None) -> dict[str, object]:
    first = blocks[0]
    tokens: list[int] = []
    for block in blocks:
        tokens += block.token_ids
    return {
        "type": "BlockStored",
        "block_hashes": [block.block_hash for block in blocks],
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "lora_id": first.lora_id,
        "lora_name": stored.lora_name or None,
        "cache_salt": stored.cache_salt or None,
        "extra_keys": [[_key(key) for key in block.extra_keys] for block in blocks],
        "kv_cache_spec_kind": stored.kv_cache_spec_kind or None,
        **_place(stored, first.cache_level if first.HasField("cache_level") else None),
    }


def _place(event: Any, level: int | None) -> dict[str, object]:
    """Tier, group, and whose: a store and its removal say these alike."""
    medium = event.medium or None
    if event.tier:
        medium = _TIER_MEDIA.get(event.tier, "")
    elif medium is None and level is not None:
        medium = _LEVEL_MEDIA.get(level, "")
    return {
        "medium": medium,
        "group_idx": event.group_idx if event.HasField("group_idx") else None,
        "locality": _LOCALITIES.get(event.locality, "REMOTE"),
        "ownership": event.ownership or None,
    }


def _key(key: Any) -> object:
    kind = key.WhichOneof("key")
    if kind == "multimodal":
        return [key.multimodal.identifier, key.multimodal.offset]
    return getattr(key, kind) if kind is not None else None
