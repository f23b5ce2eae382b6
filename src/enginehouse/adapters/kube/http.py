"""One HTTP/1.1 request over one connection of its own. Knows nothing of Kubernetes.

No pool on purpose: a listing every half minute and a watch every few minutes gain nothing from one, and a kept
connection may be the half-open one. h11 does the protocol. Proxy variables of the environment are not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from enginehouse.core.watch import Failure, FailureKind

_READ = 256 * 1024


class RequestFailed(Exception):
    """A request did not do; `failure` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an API server is."""

    host: str
    port: int
    prefix: str
    """Path before `/api`, without a slash at the end."""
    tls_server_name: str | None

    @classmethod
    def parse(cls, server: str, tls_server_name: str | None) -> Endpoint:
        """Read the URL of a kubeconfig. Raises ValueError."""
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"server {server!r} is not of the form https://HOST[:PORT][/PATH]")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return cls(parts.hostname, port, parts.path.rstrip("/"), tls_server_name)

    @property
    def authority(self) -> str:
        """For the Host header and for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Response:
    """An answer whose body may still be on its way."""

    def __init__(self, head: h11.Response, connection: h11.Connection, reader: asyncio.StreamReader) -> None:
        self.status = head.status_code
        self.headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        self._connection = connection
        self._reader = reader

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, to its proper end. Raises RequestFailed if there is none."""
        while True:
            event = await _next(self._connection, self._reader)
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return

    async def body(self, limit: int | None = None) -> bytes:
        """Return the whole body; with a limit its start, for error texts."""
        parts = bytearray()
        async for chunk in self.chunks():
            parts += chunk
            if limit is not None and len(parts) >= limit:
                return bytes(parts[:limit])
        return bytes(parts)


@contextlib.asynccontextmanager
async def get(
    endpoint: Endpoint,
    target: str,
    headers: Sequence[tuple[str, str]],
    tls: ssl.SSLContext | None,
    *,
    connect_timeout: float,
    head_timeout: float,
) -> AsyncIterator[Response]:
    """Send a GET and give its answer; the connection ends with the block. Raises RequestFailed."""
    try:
        request = h11.Request(
            method="GET",
            target=endpoint.prefix + target,
            headers=[("Host", endpoint.authority), ("Connection", "close"), *headers],
        )
    except (h11.LocalProtocolError, UnicodeError):  # not its text: it quotes the header, and that may be a token
        text = "the token, or the server's address, contains characters that HTTP cannot carry"
        raise RequestFailed(Failure(FailureKind.CREDENTIALS, text)) from None
    reader, writer = await _connect(endpoint, tls, connect_timeout)
    try:
        connection = h11.Connection(our_role=h11.CLIENT)
        try:
            writer.write(connection.send(request) + connection.send(h11.EndOfMessage()))
            async with asyncio.timeout(head_timeout):
                head = await _next(connection, reader)
                while isinstance(head, h11.InformationalResponse):
                    head = await _next(connection, reader)
        except TimeoutError:
            text = f"{endpoint.authority} took the request and did not answer within {head_timeout:g} s"
            raise RequestFailed(Failure(FailureKind.SILENT, text)) from None
        if not isinstance(head, h11.Response):
            raise RequestFailed(Failure(FailureKind.BROKEN, f"{endpoint.authority} closed without an answer"))
        yield Response(head, connection, reader)
    finally:
        # Not close(): that waits for a TLS goodbye, which a half-open peer never says.
        writer.transport.abort()


async def _connect(
    endpoint: Endpoint, tls: ssl.SSLContext | None, timeout: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name = (endpoint.tls_server_name or endpoint.host) if tls is not None else None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(
                endpoint.host, endpoint.port, ssl=tls, server_hostname=name, limit=_READ
            )
    except TimeoutError:
        text = f"no connection to {endpoint.authority} within {timeout:g} s"
        raise RequestFailed(Failure(FailureKind.UNREACHABLE, text)) from None
    except (OSError, ValueError) as error:  # TLS failures and unknown names too; ValueError: no possible name
        text = f"no connection to {endpoint.authority}: {getattr(error, 'strerror', None) or error}"
        raise RequestFailed(Failure(FailureKind.UNREACHABLE, text)) from error
    sock = writer.get_extra_info("socket")
    # The kernel finds out about a dead peer between bookmarks. Best effort: not every platform has the options.
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return reader, writer


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
    try:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await reader.read(_READ))
    except h11.RemoteProtocolError as error:
        raise RequestFailed(Failure(FailureKind.BROKEN, f"the connection broke off: {error}")) from error
    except OSError as error:
        text = f"the connection broke: {error.strerror or error}"
        raise RequestFailed(Failure(FailureKind.BROKEN, text)) from error
    return event
