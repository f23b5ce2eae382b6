"""KV events of every engine, from where it says that they are: the mock's fronts, the real servers, the real vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from enginehouse.adapters.engines.engine import Engine
from enginehouse.adapters.kv_events import KvEventSettings, ZmqKvEvents
from enginehouse.domain.engine import LINK, KvEventSource, Target
from enginehouse.domain.kv import KvBatch, Stored
from enginehouse.ports import KvSubscription
from tests.contract.engine_peers import (
    MOCK_NATIVE,
    MOCK_SGLANG,
    MOCK_VLLM,
    RANKS,
    SGLANG,
    SGLANG_OLD,
    VLLM_CPU,
    VLLM_NATIVE,
    Kind,
    Server,
    serve,
)
from tests.contract.kv_peers import Heard
from tests.contract.test_engines import ask, connector, whole
from tests.support import free_ports

PATIENT = KvEventSettings(replay_idle_limit=60)


@dataclass(frozen=True)
class Way:
    """An engine, and how its events are found."""

    kind: Kind
    named: bool = False
    """Its address says the ports, since it does not."""

    def param(self) -> Any:
        marks = self.kind.param().marks
        return pytest.param(self, id=f"{self.kind.name}{'-by-port' if self.named else ''}", marks=marks)


OLD_MOCK = replace(MOCK_SGLANG, name="mock-sglang-old", options={"kv_events_old": True})
WAYS = (
    Way(MOCK_SGLANG),
    Way(OLD_MOCK),
    Way(MOCK_VLLM),
    Way(MOCK_VLLM, named=True),
    Way(MOCK_NATIVE),
    Way(SGLANG),
    Way(SGLANG_OLD),
    Way(VLLM_NATIVE),
    Way(VLLM_CPU),
    Way(VLLM_CPU, named=True),
)


@contextmanager
def serving(kind: Kind, folder: Path, **options: Any) -> Iterator[tuple[Server, int, int]]:
    """An engine with events; the ports of its publishers and its replays."""
    if not kind.scripted:
        with serve(kind, folder) as server:
            yield server, server.port + 1, server.port + 2
        return
    live = free_ports(2 * RANKS)
    replays = live + RANKS
    if kind.mock:
        ports: dict[str, Any] = {"kv_events_port": live, "kv_replay_port": replays, "ranks": RANKS}
    else:
        ports = {"kv_events": f"tcp://*:{live}", "kv_replay": f"tcp://*:{replays}", "dp_size": RANKS}
    with serve(kind, folder, **{**ports, **options}) as server:
        yield server, live, replays


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], tuple[Server, int, int]]]:
    """Each kind once for all its ways: the real vLLM takes a minute to start."""
    running: dict[str, tuple[Server, int, int]] = {}
    with ExitStack() as stack:

        def get(kind: Kind) -> tuple[Server, int, int]:
            if kind.name not in running:
                folder = tmp_path_factory.getbasetemp() / f"kv-{kind.name}"
                running[kind.name] = stack.enter_context(serving(kind, folder))
            return running[kind.name]

        yield get


@asynccontextmanager
async def followed(
    engine: Engine,
) -> AsyncIterator[tuple[Heard, dict[int, KvSubscription]]]:
    """Everything subscribed to; subscriptions by rank."""
    heard, found = Heard(), dict[int, KvSubscription]()
    with closing(ZmqKvEvents(PATIENT)) as events:
        for source in engine.info.kv_event_sources:
            if source.endpoint == LINK:
                subscription = engine.kv_events(heard)
                assert subscription is not None
                found |= dict.fromkeys(range(engine.info.ranks), subscription)
            else:
                found[source.rank] = events.subscribe(source, heard)
        try:
            yield heard, found
        finally:
            for subscription in found.values():
                subscription.close()


def with_engine(way: Way, servers: Any, test: Callable[[Server, Engine], Awaitable[None]]) -> None:
    server, live, replays = servers(way.kind)

    async def run() -> None:
        target = Target("127.0.0.1", server.port)
        if way.named:
            target = replace(target, kv_events_port=live, kv_replay_port=replays)
        engine = await connector().probe(target)
        try:
            await test(server, engine)
        finally:
            await engine.close()

    asyncio.run(run())


_prompts = iter(range(10**6))


async def prompt_once(server: Server, engine: Engine, rank: int) -> list[int]:
    """A prompt that was never sent before, of some whole blocks, answered by this rank."""
    number = next(_prompts)
    prompt = [300 + (17 * i + 101 * number) % 2000 for i in range(100)]
    answer, _, _ = ask(server, engine, 1, prompt=prompt, rank=rank if engine.info.ranks > 1 else None)
    assert await whole(answer) is None
    return prompt


async def heard_from(server: Server, engine: Engine, heard: Heard, rank: int) -> list[int]:
    """Prompt until a batch of that rank has arrived: the first may go out before the subscription is through."""
    before = len(heard.live)
    for _ in range(20):
        prompt = await prompt_once(server, engine, rank)
        try:
            async with asyncio.timeout(3):
                await heard.until(lambda: any(one == rank for one, _, _ in heard.live[before:]))
        except TimeoutError:
            continue
        return prompt
    raise AssertionError(f"nothing heard from rank {rank}: {heard.told}")


def stores(batches: list[KvBatch], tokens: list[int]) -> bool:
    """Is this run of tokens, beginning at position 0, in the batches?"""
    for batch in batches:
        for event in batch.events:
            if isinstance(event, Stored) and event.parent is None:
                count = min(len(event.token_ids), len(tokens))
                if count and list(event.token_ids[:count]) == tokens[:count]:
                    return True
    return False


@pytest.mark.parametrize("way", [way.param() for way in WAYS])
def test_k7_each_rank_tells_what_it_stores(way: Way, servers: Any) -> None:
    async def test(server: Server, engine: Engine) -> None:
        async with followed(engine) as (heard, found):
            assert sorted(found) == list(range(engine.info.ranks))
            for rank in found:
                before = len(heard.live)
                prompt = await heard_from(server, engine, heard, rank)
                batches = [found[rank].decode(payload) for one, _, payload in heard.live[before:] if one == rank]
                assert not any(batch.malformed for batch in batches)
                assert stores(batches, prompt)
                assert all(batch.rank in (None, rank) for batch in batches)
            assert heard.connections
            assert not heard.lost

    with_engine(way, servers, test)


@pytest.mark.parametrize("way", [way.param() for way in WAYS if way.named or way.kind.protocol != "vllm"])
def test_a_replay_repeats_what_was_live(way: Way, servers: Any) -> None:
    async def test(server: Server, engine: Engine) -> None:
        async with followed(engine) as (heard, found):
            for rank, subscription in found.items():
                assert subscription.can_replay
                await heard_from(server, engine, heard, rank)
                last = max(seq for one, seq, _ in heard.live if one == rank)
                heard.replayed.clear()
                heard.ends.clear()
                subscription.replay(rank, 0)
                await heard.until(lambda: heard.ends)
                assert heard.ends == [(rank, True)]
                numbers = heard.replayed_numbers
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
                assert last in numbers
                again = {seq: payload for _, seq, payload in heard.replayed}
                live = {seq: payload for one, seq, payload in heard.live if one == rank}
                assert all(again[seq] == payload for seq, payload in live.items() if seq in again)
                heard.replayed.clear()
                heard.ends.clear()
                subscription.replay(rank, last)
                await heard.until(lambda: heard.ends)
                assert heard.replayed_numbers[0] == last
                heard.replayed.clear()
                heard.ends.clear()
                subscription.replay(rank, 10**9)
                await heard.until(lambda: heard.ends)
                assert (heard.replayed, heard.ends) == ([], [(rank, True)])

    with_engine(way, servers, test)


@pytest.mark.parametrize("kind", [kind.param() for kind in (SGLANG, SGLANG_OLD, VLLM_NATIVE)])
def test_a_truncated_buffer_begins_later(kind: Kind, tmp_path: Path) -> None:
    with serving(kind, tmp_path / "engine", kv_buffer=2) as served:

        async def test(server: Server, engine: Engine) -> None:
            async with followed(engine) as (heard, found):
                while not heard.live or heard.numbers[-1] < 4:
                    await heard_from(server, engine, heard, 0)
                found[0].replay(0, 0)
                await heard.until(lambda: heard.ends)
                assert heard.ends == [(0, True)]
                first, second = heard.replayed_numbers
                assert (second, first > 0) == (first + 1, True)

        with_engine(Way(kind), lambda _: served, test)


@pytest.mark.rig("sglang")
def test_k2_an_engine_that_comes_back_is_found_again_and_counts_from_zero(tmp_path: Path) -> None:
    live = free_ports(2)
    options = {"kv_events": f"tcp://*:{live}", "kv_replay": f"tcp://*:{live + 1}"}

    async def test() -> None:
        heard = Heard()
        source = KvEventSource(0, f"tcp://127.0.0.1:{live}", "", f"tcp://127.0.0.1:{live + 1}")
        with closing(ZmqKvEvents(replace(PATIENT, reconnect_limit=0.2))) as events:
            subscription = events.subscribe(source, heard)
            for life in range(2):
                before = len(heard.live)
                with serve(SGLANG, tmp_path / str(life), **options) as server:
                    engine = await connector().probe(Target("127.0.0.1", server.port))
                    try:
                        await heard.until(lambda life=life: heard.connections == life + 1)  # type: ignore[misc]
                        await heard_from(server, engine, heard, 0)
                        await heard_from(server, engine, heard, 0)
                        subscription.replay(0, 0)
                        await heard.until(lambda life=life: len(heard.ends) == life + 1)  # type: ignore[misc]
                    finally:
                        await engine.close()
                assert heard.replayed_numbers[0] == 0
                assert heard.numbers[before] < 10
                heard.replayed.clear()
                await heard.until(lambda: heard.told[-1] == "lost")
        assert heard.ends == [(0, True), (0, True)]

    asyncio.run(test())


@pytest.mark.parametrize("kind", [kind.param() for kind in (MOCK_VLLM, SGLANG, VLLM_NATIVE)])
def test_k6_an_engine_without_events(kind: Kind, tmp_path: Path) -> None:
    """vLLM's servicer says so when it is asked; the others name no source."""
    with serve(kind, tmp_path / "engine") as server:

        async def test() -> None:
            engine = await connector().probe(Target("127.0.0.1", server.port))
            try:
                if kind is not MOCK_VLLM:
                    assert engine.info.kv_event_sources == ()
                    return
                async with followed(engine) as (heard, _):
                    await heard.until(lambda: heard.lost)
                    reason, permanent = heard.lost[0]
                    assert permanent
                    assert "--kv-events-config" in reason
            finally:
                await engine.close()

        asyncio.run(test())


@pytest.mark.parametrize("kind", [kind.param() for kind in (MOCK_VLLM, VLLM_CPU)])
def test_over_the_link_an_engine_is_connected_before_it_has_anything_to_tell(kind: Kind, tmp_path: Path) -> None:
    with serving(kind, tmp_path / "engine", ranks=1) as served:

        async def test(server: Server, engine: Engine) -> None:
            async with followed(engine) as (heard, _):
                await heard.until(lambda: heard.connections)
                assert heard.told == ["connected"]

        with_engine(Way(kind), lambda _: served, test)


def test_k4_a_loss_ends_the_stream_on_the_link_and_it_begins_anew(tmp_path: Path) -> None:
    with serving(MOCK_VLLM, tmp_path / "engine", ranks=1) as served:

        async def test(server: Server, engine: Engine) -> None:
            async with followed(engine) as (heard, _):
                await heard_from(server, engine, heard, 0)
                with server.faults(drop_kv=1, drop_kv_for_ever=True):
                    await prompt_once(server, engine, 0)
                while not heard.lost:
                    await prompt_once(server, engine, 0)
                reason, permanent = heard.lost[0]
                assert "DATA_LOSS" in reason
                assert not permanent
                await heard_from(server, engine, heard, 0)
                assert heard.connections == 2
                assert heard.told.index("lost") < len(heard.told) - 1 - heard.told[::-1].index("connected")

        with_engine(Way(MOCK_VLLM), lambda _: served, test)
