"""The show: mock engines and the frontend in one process; one engine joins and one leaves under traffic, in one pool or
in two that prefill and decode apart.

Everything is real but the engines' insides: HTTP, tokenizer, gRPC, membership. The show only does what an operator or a
pod feed would do, and prints what can be seen from outside.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import Any

import uvloop

from enginehouse.adapters.logs import LogSettings, setup_logs
from enginehouse.app import Frontend, frontend
from enginehouse.core.membership.settings import MembershipSettings
from enginehouse.core.routing.policy import PolicyName, RoutingSettings
from enginehouse.demo.chat import ASK, chat_scene
from enginehouse.demo.client import Client
from enginehouse.domain.engine import ProtocolName, Role, Target
from enginehouse.http.fleet_table import render
from enginehouse.http.server import HttpSettings
from enginehouse.mock import MockEngine, MockSettings
from enginehouse.mock.journal import Journal
from enginehouse.settings import Settings
from enginehouse.settings.engines import FleetSettings

MODEL = "demo"
QUESTION = "What happens when an engine leaves?"


@dataclass(frozen=True)
class DemoSettings:
    """What the demo can be told."""

    host: str = "127.0.0.1"
    """Address of the frontend."""
    port: int = 8000
    """Port of the frontend; 0 takes a free one. The mock engines take free ports of 127.0.0.1."""
    engines: int = 2
    """Mock engines at the start; one more joins later."""
    disaggregated: bool = False
    """Two pools, one that prefills and one that decodes, with so many mock engines in each."""
    policy: PolicyName = "round-robin"
    """How requests are spread."""
    once: bool = False
    """End after the show instead of serving on until Ctrl-C."""

    def __post_init__(self) -> None:
        if self.engines < 1:
            raise ValueError("--engines: at least 1 is needed")


class Seen(Journal):
    """Counts the requests that an engine sees."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def write(self, event: str, **what: object) -> None:
        """Called by the engine for each thing that happens to it."""
        self.requests += event == "request"


class Show:
    """The frontend, its mock engines, and what is done with them."""

    def __init__(self, settings: DemoSettings, running: Frontend, engines: AsyncExitStack) -> None:
        self._running = running
        self._engines = engines
        self.client = Client(settings.host, running.port)
        self.holds_told = settings.policy == "kv"
        """Engines publish what they hold, and it is followed."""
        self._numbers = count(1)
        self._protocols = cycle((ProtocolName.SGLANG,) if settings.disaggregated else ProtocolName)
        self.seen: dict[str, Seen] = {}

    @property
    def url(self) -> str:
        """Where the frontend listens."""
        return f"http://{self.client.host}:{self.client.port}"

    async def join(self, role: Role = Role.AGGREGATED) -> str:
        """Start one more mock engine, of the next protocol, and tell the fleet; returns its id.

        Only engines of one protocol pass caches to each other, so with two pools there is one.
        """
        port = 0 if self.holds_told else None
        mock = MockEngine(
            MockSettings(
                model=MODEL,
                protocol=next(self._protocols),
                role=role,
                tokens_per_second=40,
                kv_events_port=port,
                kv_replay_port=port,
            )
        )
        seen = mock.engine.journal = Seen()
        await self._engines.enter_async_context(mock)
        member = await self._running.fleet.add(Target.parse(mock.url))
        self.seen[member.engine_id] = seen
        return member.engine_id

    async def model(self) -> None:
        """Wait until the first engine's tokenizer is loaded."""
        while self._running.models.current is None:  # noqa: ASYNC110 - a demo may poll
            await asyncio.sleep(0.01)

    def leave(self, engine_id: str) -> None:
        """Tell the fleet that this engine goes."""
        self._running.fleet.remove(engine_id)

    async def ask(
        self, tokens: int, say: Callable[[str], None] = lambda text: None, question: str = QUESTION
    ) -> tuple[int, str | None]:
        """Stream one chat answer; returns how many tokens it has, and the finish reason."""
        body = {**_body(tokens, question), "stream_options": {"include_usage": True}}
        answer = await asyncio.to_thread(self.client.chat, body, say)
        return answer.completion_tokens, answer.finish

    async def spread(self, requests: int) -> str:
        """Send so many short requests of different chats together; tells which engine got how many."""
        before = Counter({engine_id: seen.requests for engine_id, seen in self.seen.items()})
        await asyncio.gather(
            *(self.ask(4, question=f"{number}: {QUESTION}") for number in islice(self._numbers, requests))
        )
        got = ((engine_id, seen.requests - before[engine_id]) for engine_id, seen in self.seen.items())
        return ", ".join(f"{engine_id} got {number}" for engine_id, number in got)

    async def long_answer(
        self, tokens: int, among: Collection[str] | None = None
    ) -> tuple[str, asyncio.Task[tuple[int, str | None]]]:
        """Begin an answer; returns the engine (`among` these) that has taken it up, and the answer to wait for."""
        before = {engine_id: seen.requests for engine_id, seen in self.seen.items() if not among or engine_id in among}
        story = asyncio.create_task(self.ask(tokens), name="demo-long-answer")
        while True:
            for engine_id, requests in before.items():
                if self.seen[engine_id].requests > requests:
                    return engine_id, story
            await asyncio.sleep(0.01)

    async def table(self) -> None:
        """Print what `enginehouse engines` would."""
        page = await asyncio.to_thread(self.client.page, "/engines")
        print("\n".join(f"    {line}".rstrip() for line in render(page)), flush=True)


def run(settings: DemoSettings) -> int:
    """Show, then serve until a signal unless `once`; returns the exit status."""
    setup_logs(LogSettings(log_level="warning"))
    try:
        uvloop.run(_demo(settings))
    except OSError as error:
        print(f"enginehouse: {settings.host}:{settings.port}: {error}", file=sys.stderr)
        return 1
    return 0


async def _demo(settings: DemoSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    wanted = Settings(
        http=HttpSettings(
            host=settings.host, port=settings.port, debug_headers=True, shutdown_grace=0.0, shutdown_timeout=10.0
        ),
        routing=RoutingSettings(policy=settings.policy),
        membership=MembershipSettings(drain_timeout=60.0),
        fleet=FleetSettings(topology="disaggregated" if settings.disaggregated else "auto"),
    )
    async with AsyncExitStack() as engines, frontend(wanted, feeds=()) as running:
        show = Show(settings, running, engines)
        play = _scenes_of_two_pools if settings.disaggregated else _scenes
        scenes = asyncio.create_task(play(show, settings.engines), name="demo")
        stopping = asyncio.create_task(stop.wait(), name="demo-stop")
        await asyncio.wait([scenes, stopping], return_when=asyncio.FIRST_COMPLETED)
        if scenes.done():
            scenes.result()
            if not settings.once:
                print(f"\nServing on {show.url} until Ctrl-C.", flush=True)
                await stopping
        scenes.cancel()
        stopping.cancel()
        await asyncio.gather(scenes, stopping, return_exceptions=True)
        await running.leave()


async def _scenes(show: Show, engines: int) -> None:
    for _ in range(engines):
        await show.join()
    await show.model()
    print(f"A frontend on {show.url} with {engines} mock engines. Ask it yourself:\n\n{curl(show.url)}\n")
    await _first_answer(show)
    print(f"\nTwelve requests, {engines} engines: {await show.spread(12)}")

    newcomer = await show.join()
    print(f"\n{newcomer} joins. Twelve more: {await show.spread(12)}")

    await _one_leaves(show)


async def _scenes_of_two_pools(show: Show, engines: int) -> None:
    for _ in range(engines):
        await show.join(Role.PREFILL)
    decoders = [await show.join(Role.DECODE) for _ in range(engines)]
    await show.model()
    print(
        f"A frontend on {show.url} with {engines} mock engines that prefill and {engines} that decode. "
        f"Ask it yourself:\n\n{curl(show.url)}\n"
    )
    await _first_answer(show)
    answer = await asyncio.to_thread(show.client.chat, _body(4, QUESTION), headers=ASK)
    prefill, decode = (answer.decision[part]["engine"] for part in ("prefill", "decode"))
    print(f"\nOne more: {prefill} prefills it, {decode} fetches the KV cache from there and answers.")
    print(f"\nTwelve requests, each seen by one engine of either pool: {await show.spread(12)}")

    newcomer = await show.join(Role.PREFILL)
    print(f"\n{newcomer} joins, to prefill. Twelve more: {await show.spread(12)}")

    await _one_leaves(show, decoders)


async def _first_answer(show: Show) -> None:
    print(f"> {QUESTION}\n< ", end="", flush=True)  # mock engines answer with words by a rule, not with sense
    await show.ask(24, lambda text: print(text, end="", flush=True))
    print()
    if show.holds_told:
        await chat_scene(show.client, MODEL)


async def _one_leaves(show: Show, among: Collection[str] | None = None) -> None:
    leaver, story = await show.long_answer(100, among)
    show.leave(leaver)
    print(f"\n{leaver} leaves while it streams an answer of 100 tokens. Twelve more: {await show.spread(12)}\n")
    await show.table()
    tokens, finish = await story
    print(f"\nIts stream ended whole: {tokens} tokens, finish_reason {finish}. Now it is gone:\n")
    await show.table()


def curl(url: str) -> str:
    """A request to copy."""
    body = json.dumps(_body(48, QUESTION))
    return f"    curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


def _body(tokens: int, question: str) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "stream": True,
    }
