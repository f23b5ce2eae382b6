"""Steady small requests, and long streams that are watched to their end, over plain sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass


class Traffic:
    """Requests of one token, evenly spread; every answer that is not 200 is counted."""

    def __init__(self, port: int, per_second: float = 200.0, workers: int = 4) -> None:
        self._port = port
        self._pause = workers / per_second
        self._workers = workers
        self.answers: Counter[str] = Counter()

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[Traffic]:
        """For the length of a with block."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._ask(), name=f"traffic {number}") for number in range(self._workers)]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()

    @property
    def errors(self) -> dict[str, int]:
        """Answers other than 200, by what they were."""
        return {what: count for what, count in self.answers.items() if what != "200"}

    async def _ask(self) -> None:
        body = json.dumps({"model": "mock", "prompt": [1, 2, 3], "max_tokens": 1}).encode()
        loop = asyncio.get_running_loop()
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                due = loop.time()
                while True:
                    writer.write(_request(body))
                    self.answers[await _read_answer(reader)] += 1
                    due = max(due + self._pause, loop.time())
                    await asyncio.sleep(due - loop.time())
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                self.answers[type(error).__name__] += 1
            finally:
                writer.transport.abort()


@dataclass(frozen=True)
class End:
    """How a stream ended, and whether its client had any of the answer."""

    how: str
    begun: bool


async def stream(port: int, tokens: int, prompt: Sequence[int] = (5, 6, 7)) -> End:
    """One streamed completion: `whole`, or how it ended otherwise."""
    asked = {"model": "mock", "prompt": list(prompt), "max_tokens": tokens, "stream": True, "ignore_eos": True}
    body = json.dumps(asked)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_request(body.encode()))
        status = int((await reader.readline()).split()[1])
        text = (await reader.readuntil(b"0\r\n\r\n")).decode() if status == 200 else ""
    except asyncio.IncompleteReadError as error:
        return End("broken off", _begun(error.partial.decode()))
    except OSError as error:
        return End(type(error).__name__, False)
    finally:
        writer.transport.abort()
    if status != 200:
        return End(f"HTTP {status}", False)
    if '"error"' in text:
        return End("error event", _begun(text))
    whole = '"finish_reason":"length"' in text and "data: [DONE]" in text
    return End("whole" if whole else "no proper end", _begun(text))


def _begun(text: str) -> bool:
    return re.search(r'"text":"[^"]', text) is not None


def _request(body: bytes) -> bytes:
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


async def _read_answer(reader: asyncio.StreamReader) -> str:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length:")[2].split()[0])
    await reader.readexactly(length)
    return head.split()[1]
