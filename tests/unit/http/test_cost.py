"""What a token may cost on its way out: no task of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest
import uvloop

from enginehouse.core.output.selection import FormatSettings
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

    async def ask(self, path: str, **fields: Any) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        asked = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": [5, 6, 7]}
        body = json.dumps({"model": "m", "stream": True, **asked, **fields}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)

    async def frames(self, number: int) -> None:
        """Read so many events."""
        for _ in range(number):
            await self.reader.readuntil(b"\n\n")


def run(scenario: Scenario) -> None:
    """The application on the real server and the event loop that it is used with."""

    async def main() -> None:
        edge = Edge(formats=FormatSettings("hermes", "qwen3"))
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


async def begun(edge: Edge, client: Client, path: str, **fields: Any) -> FakeCall:
    """A stream that has brought its first token."""
    await client.ask(path, **fields)
    call = await edge.call()
    call.deliver([300])
    await client.frames(2 if "chat" in path else 1)
    return call


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ],
)
def test_f2_no_task_per_token(path: str, fields: dict[str, Any]) -> None:
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
            call = await begun(edge, client, path, **fields)
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


def test_f2_choices_have_a_task_each_and_their_tokens_none() -> None:
    async def scenario(edge: Edge, client: Client) -> None:
        before = len(asyncio.all_tasks())
        await client.ask("/v1/completions", n=3)
        calls = await edge.calls(3)
        assert sum(task.get_name().startswith("choice-") for task in asyncio.all_tasks()) == 3
        alive = len(asyncio.all_tasks())
        for number in range(20):
            for call in calls:
                call.deliver([301 + number])
            await client.frames(3)
            assert len(asyncio.all_tasks()) == alive
        for call in calls:
            call.deliver([], Finish.LENGTH)
        await client.reader.readuntil(b"[DONE]\n\n")
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0)

    run(scenario)
