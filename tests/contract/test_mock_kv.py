"""Mock engines tell what their caches do as real ones do: by ZMQ with replays, by the relay, and where that is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import grpc
import msgspec
import pytest
import zmq
import zmq.asyncio
from smg_grpc_proto.generated import common_pb2 as common

from enginehouse._proto import sglang_runtime_v1_pb2 as s
from enginehouse._proto import vllm_native_pb2 as n
from enginehouse.domain.engine import ProtocolName
from enginehouse.mock import MockEngine, MockSettings
from enginehouse.mock.kv.news import Cleared, Stored
from tests.contract.test_mock import ALL, CONTROL, PROMPT, REQUESTS, Peer, S, peer, status
from tests.support import PYTHON, Start, free_ports, port_open
from tests.unit.adapters.engines.doubles import golden

SUBSCRIBE = "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents"
FLUSH = "/vllm.grpc.engine.VllmEngine/FlushCache"
KV = {"kv_events_port": 0, "kv_replay_port": 0, "block_size": 4}
END = 2**64 - 1


@contextlib.asynccontextmanager
async def sockets() -> AsyncIterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    try:
        yield context
    finally:
        context.destroy(0)


class Subscriber:
    """A SUB socket that is known to be subscribed."""

    def __init__(self, context: zmq.asyncio.Context, endpoint: str, topic: str = "") -> None:
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.subscribe(topic)
        self.socket.connect(endpoint)

    async def batch(self) -> tuple[int, Any]:
        _, number, payload = await asyncio.wait_for(self.socket.recv_multipart(), 20)
        return int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)

    async def ready(self, one: Peer) -> list[tuple[int, Any]]:
        """Ask until something is heard; returns what was."""
        for number in range(1000):
            await one.generate(rid=f"warm{number}", prompt=[300 + number] * 4, max_tokens=1)
            if await self.socket.poll(20):
                return [await self.batch()]
        raise AssertionError("nothing is heard")


async def replay(context: zmq.asyncio.Context, endpoint: str, start: int, *, slow: bool = False) -> list[list[bytes]]:
    """All replies to one request, the end marker with them. slow: none is buffered on this side before it is read."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RCVHWM, int(slow))
    if slow:
        socket.setsockopt(zmq.RCVBUF, 4096)
    socket.connect(endpoint)
    await socket.send_multipart([b"", start.to_bytes(8, "big")])
    replies = [await asyncio.wait_for(socket.recv_multipart(), 20)]
    while int.from_bytes(replies[-1][-2], "big") != END:
        replies.append(await asyncio.wait_for(socket.recv_multipart(), 20))
    socket.close(0)
    return replies


def numbers(replies: list[list[bytes]]) -> list[int]:
    return [int.from_bytes(frames[-2], "big") for frames in replies]


@pytest.mark.parametrize("protocol", ALL)
def test_live_batches_are_three_frames_and_replays_four(protocol: ProtocolName) -> None:
    async def main() -> None:
        async with peer(protocol, kv_topic="kv@me", **KV) as one, sockets() as context:
            (live,) = one.engine.kv_events_endpoints
            (past,) = one.engine.kv_replay_endpoints
            subscriber = Subscriber(context, live, "kv@")
            ((last, _),) = await subscriber.ready(one)
            await one.generate(prompt=PROMPT[:9], max_tokens=4)
            first, told = await subscriber.batch()
            assert first == last + 1
            timestamp, events, rank = told
            assert (type(timestamp), rank) == (float, 0)
            assert [event["type"] for event in events] == ["BlockStored"]
            assert events[0]["token_ids"] == PROMPT[:8]
            assert events[0]["block_size"] == 4
            assert (await subscriber.batch())[0] == first + 1  # 13 tokens, the last not fed back: one block more
            replies = await replay(context, past, first)
            assert numbers(replies) == [first, first + 1, END]
            assert [frames[:2] for frames in replies] == [[b"", b"kv@me"], [b"", b"kv@me"], [b"", b""]]
            assert msgspec.msgpack.decode(replies[0][-1]) == told
            assert replies[-1][-1] == b""
            assert numbers(await replay(context, past, 10_000)) == [END]

    asyncio.run(main())


def test_old_engines_send_arrays_and_replays_of_three_frames() -> None:
    async def main() -> None:
        async with peer(ProtocolName.SGLANG, kv_events_old=True, **KV) as one, sockets() as context:
            await one.generate(prompt=PROMPT[:8], max_tokens=1)
            batch, end = await replay(context, one.engine.kv_replay_endpoints[0], 0)
            assert [len(batch), len(end)] == [3, 3]
            assert msgspec.msgpack.decode(batch[-1])[1][0][0] == "BlockStored"

    asyncio.run(main())


async def generate_on(one: Peer, rank: int, prompt: list[int]) -> None:
    path, request, _ = REQUESTS[ProtocolName.VLLM](prompt=prompt, max_tokens=1)
    request.data_parallel_rank = rank
    _ = [data async for data in one.stream(path, request)]


def test_k7_each_rank_has_its_own_port_and_numbers() -> None:
    async def main() -> None:
        async with peer(ProtocolName.VLLM, ranks=3, **KV) as one, sockets() as context:
            for position, rank in enumerate((2, 2, 0)):
                await generate_on(one, rank, PROMPT[position : position + 8])
            found = [await replay(context, endpoint, 0) for endpoint in one.engine.kv_replay_endpoints]
            assert [numbers(replies) for replies in found] == [[0, END], [END], [0, 1, END]]
            ranks = [[msgspec.msgpack.decode(reply[-1])[2] for reply in replies[:-1]] for replies in found]
            assert ranks == [[0], [], [2, 2]]
            ports = [int(endpoint.rsplit(":", 1)[1]) for endpoint in one.engine.kv_events_endpoints]
            assert ports == [ports[0], ports[0] + 1, ports[0] + 2]

    asyncio.run(main())


def test_a_long_replay_comes_whole() -> None:
    """More replies than a socket buffers by default, and a peer that reads none of them before all were sent."""

    async def main() -> None:
        async with peer(ProtocolName.VLLM, **KV) as one, sockets() as context:
            kv = one.engine.engine.kv
            assert kv is not None
            long = [70_000] * 800  # so that all of it is more than the system's buffers take
            for number in range(5000):
                kv.publish(0, [Stored([number.to_bytes(16, "big")], None, long)])
            replies = await replay(context, one.engine.kv_replay_endpoints[0], 0, slow=True)
            assert numbers(replies) == [*range(5000), END]

    asyncio.run(main())


def test_replays_that_are_bent() -> None:
    async def main() -> None:
        async with peer(ProtocolName.VLLM, **KV) as one, sockets() as context:
            for number in range(4):
                await one.generate(rid=str(number), prompt=PROMPT[number : number + 4], max_tokens=1)
            (endpoint,) = one.engine.kv_replay_endpoints
            socket = context.socket(zmq.DEALER)
            socket.connect(endpoint)
            for number, nonsense in enumerate(([b""], [b"", b"short"], [b"", bytes(8), b""])):
                await socket.send_multipart(nonsense)
                await socket.send_multipart([b"", number.to_bytes(8, "big")])
                # Questions are taken in order: only the good one was answered.
                replies = [await asyncio.wait_for(socket.recv_multipart(), 20) for _ in range(5 - number)]
                assert numbers(replies) == [*range(number, 4), END]
            one.engine.set_faults(kv_replay_endless=True)
            await socket.send_multipart([b"", bytes(8)])
            replies = [await asyncio.wait_for(socket.recv_multipart(), 20) for _ in range(4)]
            one.engine.set_faults(kv_replay_mute=True, kv_replay_endless=False)
            await socket.send_multipart([b"", bytes(8)])
            assert not await socket.poll(100)  # as long as a real engine's replay takes when it is idle
            one.engine.set_faults(kv_replay_mute=False, kv_buffer_batches=2)
            assert numbers(await replay(context, endpoint, 0)) == [2, 3, END]

    asyncio.run(main())


@pytest.mark.parametrize("protocol", ALL)
def test_without_events_nothing_is_announced(protocol: ProtocolName) -> None:
    async def main() -> None:
        async with peer(protocol) as one:
            assert one.engine.kv_events_endpoints == one.engine.kv_replay_endpoints == []
            if protocol is ProtocolName.VLLM_NATIVE:
                assert not (await native_sources(one)).sources
            elif protocol is ProtocolName.SGLANG:
                info = await server_info(one)
                assert (info["kv_events_config"], info["kv_events"], info["kv_event_sources"]) == (None, None, [])
            else:
                code, _ = await status(one.stream(SUBSCRIBE, common.SubscribeKvEventsRequest()))
                assert code is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(main())


async def server_info(one: Peer) -> dict[str, Any]:
    answer = await one.unary(S + "GetServerInfo", s.GetServerInfoRequest(), s.GetServerInfoResponse)
    info = json.loads(answer.json_info)
    assert isinstance(info, dict)
    return info


async def native_sources(one: Peer) -> Any:
    request = n.GetKvEventSourcesRequest()
    return await one.unary(CONTROL + "GetKvEventSources", request, n.GetKvEventSourcesResponse)


def test_sglang_announces_in_three_places() -> None:
    async def main() -> None:
        async with peer(ProtocolName.SGLANG, ranks=2, info_block_size=64, kv_topic="t", **KV) as one:
            info = await server_info(one)
            ports, pasts = (
                [int(endpoint.rsplit(":", 1)[1]) for endpoint in endpoints]
                for endpoints in (one.engine.kv_events_endpoints, one.engine.kv_replay_endpoints)
            )
            assert json.loads(info["kv_events_config"]) == {
                "publisher": "zmq",
                "endpoint": f"tcp://*:{ports[0]}",
                "topic": "t",
                "replay_endpoint": f"tcp://*:{pasts[0]}",
            }
            assert info["kv_events"] == {
                "publisher": "zmq",
                "endpoint_host": "*",
                "endpoint_port_base": ports[0],
                "topic": "t",
                "block_size": 64,
                "dp_size": 2,
                "replay_endpoint_port_base": pasts[0],
            }
            assert info["kv_event_sources"] == [
                {
                    "dp_rank": rank,
                    "endpoint": f"tcp://127.0.0.1:{ports[rank]}",
                    "topic": "t",
                    "block_size": 64,
                    "replay_endpoint": f"tcp://127.0.0.1:{pasts[rank]}",
                }
                for rank in range(2)
            ]
            assert info["page_size"] == 64
        async with peer(ProtocolName.SGLANG, kv_events_port=0, kv_events_old=True) as one:
            info = await server_info(one)
            assert set(json.loads(info["kv_events_config"])) == {"publisher", "endpoint", "topic"}
            assert not {"kv_events", "kv_event_sources"} & set(info)

    asyncio.run(main())


def test_native_announces_a_source_for_each_rank() -> None:
    """As the recorded answer of 0.33.0 has it: wildcard hosts, the rank's ports, msgpack by schema 1."""

    async def main() -> None:
        async with peer(ProtocolName.VLLM_NATIVE, ranks=2, **KV) as one:
            sources = (await native_sources(one)).sources
            for rank, source in enumerate(sources):
                assert source.endpoint == one.engine.kv_events_endpoints[rank].replace("127.0.0.1", "*")
                assert source.replay_endpoint == one.engine.kv_replay_endpoints[rank].replace("127.0.0.1", "*")
                assert (source.transport, source.encoding, source.schema_version) == ("zmq", "msgpack", 1)
                assert (source.data_parallel_rank, source.buffer_steps) == (rank, 10_000)
            assert len(sources) == 2
            assert {field.name for field, _ in recorded_source().ListFields()} <= {
                field.name for field, _ in sources[1].ListFields()
            }

    asyncio.run(main())


def recorded_source() -> Any:
    data = "".join(golden("vllm-native-0.33.0")["GetKvEventSources"]["responses_hex"])
    (source,) = n.GetKvEventSourcesResponse.FromString(bytes.fromhex(data)).sources
    return source


async def subscribed(one: Peer) -> Any:
    """An open subscription. Its headers say that it is one."""
    stream = one.stream(SUBSCRIBE, common.SubscribeKvEventsRequest())
    await stream.call.initial_metadata()
    return stream


async def relayed(stream: Any) -> Any:
    """The next message that is not the load alone."""
    while True:
        message = common.KvEventBatch.FromString(await asyncio.wait_for(stream.read(), 20))
        if not message.load.load_only:
            return message


def test_the_relay_tells_the_load_before_anything_happened_to_who_asks_for_it() -> None:
    """Else a subscriber of an idle engine hears nothing, and a proxy between them may not pass on headers alone."""

    async def main() -> None:
        async with peer(ProtocolName.VLLM, **KV) as one:
            request = common.SubscribeKvEventsRequest(load_records_before_first_batch=True)
            first = common.KvEventBatch.FromString(await asyncio.wait_for(one.stream(SUBSCRIBE, request).read(), 20))
            assert (first.load.load_only, first.sequence_number, len(first.events)) == (True, 0, 0)

    asyncio.run(main())


def test_the_relay_tells_what_zmq_tells() -> None:
    async def main() -> None:
        async with peer(ProtocolName.VLLM, kv_blocks=2, **KV) as one, sockets() as context:
            await one.generate(prompt=PROMPT[20:28], max_tokens=1)
            stream = await subscribed(one)
            await one.generate(prompt=PROMPT[:9], max_tokens=1)
            message = await relayed(stream)
            (_, reply, _) = await replay(context, one.engine.kv_replay_endpoints[0], 0)
            timestamp, events, rank = msgspec.msgpack.decode(reply[-1])
            assert (message.sequence_number, message.timestamp, message.dp_rank) == (1, timestamp, rank)
            assert [event.event_id for event in message.events] == [1, 2, 3]
            *removed, stored = events
            assert [event.removed.block_hashes[0] % 2**64 for event in message.events[:2]] == [
                event["block_hashes"][0] for event in removed
            ]
            last = message.events[2].stored
            assert [block.block_hash % 2**64 for block in last.blocks] == stored["block_hashes"]
            assert [list(block.token_ids) for block in last.blocks] == [PROMPT[:4], PROMPT[4:8]]
            assert {block.block_size for block in last.blocks} == {4}
            assert not last.HasField("parent_block_hash")
            assert (last.tier, last.locality, last.medium, last.group_idx, last.kv_cache_spec_kind) == (
                common.KV_CACHE_TIER_DEVICE,
                common.KV_CACHE_LOCALITY_LOCAL,
                "GPU",
                0,
                "full_attention",
            )
            alone = common.KvEventBatch.FromString(await asyncio.wait_for(stream.read(), 20))
            assert (alone.load.load_only, alone.sequence_number, len(alone.events)) == (True, 1, 0)
            assert alone.load.sample > message.load.sample

    asyncio.run(main())


def test_a_reset_is_told_with_the_next_step_and_at_its_head() -> None:
    async def main() -> None:
        async with peer(ProtocolName.VLLM, **KV) as one, sockets() as context:
            await one.generate(prompt=PROMPT[:8], max_tokens=1)
            await one.unary(FLUSH, common.FlushCacheRequest(), common.FlushCacheResponse)
            (endpoint,) = one.engine.kv_replay_endpoints
            assert numbers(await replay(context, endpoint, 1)) == [END]
            await one.generate(prompt=PROMPT[:8], max_tokens=1)
            reply, _ = await replay(context, endpoint, 1)
            events = msgspec.msgpack.decode(reply[-1])[1]
            assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored"]

    asyncio.run(main())


def test_the_relay_refuses_history() -> None:
    async def main() -> None:
        async with peer(ProtocolName.VLLM, **KV) as one:
            request = common.SubscribeKvEventsRequest(start_sequence_number=1)
            code, _ = await status(one.stream(SUBSCRIBE, request))
            assert code is grpc.StatusCode.OUT_OF_RANGE

    asyncio.run(main())


@pytest.mark.parametrize(
    ("faults", "mended"),
    [
        ({"kv_drop_batches": 1}, True),
        ({"kv_drop_batches": 1, "kv_drop_for_ever": True}, False),
        ({"kv_restarts": 1}, False),
        ({"kv_garbage_batches": 1}, True),
    ],
)
def test_k2_k4_the_relay_ends_when_batches_are_lost_for_good(faults: dict[str, Any], mended: bool) -> None:
    async def main() -> None:
        async with peer(ProtocolName.VLLM, **KV) as one:
            stream = await subscribed(one)
            await one.generate(rid="a", prompt=PROMPT[:4], max_tokens=1)
            assert (await relayed(stream)).sequence_number == 0
            one.engine.set_faults(**faults)
            for number in range(1, 3):
                await one.generate(rid=str(number), prompt=PROMPT[number * 4 : number * 4 + 4], max_tokens=1)
            if mended:
                batches = [await relayed(stream) for _ in range(2)]
                assert [batch.sequence_number for batch in batches] == [1, 2]
                assert [len(batch.events) for batch in batches] == [0 if "kv_garbage_batches" in faults else 1, 1]
            else:
                code, _ = await status(stream)
                assert code is grpc.StatusCode.DATA_LOSS
            assert await until_gone(one)

    asyncio.run(main())


async def until_gone(one: Peer) -> bool:
    """A subscriber that left is told nothing more."""
    kv = one.engine.engine.kv
    assert kv is not None
    await one.channel.close()
    async with asyncio.timeout(20):
        while kv.listeners:
            await asyncio.sleep(0.005)
    return True


def test_announced_and_not_there() -> None:
    async def main() -> None:
        port = free_ports(1)
        settings = MockSettings(kv_events_port=port, kv_unreachable=True, tokens_per_second=0)
        async with MockEngine(settings) as engine:
            assert engine.kv_events_endpoints == [f"tcp://127.0.0.1:{port}"]
            assert not port_open(port)
            assert engine.engine.kv is not None
            engine.engine.kv.publish(0, [Cleared()])

    asyncio.run(main())


def test_a_taken_port_is_told_and_a_stopped_engine_gives_its_own_back() -> None:
    async def main() -> None:
        port = free_ports(1)
        async with MockEngine(MockSettings(kv_events_port=port)):
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port} for KV events"):
                await MockEngine(MockSettings(kv_events_port=port)).__aenter__()
        async with MockEngine(MockSettings(kv_events_port=port, kv_replay_port=0)):
            assert port_open(port)

    asyncio.run(main())


def test_the_line_before_the_last_tells_the_ports(start: Start) -> None:
    command = [PYTHON, "-m", "enginehouse", "mock", "--kv-events-port", "0", "--kv-replay-port", "0"]
    child = start(command)
    child.wait_line("on grpc://")
    live, past = re.findall(r"tcp://127.0.0.1:(\d+)", child.wait_line("KV events"))
    assert port_open(int(live))
    assert port_open(int(past))
