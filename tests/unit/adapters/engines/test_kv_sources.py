"""Where KV events are fetched: the dialled host stands in for wildcards and loopback."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginehouse._proto import vllm_native_pb2 as native
from enginehouse.adapters.engines import EngineConnector, KvSourceSettings
from enginehouse.adapters.engines.kv_sources import reachable, with_sources
from enginehouse.domain.engine import LINK, EngineInfo, KvEventSource, ProtocolName, Target
from tests.contract.kv_peers import Heard
from tests.unit.adapters.engines.doubles import UNIMPLEMENTED, FakeLink


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [
        ("tcp://*:5557", "tcp://10.0.0.7:5557"),
        ("tcp://0.0.0.0:5557", "tcp://10.0.0.7:5557"),
        ("tcp://127.0.0.1:5557", "tcp://10.0.0.7:5557"),
        ("tcp://localhost:5557", "tcp://10.0.0.7:5557"),
        ("tcp://[::]:5557", "tcp://10.0.0.7:5557"),
        ("tcp://10.9.9.9:5557", "tcp://10.9.9.9:5557"),
        ("tcp://[fd00::5]:5557", "tcp://[fd00::5]:5557"),
        ("tcp://publisher:5557", "tcp://publisher:5557"),
        ("inproc://cache", None),
        ("ipc:///tmp/x", None),
        ("tcp://*", None),
        ("tcp://*:port", None),
        ("", None),
    ],
)
def test_reachable(endpoint: str, found: str | None) -> None:
    assert reachable(endpoint, "10.0.0.7") == found


def test_d19_an_ipv6_engine_gets_brackets() -> None:
    assert reachable("tcp://*:5557", "fd00::5") == "tcp://[fd00::5]:5557"


@pytest.mark.parametrize(
    ("endpoint", "host", "found"),
    [
        ("tcp://127.0.0.1:5557", "127.0.0.1", "tcp://127.0.0.1:5557"),
        ("tcp://[::1]:5557", "127.0.0.1", "tcp://[::1]:5557"),
        ("tcp://127.0.0.2:5557", "localhost", "tcp://127.0.0.2:5557"),
        ("tcp://localhost:5557", "::1", "tcp://localhost:5557"),
        ("tcp://*:5557", "127.0.0.1", "tcp://127.0.0.1:5557"),
        ("tcp://[::]:5557", "localhost", "tcp://localhost:5557"),
        ("tcp://[::1]:5557", "fd00::5", "tcp://[fd00::5]:5557"),
    ],
)
def test_on_our_own_machine_its_loopback_is_ours(endpoint: str, host: str, found: str) -> None:
    assert reachable(endpoint, host) == found


def info(**facts: Any) -> EngineInfo:
    return EngineInfo(ProtocolName.VLLM_NATIVE, "m", block_size=16, **facts)


TOLD = (KvEventSource(0, "tcp://10.0.0.7:7000", "topic"),)
POOL = KvSourceSettings(kv_events_port=5557, kv_replay_port=6557)
PLAIN = Target("10.0.0.7", 1)
NAMED = Target("10.0.0.7", 1, kv_events_port=5757)


@pytest.mark.parametrize(
    ("told", "target", "settings", "over_link", "found"),
    [
        (TOLD, NAMED, POOL, True, ["tcp://10.0.0.7:5757"]),
        (TOLD, PLAIN, POOL, True, ["tcp://10.0.0.7:7000"]),
        ((), NAMED, POOL, True, ["tcp://10.0.0.7:5757"]),
        ((), PLAIN, POOL, True, ["tcp://10.0.0.7:5557"]),
        ((), PLAIN, KvSourceSettings(), True, [LINK]),
        ((), PLAIN, KvSourceSettings(), False, []),
        ((), PLAIN, POOL, False, ["tcp://10.0.0.7:5557"]),
        (TOLD, PLAIN, KvSourceSettings(), True, ["tcp://10.0.0.7:7000"]),
    ],
)
def test_who_is_believed(
    told: tuple[KvEventSource, ...], target: Target, settings: KvSourceSettings, over_link: bool, found: list[str]
) -> None:
    read = with_sources(info(kv_event_sources=told), target, settings, over_link=over_link)
    assert [source.endpoint for source in read.kv_event_sources] == found
    assert read.model == "m"


@pytest.mark.parametrize("first", [0, 8])
def test_k7_each_rank_has_the_port_of_its_own_number(first: int) -> None:
    read = with_sources(info(ranks=8, first_rank=first), PLAIN, POOL, over_link=False)
    assert [source.rank for source in read.kv_event_sources] == list(range(first, first + 8))
    for source in read.kv_event_sources:
        assert source.endpoint == f"tcp://10.0.0.7:{5557 + source.rank}"
        assert source.replay_endpoint == f"tcp://10.0.0.7:{6557 + source.rank}"
        assert source.block_size == 16


def test_d19_ports_of_an_ipv6_engine() -> None:
    target = Target("fd00::5", 1, kv_events_port=5, kv_replay_port=7)
    (source,) = with_sources(info(), target, KvSourceSettings(), over_link=False).kv_event_sources
    assert (source.endpoint, source.replay_endpoint) == ("tcp://[fd00::5]:5", "tcp://[fd00::5]:7")


def test_no_replay_port_no_replay() -> None:
    (source,) = with_sources(info(), NAMED, POOL, over_link=False).kv_event_sources
    assert source.replay_endpoint is None


def test_the_stream_on_the_link_is_one_for_all_ranks() -> None:
    (source,) = with_sources(info(ranks=4, first_rank=4), PLAIN, KvSourceSettings(), over_link=True).kv_event_sources
    assert source == KvEventSource(4, LINK, block_size=16)


_VLLM = "/vllm.grpc.engine.VllmEngine/"
VLLM_ANSWERS = {
    "/grpc.health.v1.Health/Check": b"\x08\x01",
    _VLLM + "GetServerInfo": vllm.GetServerInfoResponse(data_parallel_size=2, block_size=16).SerializeToString(),
    _VLLM + "GetModelInfo": vllm.GetModelInfoResponse(
        served_model_name="m", is_generation=True, max_context_length=100
    ).SerializeToString(),
    _VLLM + "Generate": b"",
}
_CONTROL = "/vllm.Control/"
NATIVE_ANSWERS = {
    "/grpc.health.v1.Health/Check": b"\x08\x01",
    _CONTROL + "GetServerInfo": native.ServerInfo(
        parallelism=native.Parallelism(data_parallel_size=16, data_parallel_size_local=8, data_parallel_rank=8)
    ).SerializeToString(),
    _CONTROL + "GetModelInfo": native.ModelInfo(served_model_name="m").SerializeToString(),
    _CONTROL + "GetKvEventSources": native.GetKvEventSourcesResponse(
        sources=[native.KvEventSource(endpoint=f"tcp://*:{5565 + place}", transport="zmq") for place in range(8)]
    ).SerializeToString(),
    "/vllm.Inference/GenerateStream": b"",
}


def a_link(answers: dict[str, bytes]) -> FakeLink:
    return FakeLink(answers, {_VLLM + "GetTokenizer": UNIMPLEMENTED})


def probed(answers: dict[str, bytes], target: Target = PLAIN, settings: KvSourceSettings | None = None) -> EngineInfo:
    async def run() -> EngineInfo:
        engine = await EngineConnector(lambda _: a_link(answers), kv_sources=settings).probe(target)
        first = engine.info
        assert await engine.check() == first, "a check must not forget what is said elsewhere"
        return first

    return asyncio.run(run())


def test_vllms_servicer_has_its_stream_unless_ports_are_named() -> None:
    assert [source.endpoint for source in probed(VLLM_ANSWERS).kv_event_sources] == [LINK]
    ports = [source.endpoint for source in probed(VLLM_ANSWERS, settings=POOL).kv_event_sources]
    assert ports == ["tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558"]


def test_k7_native_vllm_tells_its_own_ranks() -> None:
    read = probed(NATIVE_ANSWERS, settings=POOL)
    assert (read.ranks, read.first_rank) == (8, 8)
    assert [(source.rank, source.endpoint) for source in read.kv_event_sources] == [
        (rank, f"tcp://10.0.0.7:{5557 + rank}") for rank in range(8, 16)
    ]


def test_only_vllms_servicer_carries_events_on_its_link() -> None:
    async def run(answers: dict[str, bytes]) -> bool:
        engine = await EngineConnector(lambda _: a_link(answers)).probe(PLAIN)
        subscription = engine.kv_events(Heard())
        if subscription is not None:
            subscription.close()
        return subscription is not None

    assert asyncio.run(run(VLLM_ANSWERS))
    assert not asyncio.run(run(NATIVE_ANSWERS))
