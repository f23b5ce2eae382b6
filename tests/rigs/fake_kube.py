"""A scripted API server: honest lists and watches by default, and any misbehaviour that a test puts in front of them.

Plain HTTP on 127.0.0.1, in the test's own event loop. Selectors are recorded, not applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Request:
    target: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "1"


class Answer:
    """One answer, written as a test likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def whole(self, body: Any, status: int = 200, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self._writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n{extra}\r\n".encode() + content)
        await self._writer.drain()

    async def refuse(self, status: int, message: str, **headers: str) -> None:
        await self.whole({"kind": "Status", "code": status, "message": message, "reason": "Test"}, status, **headers)

    def begin(self) -> None:
        self._writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def raw(self, content: bytes) -> None:
        self._writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        await self._writer.drain()

    async def event(self, kind: str, item: Any) -> None:
        await self.raw(json.dumps({"type": kind, "object": item}).encode() + b"\n")

    async def error(self, code: int) -> None:
        # A version in an ERROR is a trap: it must never be kept.
        status = {"kind": "Status", "metadata": {"resourceVersion": "666"}, "code": code, "message": f"test {code}"}
        await self.event("ERROR", status)

    def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")

    def cut(self) -> None:
        self._writer.transport.abort()

    async def left(self) -> None:
        """Until the client closes the connection."""
        with contextlib.suppress(OSError):
            await self._reader.read()


Handler = Callable[[Request, Answer], Awaitable[None]]


class FakeKube:
    """Pods, versions, history, and what was asked."""

    def __init__(self) -> None:
        self.version = 100
        self.pods: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.requests: list[Request] = []
        self.lists: deque[Handler] = deque()
        """Answers to the next lists; then the honest one."""
        self.watches: deque[Handler] = deque()
        self.every: Handler | None = None
        """Comes before all others, for what concerns every request."""
        self.open = 0
        """Connections open now."""
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FakeKube:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def kubeconfig(self, folder: Path, user: dict[str, Any] | None = None, prefix: str = "") -> str:
        path = folder / "kubeconfig"
        config = {
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.port}{prefix}"}}],
            "users": [{"name": "test", "user": user or {}}],
        }
        path.write_text(json.dumps(config))
        return str(path)

    # The world.

    def put(self, pod: dict[str, Any]) -> None:
        known = pod["metadata"]["name"] in self.pods
        self._record("MODIFIED" if known else "ADDED", pod)
        self.pods[pod["metadata"]["name"]] = pod

    def delete(self, name: str) -> None:
        self._record("DELETED", self.pods.pop(name))

    def delete_unseen(self, name: str) -> None:
        """Gone, and no watch will ever tell."""
        del self.pods[name]
        self.version += 1

    def _record(self, kind: str, pod: dict[str, Any]) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, json.loads(json.dumps(pod))))
        self._changed.set()
        self._changed = asyncio.Event()

    def asked(self, *, watch: bool) -> list[Request]:
        return [request for request in self.requests if request.is_watch == watch]

    # Requests.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *fields = head.strip().split("\r\n")
            target = line.split(" ")[1]
            parts = urlsplit(target)
            headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
            request = Request(target, parts.path, dict(parse_qsl(parts.query)), headers)
            self.requests.append(request)
            await self._handler(request)(request, Answer(reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client left
        except asyncio.CancelledError:
            pass  # the test is over; a cancelled handler would be reported as a fault
        finally:
            self.open -= 1
            self._connections.discard(task)
            writer.close()

    def _handler(self, request: Request) -> Handler:
        if self.every is not None:
            return self.every
        scripted, honest = (self.watches, self.watch) if request.is_watch else (self.lists, self.list)
        return scripted.popleft() if scripted else honest

    async def list(self, request: Request, answer: Answer) -> None:
        """The honest list."""
        items = [*self.pods.values()]
        start = int(request.query.get("continue", "0"))
        size = int(request.query.get("limit", "500"))
        metadata = {"resourceVersion": str(self.version)}
        if start + size < len(items):
            metadata["continue"] = str(start + size)
        await answer.whole({"metadata": metadata, "items": items[start : start + size] or None})

    async def watch(self, request: Request, answer: Answer) -> None:
        """The honest watch."""
        answer.begin()
        sent = int(request.query["resourceVersion"])
        while True:
            changed = self._changed
            for version, kind, item in list(self.history):
                if version > sent:
                    await answer.event(kind, item)
                    sent = version
            left = asyncio.ensure_future(answer.left())
            waits = {asyncio.ensure_future(changed.wait()), left}
            done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in pending:
                one.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            if left in done:
                return
