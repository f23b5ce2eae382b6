"""Which connection a call goes on, and when another is opened: `ports.Link` over some HTTP/2 connections to one engine.

A connection is filled up to a number of calls before the next is opened, so that few reads bring many tokens. A call
waits only while there is no connection, or while every one is at the peer's limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from enginehouse.adapters.link.call import LinkCall
from enginehouse.adapters.link.connection import LinkConnection
from enginehouse.adapters.link.dial import dial
from enginehouse.adapters.link.settings import LinkSettings
from enginehouse.adapters.link.token import TokenFile
from enginehouse.adapters.link.unary import UnaryAnswer
from enginehouse.domain.engine import Target
from enginehouse.domain.link import LinkError, LinkErrorKind
from enginehouse.ports import Call, MessageSink
from enginehouse.wire.grpc_h2 import Connection
from enginehouse.wire.grpc_request import check_metadata
from enginehouse.wire.h2_frames import ErrorCode, code_name

_log = structlog.get_logger("enginehouse.link")
_CALM_LIMIT = 30.0


class Link:
    """Connections to one engine, and the calls that wait for one."""

    def __init__(
        self, target: Target, settings: LinkSettings, *, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._target = target
        self._settings = settings
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._connections: list[LinkConnection] = []
        """Those that take calls, or will."""
        self._leaving: set[LinkConnection] = set()
        """Those that finish what they have, or whose transport is closing."""
        self._waiting: dict[LinkCall, None] = {}
        self._dials: dict[LinkConnection, asyncio.Task[None]] = {}
        self._listeners: list[Callable[[LinkError], None]] = []
        self._closed = False
        self._not_before = 0.0
        self._calm = settings.calm_down
        self._wake: asyncio.TimerHandle | None = None
        self._token = TokenFile(settings.token_file) if settings.token_file is not None else None

    def stream(
        self,
        path: str,
        message: bytes,
        sink: MessageSink,
        *,
        metadata: Sequence[tuple[str, str]] = (),
        timeout: float | None = None,
        on_answered: Callable[[], None] | None = None,
    ) -> Call:
        """Start a server-streaming call (`ports.Link.stream`)."""
        check_metadata(metadata)
        if self._token is not None:
            metadata = (*self._token.metadata(self._loop.time()), *metadata)
        call = LinkCall(self._loop, path, message, sink, metadata, timeout, self._leave_queue, on_answered)
        if self._closed:
            error = LinkError(LinkErrorKind.CLOSED, "the link is closed", may_have_been_processed=False)
            self._loop.call_soon(call.end, error)
        elif len(message) > self._settings.send_limit:
            text = f"a request of {len(message)} bytes; the limit is {self._settings.send_limit}"
            error = LinkError(LinkErrorKind.TOO_LARGE, text, may_have_been_processed=False)
            self._loop.call_soon(call.end, error)
        else:
            connection = self._pick()
            if connection is None or self._waiting:
                self._waiting[call] = None
                self._grow()
            else:
                call.open_on(connection)
                connection.flush()
                if connection.machine.open_streams >= self._settings.streams_per_connection:
                    self._grow()
        return call

    async def unary(
        self, path: str, message: bytes, *, timeout: float, metadata: Sequence[tuple[str, str]] = ()
    ) -> bytes:
        """One message in, one out (`ports.Link.unary`)."""
        answer = UnaryAnswer(self._loop.create_future())
        answer.call = self.stream(path, message, answer, metadata=metadata, timeout=timeout)
        try:
            return await answer.future
        finally:
            answer.call.cancel()

    def on_lost(self, callback: Callable[[LinkError], None]) -> None:
        """Call back when a connection breaks or cannot be made."""
        self._listeners.append(callback)

    async def close(self) -> None:
        """End every connection; open calls end with CLOSED."""
        self._closed = True
        if self._wake is not None:
            self._wake.cancel()
        connections = [*self._connections, *self._leaving]
        for task in self._dials.values():
            task.cancel()
        self._fail_waiting(LinkErrorKind.CLOSED, "the link was closed")
        for connection in connections:
            connection.close(LinkErrorKind.CLOSED, "the link was closed")
        if self._dials:
            await asyncio.wait(self._dials.values())
        if connections:
            _, late = await asyncio.wait([one.gone for one in connections], timeout=self._settings.close_timeout)
            if late:
                for connection in connections:
                    connection.abort()
                await asyncio.wait(late)

    def connection_changed(self, connection: LinkConnection) -> None:
        """A connection became ready, is leaving, ended, or has room again."""
        machine = connection.machine
        if machine.failed is not None and not machine.ready:
            if not connection.connected:
                self._leaving.discard(connection)
            return  # it never took calls: the task that dials says why
        if machine.leaving and connection in self._connections:
            self._connections.remove(connection)
            self._leaving.add(connection)
        if machine.goaway is not None and machine.goaway[0] != ErrorCode.NO_ERROR:
            self._told_to_go(connection, *machine.goaway)
        if machine.failed is not None:
            orderly = machine.goaway is not None and not machine.cut
            if not orderly and machine.failed.kind is not LinkErrorKind.CLOSED:
                self._report(connection, machine.failed)
        elif machine.leaving and not machine.open_streams:
            connection.close(LinkErrorKind.CLOSED, "the peer left")
        if not connection.connected:
            self._leaving.discard(connection)
        self._dispatch()

    def _pick(self, *, overfill: bool = True) -> LinkConnection | None:
        """The first with room by our measure, else (with `overfill`) the emptiest with room by the peer's."""
        best: LinkConnection | None = None
        for connection in self._connections:
            machine = connection.machine
            if not machine.ready or machine.open_streams >= machine.max_streams:
                continue
            if machine.open_streams < self._settings.streams_per_connection:
                return connection
            if overfill and (best is None or machine.open_streams < best.machine.open_streams):
                best = connection
        return best

    def _dispatch(self) -> None:
        """Give waiting calls to connections with room."""
        touched: set[LinkConnection] = set()
        while self._waiting:
            # Calls that the connections under way will hold wait for them: they come in a moment, or fail.
            connection = self._pick(overfill=len(self._waiting) > self._room_to_come())
            if connection is None:
                break
            call = next(iter(self._waiting))
            del self._waiting[call]
            call.open_on(connection)
            touched.add(connection)
        for connection in touched:
            connection.flush()
        if self._waiting:
            self._grow()

    def _grow(self) -> None:
        """Open the connections that the calls ask for."""
        while not self._closed and self._wants_another():
            delay = self._not_before - self._loop.time()
            if delay > 0:
                if self._wake is None:
                    self._wake = self._loop.call_later(delay, self._woken)
                return
            self._open_connection()

    def _wants_another(self) -> bool:
        settings = self._settings
        ready = [one.machine for one in self._connections if one.machine.ready]
        coming = len(self._connections) - len(ready)
        if any(not machine.max_streams for machine in ready):
            return False  # the peer takes nothing now; more connections would not change that
        if self._waiting:
            allowed = settings.max_connections if ready else settings.connections
            return len(self._connections) < allowed and self._room_to_come() < len(self._waiting)
        return (
            bool(ready)
            and not coming
            and len(ready) < settings.connections
            and all(machine.open_streams >= settings.streams_per_connection for machine in ready)
        )

    def _room_to_come(self) -> int:
        """How many calls the connections under way will hold, as far as the peer's limit is known."""
        each = self._settings.streams_per_connection
        coming = 0
        for connection in self._connections:
            if connection.machine.ready:
                each = min(each, connection.machine.max_streams)
            else:
                coming += 1
        return coming * each

    def _woken(self) -> None:
        self._wake = None
        self._grow()

    def _open_connection(self) -> None:
        machine = Connection(
            self._target.authority, scheme="https" if self._target.tls else "http", limits=self._settings.limits()
        )
        connection = LinkConnection(self, machine, self._loop, self._settings)
        self._connections.append(connection)
        self._dials[connection] = self._loop.create_task(
            self._dial(connection), name=f"link to {self._target.authority}: connect"
        )

    async def _dial(self, connection: LinkConnection) -> None:
        try:
            await dial(self._target, self._settings, connection)
        except LinkError as error:
            del self._dials[connection]
            connection.abort()
            self._cannot_connect(connection, error)
        except Exception as fault:  # of ours: the calls that wait must hear of it all the same
            del self._dials[connection]
            connection.abort()
            self._loop.call_exception_handler({"message": "connecting to an engine failed", "exception": fault})
            text = f"{self._target.url}: a fault while connecting ({type(fault).__name__})"
            self._cannot_connect(connection, LinkError(LinkErrorKind.CONNECT, text, may_have_been_processed=False))
        except BaseException:
            del self._dials[connection]
            connection.abort()
            if connection in self._connections:
                self._connections.remove(connection)
            raise
        else:
            del self._dials[connection]

    def _cannot_connect(self, connection: LinkConnection, error: LinkError) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
        if connection.connected:
            self._leaving.add(connection)
        if self._closed:
            return
        if not self._connections:
            self._fail_waiting(error.kind, error.text)
        else:
            self._not_before = self._loop.time() + self._settings.calm_down
            self._dispatch()
        self._report(connection, error)

    def _told_to_go(self, connection: LinkConnection, code: int, text: str) -> None:
        """GOAWAY with an error. Asked to be calm, we wait before we come back."""
        if connection.reported:
            return
        if code == ErrorCode.ENHANCE_YOUR_CALM:
            now = self._loop.time()
            if now - self._not_before > _CALM_LIMIT:  # it has been content since; this is another matter
                self._calm = self._settings.calm_down
            self._not_before = now + self._calm
            self._calm = min(self._calm * 2, _CALM_LIMIT)
        said = f"{code_name(code)}: {text}" if text else code_name(code)
        self._report(
            connection,
            LinkError(LinkErrorKind.GOAWAY, f"the peer ends the connection ({said})", may_have_been_processed=True),
        )

    def _report(self, connection: LinkConnection, error: LinkError) -> None:
        if connection.reported:
            return
        connection.reported = True
        _log.info("connection_lost", engine=self._target.url, kind=str(error.kind), reason=error.text)
        for callback in list(self._listeners):
            callback(error)

    def _fail_waiting(self, kind: LinkErrorKind, text: str) -> None:
        waiting = list(self._waiting)
        self._waiting.clear()
        for call in waiting:
            call.end(LinkError(kind, text, may_have_been_processed=False))

    def _leave_queue(self, call: LinkCall) -> None:
        self._waiting.pop(call, None)
