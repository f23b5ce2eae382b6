"""`SubscribeKvEvents` as vLLM's servicer relays it: live only, all ranks in one stream, the engine's load beside."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import grpc
from smg_grpc_proto.generated import common_pb2 as pb

from enginehouse.mock.engine import Engine
from enginehouse.mock.fronts.rpc import Context, Refused
from enginehouse.mock.kv.encode import GROUP, KIND, MEDIUM
from enginehouse.mock.kv.news import Cleared, News, Removed
from enginehouse.mock.kv.publisher import Batch

_HEARTBEAT = 1.0
"""Seconds of silence after which the load is told alone."""


async def subscribe(engine: Engine, data: bytes, context: Context) -> None:
    """One subscriber, until it leaves or batches were lost for good."""
    request = pb.SubscribeKvEventsRequest.FromString(data)
    if engine.kv is None:
        raise Refused(grpc.StatusCode.UNIMPLEMENTED, "KV cache events are not enabled on this engine")
    if request.start_sequence_number:
        raise Refused(grpc.StatusCode.OUT_OF_RANGE, "replay is not supported: start_sequence_number must be 0")
    queue: asyncio.Queue[tuple[int, Batch]] = asyncio.Queue()

    def listen(rank: int, batch: Batch) -> None:
        queue.put_nowait((rank, batch))

    engine.kv.listeners.add(listen)
    try:
        # Headers tell the subscriber that it is subscribed.
        await context.send_initial_metadata(())
        await _relay(engine, queue, context, load_first=request.load_records_before_first_batch)
    finally:
        engine.kv.listeners.discard(listen)


async def _relay(
    engine: Engine, queue: asyncio.Queue[tuple[int, Batch]], context: Context, *, load_first: bool
) -> None:
    last: dict[int, int] = {}
    ids, samples = itertools.count(1), itertools.count(1)
    message: Any = None
    if load_first:
        message = pb.KvEventBatch(dp_rank=0)
        message.load.CopyFrom(_load(engine, 0, next(samples), alone=True))
        await context.write(message.SerializeToString())
    while True:
        try:
            async with asyncio.timeout(None if message is None else _HEARTBEAT):
                rank, batch = await queue.get()
        except TimeoutError:
            alone = True
            del message.events[:]
        else:
            alone = False
            if batch.number != last.get(rank, batch.number - 1) + 1:
                raise Refused(grpc.StatusCode.DATA_LOSS, "KV events were lost: clear the view of this engine")
            last[rank] = batch.number
            message = pb.KvEventBatch(sequence_number=batch.number, timestamp=batch.timestamp, dp_rank=rank)
            message.events.extend(_events(batch, engine.settings.block_size, ids))
        message.load.CopyFrom(_load(engine, message.dp_rank, next(samples), alone=alone))
        await context.write(message.SerializeToString())


def _events(batch: Batch, block_size: int, ids: Iterator[int]) -> Iterator[Any]:
    for item in batch.news:
        if isinstance(item, Removed):
            for key in item.keys:
                removed = pb.KvBlocksRemoved(block_hashes=[_hash(key)], **_place())
                yield pb.KvCacheEvent(event_id=next(ids), removed=removed)
        else:
            yield _event(item, block_size, next(ids))


def _event(item: News, block_size: int, event_id: int) -> Any:
    if isinstance(item, Cleared):
        return pb.KvCacheEvent(event_id=event_id, cleared=pb.KvCacheCleared())
    assert not isinstance(item, Removed)
    stored = pb.KvBlocksStored(kv_cache_spec_kind=KIND, **_place())
    if item.parent is not None:
        stored.parent_block_hash = _hash(item.parent)
    for position, key in enumerate(item.keys):
        ids = item.token_ids[position * block_size : (position + 1) * block_size]
        stored.blocks.append(pb.KvBlock(block_hash=_hash(key), token_ids=ids, block_size=block_size, cache_level=0))
    return pb.KvCacheEvent(event_id=event_id, stored=stored)


def _place() -> dict[str, Any]:
    return {
        "tier": pb.KV_CACHE_TIER_DEVICE,
        "medium": MEDIUM,
        "group_idx": GROUP,
        "locality": pb.KV_CACHE_LOCALITY_LOCAL,
    }


def _hash(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big", signed=True)


def _load(engine: Engine, rank: int, sample: int, *, alone: bool) -> Any:
    settings, one = engine.settings, engine.simulator.ranks[rank]
    return pb.EngineLoad(
        running_requests=one.running,
        waiting_requests=len(one.waiting),
        token_usage=min(1.0, one.held_tokens() / max(1, settings.kv_blocks * settings.block_size)),
        max_running_requests=settings.max_running,
        sample=sample,
        load_only=alone,
    )
