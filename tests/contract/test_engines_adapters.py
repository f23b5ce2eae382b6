"""Adapters behind `ports.Engine`: what engines list, take and refuse, mocks and real servers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enginehouse._proto import vllm_native_pb2 as native
from enginehouse.adapters.engines.engine import Engine
from enginehouse.domain.engine import ProtocolName
from enginehouse.domain.errors import AdapterNotLoaded
from enginehouse.domain.request import EngineRequest, Sampling
from tests.contract.engine_peers import MOCK_NATIVE, MOCK_SGLANG, SGLANG, SGLANG_OLD, VLLM_NATIVE, Kind, Server, serve
from tests.contract.test_engines import Heard, whole, with_engine

KINDS = [MOCK_SGLANG, MOCK_NATIVE, SGLANG, SGLANG_OLD, VLLM_NATIVE]
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
Test = Callable[[Server, Engine], Awaitable[None]]


@contextmanager
def with_adapter(kind: Kind, folder: Path) -> Iterator[Server]:
    """An engine that has the adapter `x` loaded; the native vLLM only once it is told to."""
    adapter = folder / "adapter"
    adapter.mkdir(parents=True)
    env = None
    if kind.mock:
        options = {"tokens_per_second": 0.0, "loras": "x"}
    elif kind.protocol is ProtocolName.SGLANG:
        options = {"tok_s": 0, "lora": f"x={adapter}"}
    else:
        (adapter / "adapter_config.json").write_text('{"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}')
        options, env = {"tok_s": 0}, {"VLLM_RUNTIME_LORA_ALLOWED_PATH_PREFIXES": str(folder)}
    with serve(kind, folder / "engine", env=env, **options) as server:
        yield server


async def loaded(server: Server, engine: Engine, folder: Path) -> None:
    """Have `x` loaded, where the engine did not start with it."""
    if server.kind is VLLM_NATIVE:
        # LoadLora { lora_name = 1, source_path = 2 }, which the frontend itself never calls; here in a look-alike.
        request = native.AbortRequest(request_ids=["x"]).SerializeToString()
        path = str(folder / "adapter").encode()
        request += bytes((0x12, len(path))) + path
        await engine._link.unary("/vllm.Control/LoadLora", request, timeout=10)
        await engine.check()


async def ask(server: Server, engine: Engine, lora: str | None) -> tuple[Heard, str]:
    heard, name = Heard(), uuid.uuid4().hex
    engine.generate(EngineRequest(name, server.prompt, 4, GREEDY, lora=lora), heard)
    return heard, name


@pytest.mark.parametrize("kind", [kind.param() for kind in KINDS])
def test_o14_what_is_listed_is_taken_and_anything_else_is_not_loaded(kind: Kind, tmp_path: Path) -> None:
    with with_adapter(kind, tmp_path) as server:

        async def test(engine: Engine) -> None:
            await loaded(server, engine, tmp_path)
            assert engine.info.loras == ("x",)
            assert await engine.check() == engine.info
            for lora in ("x", None):
                heard, name = await ask(server, engine, lora)
                assert await whole(heard) is None
                assert len(heard.ids) == 4
                line = await asyncio.to_thread(server.wait_event, name, "request")
                told = line.get("lora", line.get("lora_path"))
                assert (told[0] if isinstance(told, list) else told) == lora
            heard, _ = await ask(server, engine, "nope")
            error = await whole(heard)
            assert isinstance(error, AdapterNotLoaded)
            assert (error.status, error.code) == (404, "model_not_found")
            again, _ = await ask(server, engine, "x")
            assert await whole(again) is None
            cached = max(delta.cached_tokens or 0 for delta in again.deltas)
            assert cached > 0, "the same prompt with the same adapter"

        with_engine(server, test)


@pytest.mark.parametrize("kind", [kind.param() for kind in KINDS])
def test_o14_an_engine_without_adapters_lists_none_and_takes_none(kind: Kind, tmp_path: Path) -> None:
    with serve(kind, tmp_path) as server:

        async def test(engine: Engine) -> None:
            assert engine.info.loras == ()
            heard, _ = await ask(server, engine, "x")
            assert isinstance(await whole(heard), AdapterNotLoaded)

        with_engine(server, test)
