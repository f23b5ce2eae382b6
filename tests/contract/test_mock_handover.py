"""Pairs of mock engines that pass KV caches on: what each front says, and what both engines hold then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from enginehouse._proto import sglang_runtime_v1_pb2 as s
from enginehouse._proto import vllm_native_pb2 as n
from enginehouse.domain.engine import ProtocolName, Role
from enginehouse.mock.journal import Journal
from enginehouse.mock.kv.news import Stored
from tests.contract.test_mock import PROMPT, REQUESTS, Peer, peer, status
from tests.support import free_port

VLLM = [ProtocolName.VLLM, ProtocolName.VLLM_NATIVE]
KEEP = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class Told(Journal):
    """Keeps what the engine tells, and lets a test wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self._more = asyncio.Event()

    def write(self, event: str, **what: object) -> None:
        self.lines.append({"event": event, **what})
        self._more.set()

    def seen(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    async def wait(self, event: str, number: int = 1) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while len(self.seen(event)) < number:
                self._more.clear()
                await self._more.wait()
        return self.seen(event)[number - 1]


@dataclass
class Pair:
    """A prefill and a decode engine with what they tell."""

    prefill: Peer
    decode: Peer
    gave: Told
    took: Told

    def answer(self, length: int = 6) -> list[int]:
        return self.decode.engine.answer(PROMPT, length)


@asynccontextmanager
async def pair(
    protocol: ProtocolName, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **both: Any
) -> AsyncIterator[Pair]:
    both = {"kv_events_port": 0, **both}
    async with (
        peer(protocol, **{"role": Role.PREFILL, **both, **(prefill or {})}) as first,
        peer(protocol, **{"role": Role.DECODE, **both, **(decode or {})}) as second,
    ):
        gave, took = Told(), Told()
        first.engine.engine.journal, second.engine.engine.journal = gave, took
        yield Pair(first, second, gave, took)


Test = Callable[[Pair], Awaitable[None]]


def between(protocol: ProtocolName, **settings: Any) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def main() -> None:
            async with pair(protocol, **settings) as both, asyncio.timeout(50):
                await test(both)

        asyncio.run(main())

    return run


# SGLang


def meeting(both: Pair, room: int, **more: Any) -> s.DisaggregatedParams:
    port = both.prefill.engine.handover_port
    return s.DisaggregatedParams(**{"bootstrap_host": "127.0.0.1", "bootstrap_port": port, **more}, bootstrap_room=room)


def leg(one: Peer, met: s.DisaggregatedParams | None, rid: str = "r", *, rank: int | None = None, **more: Any) -> Any:
    path, request, _ = REQUESTS[ProtocolName.SGLANG](rid=rid, **more)
    if rank is not None:
        request.routed_dp_rank = rank
    if met is not None:
        request.disaggregated_params.CopyFrom(met)
    return one.stream(path, request)


def legs(both: Pair, room: int, **more: Any) -> tuple[Any, Any]:
    met = meeting(both, room)
    return leg(both.prefill, met, max_tokens=1, **more), leg(both.decode, met, max_tokens=6, **more)


async def messages(call: Any) -> list[s.GenerateResponse]:
    return [s.GenerateResponse.FromString(data) async for data in call]


def reason(message: s.GenerateResponse) -> dict[str, Any]:
    assert message.finished
    found: dict[str, Any] = json.loads(message.meta_info["finish_reason"])
    return found


async def aborted(call: Any, words: str) -> None:
    """The leg ends with SGLang's abort message and no tokens."""
    (message,) = await messages(call)
    assert list(message.output_ids) == []
    assert reason(message)["type"] == "abort"
    assert reason(message)["status_code"] == 500
    assert words in reason(message)["message"]


@pytest.mark.parametrize("room", [1, 2, 2**63 - 25, 2**63 - 1])
def test_sglang_legs_meet_on_the_rank_that_the_room_names(room: int) -> None:
    @between(ProtocolName.SGLANG, ranks=2)
    async def _(both: Pair) -> None:
        prefill, decode = legs(both, room)
        answered, asked = await asyncio.gather(messages(decode), messages(prefill))
        assert list(answered[-1].output_ids) == both.answer()
        assert list(asked[-1].output_ids) == both.answer(1)
        assert reason(asked[-1])["type"] == reason(answered[-1])["type"] == "length"
        assert asked[-1].meta_info["dp_rank"] == str(room % 2)
        assert both.gave.seen("leg")[0] | {"kind": "offer", "room": room, "role": "prefill"} == both.gave.seen("leg")[0]
        assert both.took.seen("leg")[0] | {"kind": "meet", "room": room, "role": "decode"} == both.took.seen("leg")[0]
        for told in (both.gave, both.took):
            assert [line["event"] for line in told.lines if line["event"] in ("met", "passed", "end")] == [
                "met",
                "passed",
                "end",
            ]


def test_sglang_a_decode_leg_may_come_long_before_its_prefill_leg() -> None:
    @between(ProtocolName.SGLANG)
    async def _(both: Pair) -> None:
        met = meeting(both, 7)
        decode = asyncio.ensure_future(messages(leg(both.decode, met)))
        await both.took.wait("leg")
        await messages(leg(both.prefill, met, max_tokens=1))
        assert list((await decode)[-1].output_ids) == both.answer(4)


def test_sglang_many_pairs_at_once_do_not_mix() -> None:
    @between(ProtocolName.SGLANG, ranks=3, max_running=4)
    async def _(both: Pair) -> None:
        async def one(number: int) -> None:
            prompt = [300 + number, *PROMPT]
            prefill, decode = legs(both, 1000 + number, rid=f"<{number}>", prompt=prompt)
            answered, _ = await asyncio.gather(messages(decode), messages(prefill))
            assert list(answered[-1].output_ids) == both.decode.engine.answer(prompt, 6)

        await asyncio.gather(*map(one, range(40)))


def test_both_engines_hold_the_prompt_and_tell_of_it_and_decode_counts_what_prefill_had() -> None:
    @between(ProtocolName.SGLANG)
    async def _(both: Pair) -> None:
        batches: dict[str, list[Any]] = {"prefill": [], "decode": []}
        for name, one in (("prefill", both.prefill), ("decode", both.decode)):
            kv = one.engine.engine.kv
            assert kv is not None
            kv.listeners.add(lambda rank, batch, name=name: batches[name].append(batch))
        for room, cached in ((1, 0), (2, 32)):
            prefill, decode = legs(both, room, rid=str(room))
            answered, asked = await asyncio.gather(messages(decode), messages(prefill))
            assert asked[-1].meta_info["cached_tokens"] == answered[-1].meta_info["cached_tokens"] == str(cached)
        for found in batches.values():
            stored = [news for batch in found for news in batch.news]
            assert all(isinstance(news, Stored) for news in stored)
            assert sum(len(news.keys) for news in stored) == len(PROMPT) // 16

    def simulated(one: Peer) -> int:
        return len(one.engine.engine.simulator.ranks[0].cache)

    @between(ProtocolName.SGLANG)
    async def _caches(both: Pair) -> None:
        prefill, decode = legs(both, 5)
        await asyncio.gather(messages(decode), messages(prefill))
        assert simulated(both.prefill) == simulated(both.decode) == 2


def test_sglang_a_request_without_a_room_is_refused_by_both_roles() -> None:
    @between(ProtocolName.SGLANG)
    async def _(both: Pair) -> None:
        for one in (both.prefill, both.decode):
            (message,) = await messages(leg(one, None))
            assert reason(message)["status_code"] == 400
            assert "without bootstrap room id" in reason(message)["message"]


@pytest.mark.parametrize("wrong", ["room", "zero", "port", "rank", "prompt"])
def test_p7_sglang_legs_that_do_not_meet_end_as_aborts_after_the_bootstrap_timeout(wrong: str) -> None:
    @between(ProtocolName.SGLANG, ranks=2, bootstrap_timeout=0.3)
    async def _(both: Pair) -> None:
        mine, other = meeting(both, 4), meeting(both, 4)
        match wrong:
            case "room":
                other = meeting(both, 6)
            case "zero":
                mine = other = meeting(both, 0)
            case "port":
                other = meeting(both, 4, bootstrap_port=free_port())
        prefill = leg(
            both.prefill,
            mine,
            max_tokens=1,
            prompt=PROMPT[1:] if wrong == "prompt" else PROMPT,
            rank=1 if wrong == "rank" else None,
        )
        decode = leg(both.decode, other)
        await asyncio.gather(aborted(prefill, "Prefill bootstrap failed"), aborted(decode, "Decode handshake failed"))
        assert both.gave.seen("met") == both.took.seen("met") == []
        assert len(both.gave.seen("leg_failed")) == len(both.took.seen("leg_failed")) == 1


def test_sglang_a_room_that_is_in_use_is_refused() -> None:
    @between(ProtocolName.SGLANG)
    async def _(both: Pair) -> None:
        met = meeting(both, 3)
        first = leg(both.prefill, met, "a")
        await both.gave.wait("leg")
        await aborted(leg(both.prefill, met, "b"), "in use")
        first.cancel()


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("stage", ["waiting", "passing"])
def test_p1_sglang_the_end_of_one_leg_at_each_stage(side: str, stage: str) -> None:
    """Waiting, the other one goes on waiting; once they have met it fails."""

    @between(ProtocolName.SGLANG, prefill={"handover_hold": True})
    async def _(both: Pair) -> None:
        met = meeting(both, 9)
        one, other = (both.prefill, both.decode) if side == "prefill" else (both.decode, both.prefill)
        told, others = (both.gave, both.took) if side == "prefill" else (both.took, both.gave)
        call = leg(one, met)
        if stage == "waiting":
            await told.wait("leg")
            call.cancel()
            await told.wait("end")
            late = leg(other, met)
            await others.wait("leg")
            assert others.seen("met") == []
            late.cancel()
        else:
            rest = asyncio.ensure_future(messages(leg(other, met)))
            await told.wait("met")
            await others.wait("met")
            call.cancel()
            (message,) = await rest
            assert "transfer failed" in reason(message)["message"]
        await others.wait("end")
        assert not one.engine.engine.streams


@pytest.mark.parametrize("dies", ["prefill", "decode"])
def test_p1_sglang_a_leg_dies_when_they_have_met(dies: str) -> None:
    other = "decode" if dies == "prefill" else "prefill"

    @between(ProtocolName.SGLANG, **{dies: {"handover_dies": True}, other: {"handover_hold": True}})
    async def _(both: Pair) -> None:
        prefill, decode = legs(both, 11)
        victim, survivor = (prefill, decode) if dies == "prefill" else (decode, prefill)
        code, _ = await status(victim)
        assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        await aborted(survivor, "transfer failed")


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("fault", "prefill_words", "decode_words"),
    [
        ("handover_mute", "Prefill bootstrap failed", "Decode handshake failed"),
        ("handover_wrong_room", "Prefill bootstrap failed", "Decode handshake failed"),
        ("handover_fails", "Prefill transfer failed", "Decode transfer failed"),
    ],
)
def test_p7_sglang_faults(side: str, fault: str, prefill_words: str, decode_words: str) -> None:
    @between(ProtocolName.SGLANG, bootstrap_timeout=0.3, **{side: {fault: True}})
    async def _(both: Pair) -> None:
        prefill, decode = legs(both, 13)
        if fault == "handover_fails" and side == "decode":
            await asyncio.gather(messages(prefill), aborted(decode, decode_words))
        else:
            await asyncio.gather(aborted(prefill, prefill_words), aborted(decode, decode_words))


def test_faults_end_while_a_leg_waits() -> None:
    @between(ProtocolName.SGLANG, prefill={"handover_mute": True}, decode={"handover_mute": True})
    async def _(both: Pair) -> None:
        prefill, decode = (asyncio.ensure_future(messages(call)) for call in legs(both, 15))
        await both.gave.wait("leg")
        await both.took.wait("leg")
        both.decode.engine.set_faults(handover_mute=False)
        await both.gave.wait("knock")
        both.prefill.engine.set_faults(handover_mute=False, handover_hold=True)
        await both.took.wait("met")
        assert not decode.done()
        both.prefill.engine.set_faults(handover_hold=False)
        assert list((await decode)[-1].output_ids) == both.answer()
        await prefill


def test_a_transfer_takes_its_time() -> None:
    @between(ProtocolName.SGLANG, transfer_tokens_per_second=0.001)
    async def _(both: Pair) -> None:
        prefill, decode = (asyncio.ensure_future(messages(call)) for call in legs(both, 17))
        await both.took.wait("met")
        async with asyncio.timeout(20):
            while not both.prefill.engine.engine.simulator.ranks[0].passing:
                await asyncio.sleep(0.005)
        assert not both.gave.seen("passed")
        for call in (prefill, decode):
            call.cancel()


def test_sglang_prefill_tells_its_bootstrap_port() -> None:
    @between(ProtocolName.SGLANG)
    async def _(both: Pair) -> None:
        info = await both.prefill.unary(
            "/sglang.runtime.v1.SglangService/GetServerInfo", s.GetServerInfoRequest(), s.GetServerInfoResponse
        )
        assert json.loads(info.json_info)["disaggregation_bootstrap_port"] == both.prefill.engine.handover_port > 0
        assert both.decode.engine.handover_port == 0


# vLLM


def part(one: Peer, params: dict[str, Any], **more: Any) -> Any:
    """Ask a vLLM engine with these `kv_transfer_params`."""
    path, request, answer = REQUESTS[one.engine.settings.protocol](**more)
    if one.engine.settings.protocol is ProtocolName.VLLM:
        request.kv_transfer_params_json = json.dumps(params)
    else:
        made = Struct()
        made.update(params)
        request.kv.kv_transfer_params = made.SerializeToString()
    return one.all(path, request, answer)


def told(answered: list[Any]) -> dict[str, Any] | None:
    """The parameters that an answer ends with."""
    last = answered[-1]
    if isinstance(last, n.GenerateResponse):
        data = last.output.finish_info.kv_transfer_params
        return json_format.MessageToDict(Struct.FromString(data)) if data else None
    text = last.complete.kv_transfer_params_json
    return json.loads(text) if text else None


def ids(answered: list[Any]) -> list[int]:
    if isinstance(answered[-1], n.GenerateResponse):
        return [token for message in answered for token in message.output.token_ids]
    return [token for message in answered for token in message.chunk.token_ids]


def cached(answered: list[Any]) -> int:
    last = answered[-1]
    return int(
        last.output.finish_info.cached_tokens if isinstance(last, n.GenerateResponse) else last.complete.cached_tokens
    )


async def kept(both: Pair, rid: str = "p") -> dict[str, Any]:
    params = told(await part(both.prefill, KEEP, rid=rid, max_tokens=1))
    assert params is not None
    return params


async def failed(both: Pair, params: dict[str, Any], **more: Any) -> None:
    """The decode leg ends as a load failure, without a token."""
    if both.decode.engine.settings.protocol is ProtocolName.VLLM_NATIVE:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await part(both.decode, params, **more)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
    else:
        answered = await part(both.decode, params, **more)
        assert ids(answered) == []
        assert answered[-1].complete.finish_reason == "error"
    assert both.took.seen("leg_failed")


@pytest.mark.parametrize("protocol", VLLM)
def test_vllm_what_prefill_keeps_decode_fetches(protocol: ProtocolName) -> None:
    @between(protocol)
    async def _(both: Pair) -> None:
        params = await kept(both)
        assert set(params) == {
            "do_remote_prefill",
            "do_remote_decode",
            "remote_block_ids",
            "remote_engine_id",
            "remote_request_id",
            "remote_host",
            "remote_port",
            "tp_size",
            "dcp_size",
            "pp_size",
            "remote_num_tokens",
            "remote_blocks_expiry_time",
            "remote_registration_generation",
            "transfer_mode",
        }
        assert params["remote_port"] == both.prefill.engine.handover_port
        assert both.gave.seen("lease_released") == []
        answered = await part(both.decode, params, max_tokens=6)
        assert ids(answered) == both.answer()
        assert cached(answered) == len(PROMPT) - 1
        assert told(answered) is None
        assert (await both.gave.wait("lease_released"))["rid"] == "p"
        assert len(both.decode.engine.engine.simulator.ranks[0].cache) == 2
        fetched = both.took.seen("leg")[0]["params"]
        assert fetched["remote_request_id"] == params["remote_request_id"]
        assert type(fetched["remote_port"]) is int
        assert fetched["remote_block_ids"] == [[1, 2, 3]]


@pytest.mark.parametrize("protocol", VLLM)
def test_vllm_requests_without_parameters_run_whole_on_either(protocol: ProtocolName) -> None:
    @between(protocol)
    async def _(both: Pair) -> None:
        for one in (both.prefill, both.decode):
            answered = await part(one, {}, max_tokens=6)
            assert (ids(answered), told(answered)) == (both.answer(), None)


@pytest.mark.parametrize("protocol", VLLM)
def test_vllm_without_a_connector_parameters_mean_nothing(protocol: ProtocolName) -> None:
    @between(protocol, prefill={"role": Role.AGGREGATED}, decode={"role": Role.AGGREGATED, "side_channel_port": 0})
    async def _(both: Pair) -> None:
        assert told(await part(both.prefill, KEEP, max_tokens=1)) is None
        assert told(await part(both.decode, KEEP, max_tokens=1)) is not None


@pytest.mark.parametrize("protocol", VLLM)
@pytest.mark.parametrize("what", ["again", "expired", "other", "prompt", "nobody", "incomplete", "nothing"])
def test_p7_vllm_what_is_not_there_is_a_load_failure(protocol: ProtocolName, what: str) -> None:
    @between(protocol, lease=0.0 if what == "expired" else 30.0)
    async def _(both: Pair) -> None:
        params = await kept(both)
        more: dict[str, Any] = {}
        match what:
            case "again":
                await part(both.decode, params)
            case "expired":
                await both.gave.wait("lease_expired")
            case "other":
                params |= {"remote_engine_id": "another"}
            case "prompt":
                more = {"prompt": PROMPT[1:]}
            case "nobody":
                params |= {"remote_port": free_port()}
            case "incomplete":
                del params["remote_request_id"]
            case "nothing":
                params |= {"remote_block_ids": []}
        await failed(both, params, rid="d", **more)


@pytest.mark.parametrize("protocol", VLLM)
def test_p7_vllm_faults(protocol: ProtocolName) -> None:
    @between(protocol)
    async def _(both: Pair) -> None:
        prefill, decode = both.prefill.engine, both.decode.engine
        prefill.set_faults(handover_keeps_nothing=True)
        assert told(await part(both.prefill, KEEP, max_tokens=1)) is None
        prefill.set_faults(handover_keeps_nothing=False, handover_expired=True)
        await failed(both, await kept(both), rid="expired")
        prefill.set_faults(handover_expired=False, handover_fails=True)
        await failed(both, await kept(both), rid="fails")
        prefill.set_faults(handover_fails=False)
        decode.set_faults(handover_fails=True)
        await failed(both, await kept(both), rid="decode fails")
        assert len(both.took.seen("leg_failed")) == 3


@pytest.mark.parametrize("protocol", VLLM)
def test_vllm_what_is_being_fetched_is_released_even_if_the_client_leaves(protocol: ProtocolName) -> None:
    @between(protocol, prefill={"handover_hold": True})
    async def _(both: Pair) -> None:
        fetching = asyncio.ensure_future(part(both.decode, await kept(both)))
        await both.took.wait("met")
        fetching.cancel()
        await both.took.wait("end")
        assert both.gave.seen("lease_released") == []
        both.prefill.engine.set_faults(handover_hold=False)
        await both.gave.wait("lease_released")


@pytest.mark.parametrize("protocol", VLLM)
@pytest.mark.parametrize("dies", ["prefill", "decode"])
def test_p1_vllm_a_leg_dies_when_they_have_met(protocol: ProtocolName, dies: str) -> None:
    @between(protocol, **{dies: {"handover_dies": True}})
    async def _(both: Pair) -> None:
        params = await kept(both)
        if dies == "prefill":
            await failed(both, params)
        else:
            with pytest.raises(grpc.aio.AioRpcError):
                await part(both.decode, params)


@pytest.mark.parametrize("protocol", VLLM)
def test_vllm_a_prefill_that_is_aborted_keeps_nothing(protocol: ProtocolName) -> None:
    @between(protocol, prefill={"prefill_hold": True})
    async def _(both: Pair) -> None:
        asking = asyncio.ensure_future(part(both.prefill, KEEP, rid="p"))
        await both.gave.wait("leg")
        (stream,) = both.prefill.engine.engine.by_rid("p")
        both.prefill.engine.engine.abort(stream, by="call")
        assert told(await asking) is None
        assert both.gave.seen("lease") == []


def test_vllm_parameters_that_are_no_json_object_are_refused() -> None:
    @between(ProtocolName.VLLM)
    async def _(both: Pair) -> None:
        for bad in ("{", "[]"):
            path, request, _ = REQUESTS[ProtocolName.VLLM]()
            request.kv_transfer_params_json = bad
            code, _ = await status(both.decode.stream(path, request))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
