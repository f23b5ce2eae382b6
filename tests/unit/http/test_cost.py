"""What a token may cost on its way out: no task of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import uvloop

from enginehouse.domain.stream import Finish
from enginehouse.http.server import HttpServer, HttpSettings
from enginehouse.testing.engines import FakeCall
from enginehouse.testing.feeds import fake_wanted
from tests.unit.http.test_completions import Edge

Scenario = Callable[[Edge, "Client"], Awaitable[None]]


class Client:
    """One streamed request over a real socket."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, **fields: Any) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        body = json.dumps({"model": "m", "prompt": [5, 6, 7], "stream": True, **fields}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)

    async def frames(self, number: int) -> None:
        """Read so many events."""
        for _ in range(number):
            await self.reader.readuntil(b"\n\n")


def run(scenario: Scenario) -> None:
    """The application on the real server and the event loop that it is used with."""

    async def main() -> None:
        edge = Edge()
        tasks = [asyncio.create_task(edge.fleet.run()), asyncio.create_task(edge.models.run())]
        edge.feed.list(fake_wanted("a", "10.0.0.1:9000"))
        server = HttpServer(edge.app, HttpSettings(port=0))
        await server.start()
        async with asyncio.timeout(30):
            while edge.models.current is None:
                await asyncio.sleep(0.001)
            client = Client(server.port)
            await scenario(edge, client)
            client.writer.close()
            await server.close(5)
        await edge.client.aclose()
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    uvloop.run(main())


async def begun(edge: Edge, client: Client, **fields: Any) -> FakeCall:
    """A stream that has brought its first token."""
    await client.ask(**fields)
    call = await edge.call()
    call.deliver([300])
    await client.frames(1)
    return call


def test_f2_no_task_per_token() -> None:
    """A stream of fifty tokens makes as many tasks as one of two, and none while it runs."""

    async def scenario(edge: Edge, client: Client) -> None:
        made: list[str] = []
        loop = asyncio.get_running_loop()

        def factory(
            loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **how: Any
        ) -> asyncio.Task[Any]:
            made.append(str(work))
            return asyncio.Task(work, loop=loop, **how)

        loop.set_task_factory(factory)
        spent = []
        for tokens in (2, 50):
            made.clear()
            call = await begun(edge, client)
            started, alive = len(made), len(asyncio.all_tasks())
            for number in range(tokens):
                call.deliver([301 + number])
                await client.frames(1)
            assert len(made) == started, made[started:]
            assert len(asyncio.all_tasks()) == alive
            call.deliver([], Finish.LENGTH)
            await client.reader.readuntil(b"[DONE]\n\n")
            client.writer.close()
            spent.append(len(made))
        assert spent[0] == spent[1] > 0, spent

    run(scenario)
