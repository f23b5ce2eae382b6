"""One rank's events over ZMQ: the live stream, whether it is connected, and replays on demand."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Sequence
from itertools import count

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from enginehouse.adapters.kv_events.chores import Chores
from enginehouse.adapters.kv_events.replay import Replay
from enginehouse.adapters.kv_events.rota import Rota, weight
from enginehouse.adapters.kv_events.settings import KvEventSettings
from enginehouse.adapters.kv_events.sockets import END, NUMBER_BYTES, Context, has_more, new_socket, receive
from enginehouse.domain.engine import KvEventSource
from enginehouse.domain.kv import KvBatch
from enginehouse.ports import KvSink
from enginehouse.wire.kv_events import decode

_log = structlog.get_logger("enginehouse.kv_events")
_names = count()
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_WANTED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_CLOSED
    | _HANDSHAKE_FAILED
)
_SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_FIRST_WAIT = 1.0
_LONGEST_WAIT = 30.0
"""Seconds until sockets that could not be had are tried for again; doubled each time."""


class ZmqSubscription:
    """Implements ports.KvSubscription for the one rank of its source. Its sockets are opened, and closed, when it is
    their turn."""

    def __init__(
        self,
        context: Context,
        rota: Rota,
        chores: Chores,
        source: KvEventSource,
        sink: KvSink,
        settings: KvEventSettings,
        on_close: Callable[[ZmqSubscription], None],
    ) -> None:
        self.can_replay = source.replay_endpoint is not None
        self.ignored = 0
        """Messages that were no batches."""
        self._context = context
        self._rota = rota
        self._chores = chores
        self._source = source
        self._sink = sink
        self._settings = settings
        self._on_close = on_close
        self._replay: Replay | None = None
        self._connected = False
        self._said: str | None = None
        """Why it is not connected, as the sink was told."""
        self._retries = 0
        """Tries that ZMQ has announced since the last of which we know how it went."""
        self._retried = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._sockets: tuple[zmq.Socket[bytes], zmq.Socket[bytes]] | None = None
        """For live batches, and to hear of its connection."""
        self._wait = _FIRST_WAIT
        chores.add(self._open)

    def decode(self, payload: bytes) -> KvBatch:
        return decode(payload)

    def replay(self, rank: int, start: int) -> None:
        """One replay at a time: a new one takes the place of one that is under way."""
        if self._closed:
            return
        self._end_replay()
        endpoint = self._source.replay_endpoint
        if endpoint is None:
            self._rota.loop.call_soon(self._on_replay_end, False)
            return
        socket = None
        try:
            socket = new_socket(self._context, zmq.DEALER, endpoint, self._settings)
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            if socket is not None:
                socket.close()
            _log.warning("replay_endpoint_unusable", endpoint=endpoint, reason=error.strerror)
            self._rota.loop.call_soon(self._on_replay_end, False)
            return
        self._replay = Replay(
            self._rota, socket, start, self._settings.replay_idle_limit, self._on_replayed, self._on_replay_end
        )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._end_replay()
        if self._timer is not None:
            self._timer.cancel()
        if self._sockets is not None:
            self._chores.add(self._let_go)
        self._on_close(self)

    def _open(self) -> None:
        if self._closed:
            return
        endpoint = self._source.endpoint
        opened: list[zmq.Socket[bytes]] = []
        try:
            opened.append(live := new_socket(self._context, zmq.SUB, endpoint, self._settings))
            live.setsockopt(zmq.SUBSCRIBE, self._source.topic.encode())
            # Before connecting, or what it has to say may be missed.
            opened.append(monitor := live.get_monitor_socket(_WANTED, f"inproc://kv-events-{next(_names)}"))
            live.connect(endpoint)
        except zmq.ZMQError as error:
            _close(opened)
            self._not_opened(error)
            return
        self._sockets = live, monitor
        self._rota.watch(self, live, monitor)
        self._expect_retry(_longest_try(self._settings))

    def _not_opened(self, error: zmq.ZMQError) -> None:
        reason = f"{self._source.endpoint} cannot be subscribed to: {error.strerror}"
        if error.errno in _SHORTAGE:
            self._timer = self._rota.loop.call_later(self._wait, self._chores.add, self._open)
            self._wait = min(_LONGEST_WAIT, 2 * self._wait)
            self._lost(reason)
        else:
            self._sink.on_lost(reason, permanent=True)

    def _let_go(self) -> None:
        assert self._sockets is not None
        self._rota.leave(self, *self._sockets)
        _close(self._sockets)

    def read(self, most: int) -> int:
        """Live batches, and what the monitor says, in the order in which they happened as well as can be known.

        Before there is a connection nothing comes without the monitor's word; when there is one, batches still come
        that it brought before it broke.
        """
        if not self._connected:
            self._hear_monitor()
        took = 0
        while took < most and not self._closed:
            assert self._sockets is not None
            live, _ = self._sockets
            if not has_more(live):
                self._hear_monitor()
                break
            frames = receive(live)
            took += weight(frames[-1])
            self._take(frames)
        return took

    def _take(self, frames: list[bytes]) -> None:
        if len(frames) == 3 and len(frames[1]) == NUMBER_BYTES:
            number = int.from_bytes(frames[1], "big")
            if number != END:
                self._sink.on_batch(self._source.rank, number, frames[2])
                return
        if not self.ignored:
            _log.warning("kv_event_frames_ignored", endpoint=self._source.endpoint, frames=len(frames))
        self.ignored += 1

    def _hear_monitor(self) -> None:
        assert self._sockets is not None
        _, monitor = self._sockets
        while not self._closed and has_more(monitor):
            self._connection_changed(parse_monitor_message(receive(monitor))["event"])

    def _connection_changed(self, event: int) -> None:
        endpoint = self._source.endpoint
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._connected, self._said, self._retries = True, None, 0
            self._sink.on_connected()
        elif event == zmq.EVENT_DISCONNECTED:
            broke, self._connected, self._retries = self._connected, False, 0
            self._expect_retry(self._settings.reconnect_limit)
            self._lost(f"the connection to {endpoint} broke" if broke else self._no_publisher())
        elif event == zmq.EVENT_CONNECT_RETRIED or event == zmq.EVENT_CLOSED:
            # A retry is announced before it is made, so the first says nothing yet.
            if event == zmq.EVENT_CONNECT_RETRIED:
                self._retried = True
                self._retries += 1
            if event == zmq.EVENT_CLOSED or self._retries > 1:
                self._lost(
                    f"{endpoint} cannot be reached: the engine publishes no events, or at another port, or the network"
                    " forbids it"
                )
        else:
            self._retries = 0
            self._lost(self._no_publisher())

    def _no_publisher(self) -> str:
        return f"what listens at {self._source.endpoint} does not answer like a ZMQ publisher: is it the right port?"

    def _lost(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            self._sink.on_lost(reason)

    def _expect_retry(self, within: float) -> None:
        """ZMQ gives up for good, without a word, after a breach of its protocol: then we begin anew."""
        if self._timer is not None:
            self._timer.cancel()
        self._retried = False
        self._timer = self._rota.loop.call_later(within, self._look)

    def _look(self) -> None:
        self._hear_monitor()
        if self._connected or self._closed:
            return
        if not self._retried:
            endpoint = self._source.endpoint
            assert self._sockets is not None
            live, _ = self._sockets
            with contextlib.suppress(zmq.ZMQError):  # it may have forgotten the endpoint already
                live.disconnect(endpoint)
            live.connect(endpoint)
            self._rota.wake(self)
            self._lost(self._no_publisher())
        if not self._closed:
            self._expect_retry(_longest_try(self._settings))

    def _on_replayed(self, number: int, payload: bytes) -> None:
        self._sink.on_replayed(self._source.rank, number, payload)

    def _on_replay_end(self, complete: bool) -> None:
        self._replay = None
        if not self._closed:
            self._sink.on_replay_end(self._source.rank, complete=complete)

    def _end_replay(self) -> None:
        replay, self._replay = self._replay, None
        if replay is not None:
            replay.close()


def _close(sockets: Sequence[zmq.Socket[bytes]]) -> None:
    for socket in sockets:
        socket.disable_monitor()
        socket.close()


def _longest_try(settings: KvEventSettings) -> float:
    """Seconds: connecting, the handshake, and the wait before the next."""
    return 2 * settings.connect_timeout + settings.reconnect_limit
