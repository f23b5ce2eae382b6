"""Reads a batch of KV-cache events, as vLLM and SGLang publish it in msgpack, into `KvBatch`.

Every release that an operator may run is taken: events as tagged maps or as positional arrays, told apart one by one.
What is unknown is ignored, what is malformed costs the event that it stands in. Which batches are missing is for
`core.kv.cursor` to say. Removals beside each other become one, as vLLM tells each removed block in an event of its own.

Hot path: the engines of a fleet store some ten thousand blocks a second, and remove as many. What engines send nearly
always is read by `kv_plain`; what is done here is for the rest. Nothing is done in Python for each token.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from enginehouse.domain.kv import KvBatch, KvEvent, Removed
from enginehouse.wire import kv_plain
from enginehouse.wire.kv_fields import EVENTS_LIMIT, WRONG_SHAPE, event_of

_COUNT_BYTES = {0xDC: 2, 0xDD: 4}
"""By the first byte of an array of 16 elements or more."""
_decode = msgspec.msgpack.Decoder().decode
_decode_pieces = msgspec.msgpack.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw]).decode
_decode_list = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def decode(payload: bytes) -> KvBatch:
    """Read one batch. Raises ValueError, with a reason that holds nothing of its content, when nothing can be read."""
    try:
        try:
            return kv_plain.decode(payload)
        except (ValueError, RecursionError):
            pass  # what is wrong with it, if anything is, comes out below
        if _events_in(payload) > EVENTS_LIMIT:
            raise ValueError(f"more than {EVENTS_LIMIT} events")
        try:
            batch: object = _decode(payload)
        except (ValueError, RecursionError):
            batch = _by_pieces(payload)
        return _batch(batch)
    except RecursionError:
        raise ValueError("not a batch of KV events: nested too deeply") from None
    except ValueError as error:
        # msgspec names types and positions, never values.
        raise ValueError(f"not a batch of KV events: {error}") from None


def _events_in(payload: bytes) -> int:
    """How many there are, before any is read; 0 for what is no batch."""
    try:
        batch = _decode_pieces(payload)
    except (ValueError, RecursionError):
        return 0
    events = batch.get("events") if isinstance(batch, dict) else batch[1] if len(batch) > 1 else None
    if events is None:
        return 0
    head = memoryview(events)
    return int.from_bytes(head[1 : 1 + _COUNT_BYTES.get(head[0], 0)], "big")


def _by_pieces(payload: bytes) -> object:
    """Read the parts of a batch one by one: a text that is no text, say, in one event must not cost the others."""
    batch = _decode_pieces(payload)
    parts = enumerate(batch) if isinstance(batch, list) else batch.items()
    pieces = {
        name: [_piece(event) for event in _decode_list(part)] if name in (1, "events") else _piece(part)
        for name, part in parts
    }
    return list(pieces.values()) if isinstance(batch, list) else pieces


def _piece(raw: msgspec.Raw) -> object:
    """What a piece holds. One that cannot be decoded stays raw, which below is no event, time or rank."""
    try:
        return _decode(raw)
    except (ValueError, RecursionError):
        return raw


def _batch(batch: object) -> KvBatch:
    if isinstance(batch, list) and len(batch) >= 2:
        timestamp, events, rank = batch[0], batch[1], batch[2] if len(batch) > 2 else None
    elif isinstance(batch, dict):
        timestamp, events = batch.get("ts"), batch.get("events")
        rank = batch.get("data_parallel_rank", batch.get("attn_dp_rank", batch.get("rank")))
    else:
        raise ValueError("neither [time, events, rank] nor a map")
    if not isinstance(events, list):
        raise ValueError("it has no list of events")
    return batch_of(
        events,
        timestamp=kv_plain.time_of(timestamp),
        rank=kv_plain.rank_of(rank),
    )


def batch_of(events: Iterable[object], *, timestamp: float | None, rank: int | None) -> KvBatch:
    """A batch of events in either encoding, decoded already: for transports that are not msgpack, so that what an
    event means is said once."""
    read: list[KvEvent] = []
    malformed = ignored = merged = 0
    gone: list[int] = []
    """Of the last event, when that is a removal."""
    for event in events:
        try:
            one = event_of(event)
        except WRONG_SHAPE:
            malformed += 1
            continue
        if one is None:
            ignored += 1
            continue
        last = read[-1] if read else None
        if isinstance(one, Removed):
            if isinstance(last, Removed) and last.tier is one.tier and last.group == one.group:
                gone += one.hashes
                merged += 1
                continue
            one.hashes = gone = [*one.hashes]
        read.append(one)
    return KvBatch(read, timestamp, rank, malformed, ignored, merged)
