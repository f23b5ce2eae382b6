"""Closed-loop load on an OpenAI-compatible endpoint over bare sockets, cheap enough to share a small machine."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

_TEXT = (
    "import return self def class print assert value index tokens engine route cache block prefix worker join leave "
    "serve probe ready pod watch event state"
)
_WORDS = _TEXT.split()
_HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)
_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("look_up", "write_down")
]
_CONTENT = re.compile(rb'"content": ?"[^"]')
_COUNT = re.compile(rb'"completion_tokens": ?(\d+)')
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True)
class Load:
    """What is asked, by how many at once."""

    streams: int
    requests: int
    prompt_words: int = 300
    max_tokens: int = 128
    model: str = "mock"
    tools: bool = False
    """Offer the model some."""


@dataclass
class Outcome:
    """What came of it."""

    tokens: int = 0
    """As the usage of each answer counts them."""
    answers: int = 0
    first_token: list[float] = field(default_factory=list)
    """Seconds from a request's last byte to the first text of its answer."""
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0


def prompt(words: int, seed: int) -> str:
    """So many words, different for each seed."""
    rng = random.Random(seed)
    return " ".join(rng.choice(_WORDS) for _ in range(words))


def request_bytes(load: Load, seed: int) -> bytes:
    """One streamed chat request as it goes over the wire."""
    tools = {"tools": _TOOLS} if load.tools else {}
    body = json.dumps(
        {
            **tools,
            "model": load.model,
            "messages": [{"role": "user", "content": prompt(load.prompt_words, seed)}],
            "max_tokens": load.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
    )
    return (_HEAD.format(len(body)) + body).encode()


class Client(asyncio.Protocol):
    """One connection that asks one request at a time. Bytes are searched, not parsed."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.first_token: float | None = None
        self._asked = 0.0
        self._data = bytearray()
        self._done: asyncio.Future[bytes] | None = None
        self.begun: asyncio.Future[None] | None = None
        """Set by who wants to know when text has come, without waiting for the end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    async def ask(self, request: bytes) -> bytes:
        """Send, and wait for the whole answer. Returns its bytes, head included."""
        self.send(request)
        assert self._done is not None
        return await self._done

    def send(self, request: bytes) -> None:
        """Send only."""
        assert self.transport is not None
        self._data.clear()
        self.first_token = None
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        self._asked = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self.first_token is None and _CONTENT.search(data):
            self.first_token = time.perf_counter() - self._asked
            if self.begun is not None and not self.begun.done():
                self.begun.set_result(None)
        if self._done is None or self._done.done():
            return
        if data.endswith(_LAST_CHUNK) or self._is_whole():
            self._done.set_result(bytes(self._data))

    def _is_whole(self) -> bool:
        """An answer that is not chunked, or whose last chunk came in pieces."""
        head, gap, body = self._data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        return bool(gap) and (len(body) >= int(length[1]) if length else body.endswith(_LAST_CHUNK))

    def forget(self) -> None:
        """Hang up."""
        if self._done is not None:
            self._done.cancel()
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"connection lost: {error}"))


async def connect(port: int, count: int) -> list[Client]:
    """Open so many connections."""
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(count):
        _, client = await loop.create_connection(Client, "127.0.0.1", port)
        clients.append(client)
    return clients


def close(clients: Sequence[Client]) -> None:
    """Hang up, whatever is still to come."""
    for client in clients:
        client.forget()


async def first_tokens(clients: Sequence[Client], requests: Sequence[bytes]) -> None:
    """Send one request on each connection, and wait until every answer has begun."""
    loop = asyncio.get_running_loop()
    begun = []
    for client, request in zip(clients, requests, strict=True):
        client.begun = loop.create_future()
        begun.append(client.begun)
        client.send(request)
    await asyncio.gather(*begun)


async def drive(port: int, load: Load, *, seed: int = 0) -> Outcome:
    """Keep `load.streams` requests open until `load.requests` are answered."""
    outcome = Outcome()
    # Made before the clock runs: the client's own work should not stand between the requests.
    todo = [request_bytes(load, seed + number) for number in range(load.requests)]
    clients = await connect(port, min(load.streams, load.requests))
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(_keep_asking(client, todo, outcome), name="stream")
    outcome.seconds = time.perf_counter() - began
    close(clients)
    return outcome


async def _keep_asking(client: Client, todo: list[bytes], outcome: Outcome) -> None:
    while todo:
        try:
            answer = await client.ask(todo.pop())
        except ConnectionError as error:
            outcome.errors.append(str(error))
            return
        count = _COUNT.search(answer, max(0, len(answer) - 2000))
        if b" 200 " not in answer[:20] or count is None or client.first_token is None:
            outcome.errors.append(answer[-300:].decode(errors="replace"))
            continue
        outcome.answers += 1
        outcome.tokens += int(count[1])
        outcome.first_token.append(client.first_token)
