"""Watchers of an engine's health hear of every change, also of one that comes while they are told of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from enginehouse._proto import grpc_health_pb2 as health
from enginehouse._proto import sglang_runtime_v1_pb2 as sglang
from enginehouse.mock.engine import Engine
from enginehouse.mock.fronts.health import Health
from enginehouse.mock.fronts.sglang import SglangFront
from enginehouse.mock.journal import Journal
from enginehouse.mock.settings import MockSettings
from enginehouse.mock.vocabulary import load_vocabulary


class Reader:
    """The other end of a watch, in place of grpcio's context: the engine changes while the first news is written."""

    def __init__(self, engine: Engine, healthy: Callable[[bytes], bool]) -> None:
        self._engine = engine
        self._healthy = healthy
        self.heard: asyncio.Queue[bool] = asyncio.Queue()

    async def write(self, data: bytes) -> None:
        first = self.heard.empty()
        self.heard.put_nowait(self._healthy(data))
        if first:
            self._engine.leaving = True
            self._engine.changed()
        await asyncio.sleep(0)


def of_health(data: bytes) -> bool:
    return bool(health.HealthCheckResponse.FromString(data).status == health.HealthCheckResponse.SERVING)


def of_sglang(data: bytes) -> bool:
    return bool(sglang.EngineStateSnapshot.FromString(data).healthy)


@pytest.mark.parametrize("front", ["vllm", "sglang"])
def test_a_change_while_the_last_one_is_written_is_not_lost(front: str) -> None:
    async def main() -> None:
        engine = Engine(MockSettings(), load_vocabulary(None), Journal(""))
        watch: Any
        if front == "vllm":
            reader, watch = Reader(engine, of_health), Health(engine, (), "").watch
        else:
            reader, watch = Reader(engine, of_sglang), SglangFront(engine).watch_state
        watching = asyncio.create_task(watch(b"", reader))
        async with asyncio.timeout(20):
            while reader.heard.qsize() < 2:
                await asyncio.sleep(0)
        assert [reader.heard.get_nowait() for _ in range(2)] == [True, False]
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        engine.close()

    asyncio.run(main())
