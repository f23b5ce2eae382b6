"""A mock engine that listens: a start (slow or mute when told), changing faults, a death or a good end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import grpc.aio
import uvloop

from enginehouse.domain.engine import ProtocolName
from enginehouse.mock.embedding import embedding
from enginehouse.mock.engine import Engine
from enginehouse.mock.fronts.rpc import Front, generic_handlers
from enginehouse.mock.fronts.sglang import SglangFront
from enginehouse.mock.fronts.vllm import VllmFront
from enginehouse.mock.fronts.vllm_native import VllmNativeFront
from enginehouse.mock.journal import Journal
from enginehouse.mock.settings import MockSettings, read_faults
from enginehouse.mock.vocabulary import load_vocabulary

_FRONTS: dict[ProtocolName, Callable[[Engine], Front]] = {
    ProtocolName.SGLANG: SglangFront,
    ProtocolName.VLLM: VllmFront,
    ProtocolName.VLLM_NATIVE: VllmNativeFront,
}
_CONTROL_PERIOD = 0.02
"""Seconds between looks at the control file: a test that writes it waits about so long."""
_KILLED = 137
"""Exit status of a process that got SIGKILL."""


class MockEngine:
    """One mock engine with its port: `async with MockEngine(settings) as engine: … engine.port`.

    Entering returns when the port answers health calls truthfully, after the settings' slow start.
    """

    def __init__(self, settings: MockSettings, *, exits: bool = False) -> None:
        """exits: an injected death ends the whole process, not just this engine."""
        self.settings = settings
        self.port = settings.port
        vocabulary = load_vocabulary(Path(settings.model_path) if settings.model_path else None)
        self.engine = Engine(settings, vocabulary, Journal(settings.log))
        self.engine.die = (lambda: os._exit(_KILLED)) if exits else self._die
        self._server: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._death: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """What a frontend is given."""
        return f"grpc://{self._host}:{self.port}"

    @property
    def _host(self) -> str:
        host = self.settings.host
        return f"[{host}]" if ":" in host else host

    @property
    def kv_events_endpoints(self) -> list[str]:
        """Where its ranks publish KV events; empty when they do not."""
        return self.engine.kv.endpoints(self._host) if self.engine.kv is not None else []

    @property
    def kv_replay_endpoints(self) -> list[str]:
        """Where its ranks replay them; empty when they do not."""
        return self.engine.kv.replay_endpoints(self._host) if self.engine.kv is not None else []

    @property
    def handover_port(self) -> int:
        """Where other engines come for KV caches: bootstrap port or side channel. 0: they do not."""
        return self.engine.handover.port

    def answer(self, prompt: list[int], length: int) -> list[int]:
        """The tokens it will say to a prompt."""
        return self.engine.vocabulary.answer(prompt, length)

    def embedding(self, prompt: list[int]) -> list[float]:
        """What it makes of a prompt."""
        return embedding(prompt, self.settings.embedding_size)

    def set_faults(self, **faults: Any) -> None:
        """Change these faults and leave the others; raises ValueError for an unknown one."""
        self.engine.set_faults(read_faults(faults, self.engine.faults))

    async def __aenter__(self) -> MockEngine:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the port, in the order of a slow start: nothing, mute, unhealthy, well."""
        settings = self.settings
        await asyncio.sleep(settings.listen_delay)
        if settings.mute:
            with _bound(settings.host, self.port) as listener:
                listener.listen(64)
                self.port = listener.getsockname()[1]
                await asyncio.sleep(settings.mute)
        # gRPC would say in many words, and not to us, why a port cannot be had.
        _bound(settings.host, self.port).close()
        if self.engine.kv is not None:
            self.engine.kv.open()
        await self.engine.handover.open()
        self.engine.warm = not settings.warmup
        front = _FRONTS[settings.protocol](self.engine)
        # Without so_reuseport two engines on one port are an error and not a lottery.
        options = [("grpc.so_reuseport", 0), *_PATIENT, *front.options]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers(generic_handlers(front))
        try:
            self.port = self._server.add_insecure_port(f"{self._host}:{self.port}")
        except RuntimeError as error:
            raise OSError(str(error)) from error
        await self._server.start()
        self.engine.journal.write("listening", port=self.port)
        if settings.warmup:
            self._run("mock-warmup", self._warm_up())
        if settings.control:
            self._run("mock-control", self._follow_control())

    async def stop(self, grace: float = 0.0) -> None:
        """Say unhealthy, give streams their grace, cut the rest."""
        self.engine.leaving = True
        self.engine.changed()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._death is not None:
            # grpc.aio loses its own future when one of two stops is cancelled, so a death runs to its end.
            await self._death
        elif self._server is not None:
            await self._server.stop(grace)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self.engine.settled()
        self.engine.close()

    def _run(self, name: str, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _warm_up(self) -> None:
        await asyncio.sleep(self.settings.warmup)
        self.engine.warm = True
        self.engine.changed()

    async def _follow_control(self) -> None:
        path = Path(self.settings.control)
        stamp: list[int] = []
        while True:
            stamp = self._read_control(path, stamp)
            await asyncio.sleep(_CONTROL_PERIOD)

    def _read_control(self, path: Path, seen: list[int]) -> list[int]:
        """Obey the control file if it changed; without a file the faults are those of the settings.

        The journal tells which file (time and inode: a file written right after another has its time) is obeyed now.
        """
        try:
            found = path.stat()
            stamp = [found.st_mtime_ns, found.st_ino]
            text = path.read_text(encoding="utf-8") if stamp != seen else None
        except FileNotFoundError:
            stamp, text = [], "{}" if seen else None
        if text is not None:
            try:
                self.engine.set_faults(read_faults(json.loads(text or "{}"), self.settings.faults()))
                self.engine.journal.write("faults", stamp=stamp)
            except ValueError as error:
                print(f"mock: {path}: {error}; keeping the faults as they are", file=sys.stderr, flush=True)
        return stamp

    def _die(self) -> None:
        """An embedded engine dies by cutting every connection at once."""
        self.engine.handover.close()
        if self._server is not None and self._death is None:
            self._death = asyncio.create_task(self._server.stop(None), name="mock-death")


_PATIENT = (
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
)
"""All three real servers tolerate a ping every second."""


def _bound(host: str, port: int) -> socket.socket:
    """A socket that has the port. Raises OSError with the address in its text."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return sock


async def serve(settings: MockSettings) -> None:
    """Run one engine until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = MockEngine(settings, exits=True)
    starting = asyncio.create_task(engine.start(), name="mock-start")
    stopping = asyncio.create_task(stop.wait(), name="mock-stop")
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
        if engine.kv_events_endpoints:
            replay = f", replayed on {engine.kv_replay_endpoints[0]}" if engine.kv_replay_endpoints else ""
            print(f"mock KV events of rank 0 on {engine.kv_events_endpoints[0]}{replay}", flush=True)
        if engine.handover_port:
            print(f"mock KV caches are passed on at port {engine.handover_port}", flush=True)
        print(f"mock {settings.protocol} engine of model {settings.model} on {engine.url}", flush=True)
        await stopping
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await engine.stop(settings.shutdown_grace)


def run(settings: MockSettings) -> int:
    """`enginehouse mock`: one engine in this process, until a signal; returns the exit status."""
    try:
        uvloop.run(serve(settings))
    except OSError as error:
        print(f"enginehouse: {error}", file=sys.stderr)
        return 1
    return 0
