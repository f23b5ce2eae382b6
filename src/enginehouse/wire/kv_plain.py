"""Reads batches of KV events as engines write nearly all of them, fast: one typed call, then little for each event.

What it cannot read it does not judge: a batch goes to `kv_events` whole, an event that is only unusual (an adapter, a
salt, an image, another's block) to `kv_fields`. Both say the same of whatever is read here.
"""

from __future__ import annotations

from array import array
from math import isfinite
from typing import ClassVar

import msgspec

from enginehouse.domain.kv import Cleared, KvBatch, KvEvent, Removed, Stored
from enginehouse.wire.kv_fields import BLOCK_SIZE_LIMIT, EVENTS_LIMIT, MASK, TIERS, WRONG_SHAPE, event_of

# Fields in the order in which arrays have them. What they may hold is what plain events hold: anything else ends the
# call with a ValueError, and nothing is lost but its time. They hold no cycles, so the collector need not know them.


class _Stored(msgspec.Struct, gc=False):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: object = None
    medium: str | None = None
    lora_name: object = None
    extra_keys: object = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: object = None
    locality: object = None
    ownership: object = None


class _StoredMap(_Stored, gc=False, tag_field="type", tag="BlockStored"):
    cache_salt: object = None


class _StoredArray(_Stored, gc=False, array_like=True, tag="BlockStored"):
    cache_salt: ClassVar[None] = None


class _Removed(msgspec.Struct, gc=False):
    block_hashes: list[int]
    medium: str | None = None
    group_idx: int | None = None
    locality: object = None
    ownership: object = None


class _RemovedMap(_Removed, gc=False, tag_field="type", tag="BlockRemoved"):
    pass


class _RemovedArray(_Removed, gc=False, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedMap(msgspec.Struct, gc=False, tag_field="type", tag="AllBlocksCleared", forbid_unknown_fields=True):
    """With anything in it, it may be another's."""


class _ClearedArray(msgspec.Struct, gc=False, array_like=True, tag="AllBlocksCleared", forbid_unknown_fields=True):
    """As above."""


class _Maps(msgspec.Struct, gc=False, array_like=True):
    timestamp: object
    events: list[_StoredMap | _RemovedMap | _ClearedMap]
    rank: object = None


class _Arrays(msgspec.Struct, gc=False, array_like=True):
    timestamp: object
    events: list[_StoredArray | _RemovedArray | _ClearedArray]
    rank: object = None


_LOCAL = (None, "LOCAL")
_decode_maps = msgspec.msgpack.Decoder(_Maps).decode
_decode_arrays = msgspec.msgpack.Decoder(_Arrays).decode


def decode(payload: bytes) -> KvBatch:
    """Read one batch. Raises ValueError, or RecursionError, when it must be read in another way."""
    batch: _Maps | _Arrays
    try:
        batch = _decode_maps(payload)
    except ValueError:
        batch = _decode_arrays(payload)
    if len(batch.events) > EVENTS_LIMIT:
        raise ValueError
    read: list[KvEvent] = []
    malformed = ignored = merged = 0
    last: Removed | None = None
    gone: list[int] = []
    """Of `last`."""
    one: KvEvent | None
    for event in batch.events:
        if isinstance(event, _Removed):
            hashes, tier = event.block_hashes, TIERS.get(event.medium)
            if tier is None or not hashes or event.ownership or event.locality not in _LOCAL:
                ignored += 1
            elif last is not None and last.tier is tier and last.group == event.group_idx:
                gone += hashes
                merged += 1
            else:
                gone = hashes
                last = Removed(gone, tier, event.group_idx)
                read.append(last)
            continue
        if isinstance(event, _Stored):
            try:
                one = _plain(event) or event_of({"type": "BlockStored", **msgspec.structs.asdict(event)})
            except WRONG_SHAPE:
                malformed += 1
                continue
        else:
            one = Cleared()
        if one is None:
            ignored += 1
        else:
            last = None
            read.append(one)
    for removed in read:
        if isinstance(removed, Removed) and min(removed.hashes) < 0:
            removed.hashes = [handle & MASK for handle in removed.hashes]
    return KvBatch(read, time_of(batch.timestamp), rank_of(batch.rank), malformed, ignored, merged)


def _plain(event: _StoredMap | _StoredArray) -> Stored | None:
    """None: it is not plain. Raises one of WRONG_SHAPE for what is malformed, plain or not."""
    hashes, parent, size, tier = event.block_hashes, event.parent_block_hash, event.block_size, TIERS.get(event.medium)
    if (
        not hashes
        or tier is None
        or event.locality not in _LOCAL
        or event.lora_id is not None
        or event.lora_name is not None
        or event.cache_salt is not None
        or event.ownership is not None
        or (event.extra_keys is not None and event.extra_keys != [None] * len(hashes))
    ):
        return None
    if min(hashes) < 0:
        hashes = [one & MASK for one in hashes]
    if parent is not None and parent < 0:
        parent &= MASK
    if len({parent, *hashes}) != len(hashes) + 1:
        raise ValueError  # a block cannot come before itself
    if not 1 <= size <= BLOCK_SIZE_LIMIT or len(event.token_ids) != len(hashes) * size:
        raise ValueError
    # By position and not by name: half the time.
    tokens = array("I", event.token_ids)
    return Stored(hashes, parent, tokens, size, tier, False, "", None, event.group_idx, event.kv_cache_spec_kind)


def time_of(timestamp: object) -> float | None:
    """Unix seconds; None: it is none."""
    if isinstance(timestamp, bool) or not isinstance(timestamp, float | int) or not isfinite(timestamp):
        return None
    return float(timestamp)


def rank_of(rank: object) -> int | None:
    """A rank's number; None: it is none."""
    return rank if type(rank) is int and rank >= 0 else None
