"""A way to a server that can be shut: connections are then refused, and those that were open break."""

from __future__ import annotations

import asyncio
import contextlib

from tests.support import free_port


class Gate:
    """Forwards 127.0.0.1:`port` to another port while it is open."""

    def __init__(self, to: int) -> None:
        self.port = free_port()
        self._to = to
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Gate:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        there = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self._to)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_pump(reader, there))
                pumps.create_task(_pump(back, writer))
        except asyncio.CancelledError:
            pass  # shut; a cancelled handler would be reported as a fault of the server's
        finally:
            self._pipes.discard(task)
            writer.transport.abort()
            if there is not None:
                there.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof() if writer.can_write_eof() else None
