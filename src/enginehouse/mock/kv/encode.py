"""News of a cache as bytes: vLLM's and SGLang's dialects, tagged maps as they are now and arrays as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from enginehouse.domain.engine import ProtocolName
from enginehouse.mock.kv.news import Cleared, News, Removed, Stored
from enginehouse.mock.settings import MockSettings

Event = dict[str, Any] | list[Any]
"""One event, ready for msgpack."""
Encode = Callable[[float, Sequence[News], int, bool], bytes]
"""(Unix seconds, news, rank, with a malformed event) -> payload of a batch."""

GROUP, KIND, MEDIUM = 0, "full_attention", "GPU"
GARBAGE = b"\xc1 no msgpack begins like this"

_pack = msgspec.msgpack.Encoder().encode


def unsigned(key: bytes) -> int:
    """vLLM's hash: the last 8 bytes."""
    return int.from_bytes(key[-8:], "big")


def signed(key: bytes) -> int:
    """SGLang's hash: the first 8 bytes, with a sign. The gRPC relay of vLLM signs too, but the last 8."""
    return int.from_bytes(key[:8], "big", signed=True)


def encoder(settings: MockSettings) -> Encode:
    """How an engine of these settings writes a batch."""
    dialect = _sglang if settings.protocol is ProtocolName.SGLANG else _vllm
    size, old = settings.block_size, settings.kv_events_old

    def encode(timestamp: float, news: Sequence[News], rank: int, malformed: bool) -> bytes:
        events: list[Event] = [{"type": "BlockStored", "block_hashes": "none"}] if malformed else []
        for item in news:
            events += dialect(item, size)
        if old:
            events = [list(event.values()) if isinstance(event, dict) else event for event in events]
        return _pack([timestamp, events, rank])

    return encode


def _vllm(item: News, block_size: int) -> list[dict[str, Any]]:
    if isinstance(item, Cleared):
        return [{"type": "AllBlocksCleared"}]
    if isinstance(item, Removed):
        return [
            {"type": "BlockRemoved", "block_hashes": [unsigned(key)], "medium": MEDIUM, "group_idx": GROUP}
            for key in item.keys
        ]
    return [
        {
            **_stored(item, block_size, unsigned),
            "lora_name": item.lora or None,
            "extra_keys": [[item.lora] if item.lora else None] * len(item.keys),
            "group_idx": GROUP,
            "kv_cache_spec_kind": KIND,
        }
    ]


def _sglang(item: News, block_size: int) -> list[dict[str, Any]]:
    if isinstance(item, Cleared):
        return [{"type": "AllBlocksCleared"}]
    if isinstance(item, Removed):
        return [{"type": "BlockRemoved", "block_hashes": [signed(key) for key in item.keys], "medium": MEDIUM}]
    stored = _stored(item, block_size, signed)
    return [{**stored, "lora_name": item.lora} if item.lora else stored]


def _stored(item: Stored, block_size: int, name: Callable[[bytes], int]) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [name(key) for key in item.keys],
        "parent_block_hash": None if item.parent is None else name(item.parent),
        "token_ids": list(item.token_ids),
        "block_size": block_size,
        "lora_id": None,
        "medium": MEDIUM,
    }
