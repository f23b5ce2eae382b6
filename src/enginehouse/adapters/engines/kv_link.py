"""KV events over the engine's own link: `SubscribeKvEvents`, all ranks in one stream, from now on.

There is no history and no replay here. The servicer closes gaps itself; where it cannot, it ends the stream.
"""

from __future__ import annotations

import asyncio
import random

import structlog
from google.protobuf.message import DecodeError
from smg_grpc_proto.generated import common_pb2 as pb

from enginehouse.adapters.engines.failures import short
from enginehouse.adapters.engines.kv_batches import decode
from enginehouse.domain.kv import KvBatch
from enginehouse.domain.link import GrpcStatus, LinkError, LinkErrorKind
from enginehouse.ports import Call, KvSink, Link

_log = structlog.get_logger("enginehouse.kv_events")

# Load records are of no use to us, but a server may keep its header fields back until it has a message.
_FROM_NOW = pb.SubscribeKvEventsRequest(load_records_before_first_batch=True).SerializeToString()
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
"""Seconds between two tries; doubled each time, until a message came."""
_WITHOUT_EVENTS = 60.0
"""Seconds until an engine that has no events is asked whether it has some by now: it may be another process."""


class LinkKvSubscription:
    """Implements ports.KvSubscription, and ports.MessageSink towards the link.

    rank: whose events they are where a batch does not say.
    """

    can_replay = False

    def __init__(self, link: Link, path: str, sink: KvSink, rank: int) -> None:
        self._link = link
        self._path = path
        self._sink = sink
        self._rank = rank
        self._loop = asyncio.get_running_loop()
        self._connected = False
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._call: Call | None = None
        self._open()

    def decode(self, payload: bytes) -> KvBatch:
        return decode(payload)

    def replay(self, rank: int, start: int) -> None:
        """There is none; it ends as one that nobody answers."""
        self._loop.call_soon(self._no_replay, rank)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._reset()

    def on_message(self, message: bytes) -> None:
        if self._closed:
            return
        try:
            batch = pb.KvEventBatch.FromString(message)
        except DecodeError:
            self._reset()
            self._lost("the engine's KV events cannot be read")
            return
        self._failures = 0
        if batch.load.load_only:
            return
        self._sink.on_batch(batch.dp_rank if batch.HasField("dp_rank") else self._rank, batch.sequence_number, message)

    def on_end(self, error: LinkError | None) -> None:
        self._call = None
        if self._closed:
            return
        if error is None:
            self._lost("the engine ended its stream of KV events")
        elif error.status is GrpcStatus.UNIMPLEMENTED:
            said = f" ({short(error.text)})" if error.text else ""
            self._again(_WITHOUT_EVENTS)
            self._has_none(
                f"the engine publishes no KV events{said}: start it with --kv-events-config"
                """ '{"enable_kv_cache_events": true, "publisher": "zmq"}'"""
            )
        elif error.kind is LinkErrorKind.CLOSED:
            self._has_none("the link to the engine was closed")
        else:
            status = error.status.name if error.status is not None else str(error.kind)
            self._lost(f"the stream of KV events broke: {status}: {short(error.text)}")

    def _open(self) -> None:
        self._timer = None
        self._call = self._link.stream(self._path, _FROM_NOW, self, on_answered=self._answered)

    def _answered(self) -> None:
        """The header fields come when the engine has subscribed us; the first batch perhaps hours later."""
        if not self._closed and not self._connected:
            self._connected = True
            self._sink.on_connected()

    def _lost(self, reason: str) -> None:
        self._again(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 10)))
        self._failures += 1
        self._connected = False
        self._sink.on_lost(reason)

    def _has_none(self, reason: str) -> None:
        self._connected = False
        self._sink.on_lost(reason, permanent=True)

    def _again(self, pause: float) -> None:
        # Not all frontends at once.
        self._timer = self._loop.call_later(pause * random.uniform(0.5, 1.0), self._open)

    def _no_replay(self, rank: int) -> None:
        if not self._closed:
            self._sink.on_replay_end(rank, complete=False)

    def _reset(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
