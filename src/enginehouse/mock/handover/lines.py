"""JSON objects as lines on a TCP connection, and a server for connections that carry them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

Line = dict[str, Any]


def say(writer: asyncio.StreamWriter, **what: object) -> None:
    """Send one. Lines are short: no need to wait until they left."""
    if not writer.is_closing():
        writer.write(json.dumps(what).encode() + b"\n")


async def hear(reader: asyncio.StreamReader) -> Line | None:
    """The next one; None: the peer has gone, or makes no sense."""
    try:
        line = json.loads(await reader.readline() or b"null")
    except (OSError, ValueError):
        return None
    return line if isinstance(line, dict) else None


async def until_gone(reader: asyncio.StreamReader) -> None:
    """Wait until the peer hangs up."""
    try:
        await reader.read()
    except OSError:
        return


class Door:
    """A listening port; `close` cuts its connections too."""

    def __init__(self, visit: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self._visit = visit
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Listen; 0 takes a free port. Raises OSError."""
        self._server = await asyncio.start_server(self._welcome, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Hear nobody any more, not even those who are there."""
        if self._server is not None:
            self._server.close()
        for visit in self._visits:
            visit.cancel()

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.ensure_future(self._serve(reader, writer))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._visit(reader, writer)
        finally:
            writer.close()
