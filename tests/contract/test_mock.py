"""The mock engine's three fronts, driven by plain grpcio clients: they say it as the real servers do."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as a
from tokenizers import Tokenizer

from enginehouse._proto import grpc_health_pb2 as health
from enginehouse._proto import sglang_runtime_v1_pb2 as s
from enginehouse._proto import vllm_native_pb2 as n
from enginehouse.domain.engine import ProtocolName, Role
from enginehouse.mock import MockEngine, MockSettings
from enginehouse.mock.simulator import Job

PROMPT = list(range(300, 340))
A, S = "/vllm.grpc.engine.VllmEngine/", "/sglang.runtime.v1.SglangService/"
INFERENCE, CONTROL, HEALTH = "/vllm.Inference/", "/vllm.Control/", "/grpc.health.v1.Health/"
ALL = [ProtocolName.VLLM, ProtocolName.SGLANG, ProtocolName.VLLM_NATIVE]


class Stream:
    """An open server stream, read message by message (grpcio does not let one mix its two ways of reading)."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._iterator = aiter(call)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._iterator

    async def read(self) -> bytes:
        return await anext(self._iterator)

    def cancel(self) -> None:
        self.call.cancel()


class Peer:
    """A mock engine and a grpcio channel to it."""

    def __init__(self, engine: MockEngine, channel: Any) -> None:
        self.engine = engine
        self.channel = channel

    async def unary(self, path: str, request: Any, answer: Any) -> Any:
        call = self.channel.unary_unary(path)
        return answer.FromString(await call(request.SerializeToString(), timeout=20))

    def stream(self, path: str, request: Any, metadata: Any = None) -> Any:
        return Stream(self.channel.unary_stream(path)(request.SerializeToString(), metadata=metadata, timeout=20))

    async def all(self, path: str, request: Any, answer: Any, metadata: Any = None) -> list[Any]:
        return [answer.FromString(data) async for data in self.stream(path, request, metadata)]

    async def generate(self, **more: Any) -> list[Any]:
        path, request, answer = REQUESTS[self.engine.settings.protocol](**more)
        return await self.all(path, request, answer)

    def open(self, **more: Any) -> Any:
        path, request, _ = REQUESTS[self.engine.settings.protocol](**more)
        return self.stream(path, request)


def _a(rid: str = "r", prompt: list[int] = PROMPT, max_tokens: int | None = 4, stream: bool = True, **more: Any) -> Any:
    params = a.SamplingParams(max_tokens=max_tokens, **more)
    tokens = a.TokenizedInput(input_ids=prompt)
    request = a.GenerateRequest(request_id=rid, tokenized=tokens, sampling_params=params, stream=stream)
    return A + "Generate", request, a.GenerateResponse


def _s(rid: str = "r", prompt: list[int] = PROMPT, max_tokens: int | None = 4, stream: bool = True, **more: Any) -> Any:
    params = s.SamplingParams(max_new_tokens=max_tokens, **more)
    return (
        S + "Generate",
        s.GenerateRequest(rid=rid, input_ids=prompt, sampling_params=params, stream=stream),
        (s.GenerateResponse),
    )


def _n(rid: str = "r", prompt: list[int] = PROMPT, max_tokens: int | None = 4, **more: Any) -> Any:
    request = n.GenerateRequest(
        request_id=rid,
        token_ids=n.TokenIds(ids=prompt),
        stopping=n.Stopping(max_new_tokens=max_tokens, **more),
        response=n.ResponseOptions(output_token_ids=True),
    )
    return INFERENCE + "GenerateStream", request, n.GenerateResponse


REQUESTS = {ProtocolName.VLLM: _a, ProtocolName.SGLANG: _s, ProtocolName.VLLM_NATIVE: _n}


@asynccontextmanager
async def peer(protocol: ProtocolName, **settings: Any) -> AsyncIterator[Peer]:
    settings = {"tokens_per_second": 0.0, **settings}
    async with MockEngine(MockSettings(protocol=protocol, **settings)) as engine:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{engine.port}", options=options) as channel:
            yield Peer(engine, channel)


def against(protocol: ProtocolName, **settings: Any) -> Callable[[Callable[[Peer], Awaitable[None]]], None]:
    """Run a coroutine function against a fresh engine."""

    def run(test: Callable[[Peer], Awaitable[None]]) -> None:
        async def main() -> None:
            async with peer(protocol, **settings) as one:
                await test(one)

        asyncio.run(main())

    return run


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [data async for data in call] if hasattr(call, "__aiter__") else await call
    return caught.value.code(), caught.value.details() or ""


async def gone(engine: MockEngine) -> None:
    """Wait until the engine works on nothing."""
    async with asyncio.timeout(20):
        while engine.engine.streams:
            await asyncio.sleep(0.005)


def test_vllm_streams_deltas_and_repeats_the_last_in_complete() -> None:
    @against(ProtocolName.VLLM)
    async def _(one: Peer) -> None:
        *chunks, last = await one.generate()
        ids = one.engine.answer(PROMPT, 4)
        assert [list(message.chunk.token_ids) for message in chunks] == [[token] for token in ids]
        assert {message.chunk.completion_tokens for message in chunks} == {1}
        assert {message.chunk.prompt_tokens for message in chunks} == {40}
        complete = last.complete
        assert (list(complete.output_ids), complete.completion_tokens, complete.finish_reason) == (
            ids[-1:],
            1,
            "length",
        )
        (whole,) = await one.generate(stream=False)
        assert list(whole.complete.output_ids) == ids
        assert (whole.complete.completion_tokens, whole.complete.cached_tokens) == (4, 32)


def test_vllm_stop_token_is_in_the_ids_and_matched_and_eos_is_not_matched() -> None:
    @against(ProtocolName.VLLM, eos_after=3)
    async def _(one: Peer) -> None:
        stop = one.engine.answer(PROMPT, 2)[1]
        last = (await one.generate(stop_token_ids=[stop]))[-1].complete
        assert (list(last.output_ids), last.finish_reason, last.matched_token_id) == ([stop], "stop", stop)
        last = (await one.generate())[-1].complete
        assert (last.finish_reason, last.WhichOneof("matched_stop")) == ("stop", None)
        assert list(last.output_ids) == [one.engine.engine.vocabulary.eos]
        assert (await one.generate(ignore_eos=True))[-1].complete.finish_reason == "length"


def test_vllm_abort_ends_ok_with_an_empty_chunk_and_complete_abort() -> None:
    @against(ProtocolName.VLLM, stall_after_tokens=2)
    async def _(one: Peer) -> None:
        call = one.open(max_tokens=100)
        got = [await call.read(), await call.read()]
        await one.unary(A + "Abort", a.AbortRequest(request_ids=["r", "nobody"]), a.AbortResponse)
        got += [data async for data in call]
        chunk, complete = (a.GenerateResponse.FromString(data) for data in got[2:])
        assert list(chunk.chunk.token_ids) == []
        assert (complete.complete.finish_reason, complete.complete.completion_tokens) == ("abort", 0)
        assert await call.call.code() is grpc.StatusCode.OK


def test_vllm_hands_out_its_tokenizer() -> None:
    @against(ProtocolName.VLLM)
    async def _(one: Peer) -> None:
        chunks = await one.all(A + "GetTokenizer", common.GetTokenizerRequest(), common.GetTokenizerChunk)
        data = b"".join(chunk.data for chunk in chunks)
        assert [bool(chunk.sha256) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
        info = await one.unary(A + "GetModelInfo", a.GetModelInfoRequest(), a.GetModelInfoResponse)
        assert tokenizer.get_vocab_size() == info.vocab_size
        assert tokenizer.id_to_token(info.eos_token_ids[0])


def test_vllm_information() -> None:
    @against(ProtocolName.VLLM, model="m", context_length=512, ranks=2, block_size=32, kv_blocks=10, max_running=7)
    async def _(one: Peer) -> None:
        model = await one.unary(A + "GetModelInfo", a.GetModelInfoRequest(), a.GetModelInfoResponse)
        assert (model.served_model_name, model.max_context_length, model.is_generation) == ("m", 512, True)
        server = await one.unary(A + "GetServerInfo", a.GetServerInfoRequest(), a.GetServerInfoResponse)
        assert (server.data_parallel_size, server.block_size, server.max_num_seqs) == (2, 32, 7)
        assert (server.server_type, server.uptime_seconds) == ("", 0)  # as the real servicer leaves them
        loads = await one.unary(A + "GetLoads", a.GetLoadsRequest(), a.GetLoadsResponse)
        assert [(load.dp_rank, load.max_total_num_tokens) for load in loads.loads] == [(0, 320), (1, 320)]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"prompt": []}, "cannot be empty"),
        ({"prompt": [300] * 64}, "longer than the maximum model length of 64"),
        ({"prompt": [300_000]}, "out of vocabulary"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"temperature": -1.0}, "temperature must be non-negative"),
        ({"top_p": 1.5}, "top_p must be in"),
        ({"min_tokens": 9}, "min_tokens must be less than"),
    ],
)
def test_vllm_refuses_bad_requests(more: dict[str, Any], text: str) -> None:
    @against(ProtocolName.VLLM, context_length=64)
    async def _(one: Peer) -> None:
        code, details = await status(one.open(**more))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text in details


def test_beyond_the_context_vllm_cuts_and_sglang_refuses() -> None:
    for protocol in (ProtocolName.VLLM, ProtocolName.VLLM_NATIVE):

        @against(protocol, context_length=44)
        async def _(one: Peer) -> None:
            messages = await one.generate(max_tokens=1000)
            assert len(messages) == 5  # 4 deltas and a complete, or prompt info and 4 deltas

    @against(ProtocolName.SGLANG, context_length=44)
    async def _(one: Peer) -> None:
        assert (await status(one.open(max_tokens=1000)))[0] is grpc.StatusCode.INTERNAL


def test_sglang_sends_everything_so_far_in_each_message() -> None:
    @against(ProtocolName.SGLANG)
    async def _(one: Peer) -> None:
        messages = await one.generate()
        ids = one.engine.answer(PROMPT, 4)
        assert [list(message.output_ids) for message in messages] == [ids[:1], ids[:2], ids[:3], ids]
        assert [message.finished for message in messages] == [False] * 3 + [True]
        metas = [{key: json.loads(value) for key, value in message.meta_info.items()} for message in messages]
        assert [meta["completion_tokens"] for meta in metas] == [1, 2, 3, 4]
        assert [meta["finish_reason"] for meta in metas] == [None] * 3 + [{"type": "length", "length": 4}]
        assert {(meta["id"], meta["prompt_tokens"], meta["cached_tokens"]) for meta in metas} == {("r", 40, 0)}
        (whole,) = await one.generate(stream=False)
        assert list(whole.output_ids) == ids
        assert json.loads(whole.meta_info["cached_tokens"]) == 32


def test_sglang_incremental_sends_deltas_with_cumulative_counts() -> None:
    @against(ProtocolName.SGLANG, incremental=True)
    async def _(one: Peer) -> None:
        messages = await one.generate()
        assert [list(message.output_ids) for message in messages] == [[i] for i in one.engine.answer(PROMPT, 4)]
        assert [message.meta_info["completion_tokens"] for message in messages] == ["1", "2", "3", "4"]
        info = await one.unary(S + "GetServerInfo", s.GetServerInfoRequest(), s.GetServerInfoResponse)
        assert json.loads(info.json_info)["incremental_streaming_output"] is True


def test_sglang_abort_cancels_the_named_and_repeats_a_token_to_those_with_its_prefix() -> None:
    @against(ProtocolName.SGLANG, incremental=True, stall_after_tokens=1)
    async def _(one: Peer) -> None:
        named, prefixed, other = one.open(rid="ab"), one.open(rid="abc"), one.open(rid="b")
        for call in (named, prefixed, other):
            await call.read()
        answer = await one.unary(S + "Abort", s.AbortRequest(rid="nobody"), s.AbortResponse)
        assert answer.success
        await one.unary(S + "Abort", s.AbortRequest(rid="ab"), s.AbortResponse)
        assert await status(named) == (grpc.StatusCode.CANCELLED, "Request aborted: ab")
        (data,) = [data async for data in prefixed]
        message = s.GenerateResponse.FromString(data)
        assert (list(message.output_ids), message.finished) == (one.engine.answer(PROMPT, 1), True)
        assert json.loads(message.meta_info["finish_reason"])["type"] == "abort"
        assert (message.meta_info["completion_tokens"], "prompt_tokens" in message.meta_info) == ("1", False)
        one.engine.set_faults(stall_after_tokens=0)
        assert [data async for data in other]
        assert (await status(one.channel.unary_unary(S + "Abort")(b"")))[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_sglang_errors() -> None:
    @against(ProtocolName.SGLANG, context_length=64, ranks=2)
    async def _(one: Peer) -> None:
        for more, text in [
            ({"prompt": []}, "cannot be empty"),
            ({"prompt": [300] * 64}, "longer than the model's context length"),
            ({"top_p": 1.5}, "top_p"),
        ]:
            code, details = await status(one.open(**more))
            assert (code, text in details) == (grpc.StatusCode.INTERNAL, True)
        request = s.GenerateRequest(rid="r", input_ids=PROMPT, routed_dp_rank=2, stream=True)
        assert "out of range" in (await status(one.stream(S + "Generate", request)))[1]
        one.engine.set_faults(never_answer=True)
        first = one.open(rid="same")
        async with asyncio.timeout(20):
            while not one.engine.engine.streams:
                await asyncio.sleep(0.005)
        assert "Duplicate active" in (await status(one.open(rid="same")))[1]
        first.cancel()
        await gone(one.engine)


def test_sglang_rejections_are_messages_when_streaming() -> None:
    @against(ProtocolName.SGLANG, reject_status=503)
    async def _(one: Peer) -> None:
        (message,) = await one.generate()
        reason = json.loads(message.meta_info["finish_reason"])
        assert (message.finished, reason["type"], reason["status_code"]) == (True, "abort", 503)
        code, text = await status(one.open(stream=False))
        assert (code, text[:5]) == (grpc.StatusCode.INTERNAL, "503: ")


def test_sglang_watches_its_state() -> None:
    @against(ProtocolName.SGLANG, model="m", role=Role.PREFILL)
    async def _(one: Peer) -> None:
        call = one.stream(S + "WatchEngineState", s.WatchEngineStateRequest())
        first = s.EngineStateSnapshot.FromString(await call.read())
        one.engine.set_faults(healthy=False)
        second = s.EngineStateSnapshot.FromString(await call.read())
        assert [(state.revision, state.healthy) for state in (first, second)] == [(1, True), (2, False)]
        assert first.instance_id == second.instance_id != 0
        assert json.loads(first.server_info.json_info)["disaggregation_mode"] == "prefill"
        assert not (await one.unary(S + "HealthCheck", s.HealthCheckRequest(), s.HealthCheckResponse)).healthy
        models = (await one.unary(S + "ListModels", s.ListModelsRequest(), s.ListModelsResponse)).models
        assert [(model.id, model.HasField("parent")) for model in models] == [("m", False)]
        loads = json.loads((await one.unary(S + "GetLoad", s.GetLoadRequest(), s.GetLoadResponse)).json_info)
        assert [load["dp_rank"] for load in loads] == [0]
        call.cancel()


def test_native_streams_prompt_info_then_deltas_with_text() -> None:
    @against(ProtocolName.VLLM_NATIVE)
    async def _(one: Peer) -> None:
        first, *rest = await one.generate()
        ids = one.engine.answer(PROMPT, 4)
        assert (first.prompt_info.num_prompt_tokens, first.HasField("output")) == (40, False)
        assert [list(message.output.token_ids) for message in rest] == [[token] for token in ids]
        assert [message.output.HasField("finish_info") for message in rest] == [False] * 3 + [True]
        info = rest[-1].output.finish_info
        assert (info.num_output_tokens, info.finish_reason, info.HasField("cached_tokens")) == (4, n.LENGTH, True)
        tokenizer = Tokenizer.from_file(str(one.engine.engine.vocabulary.folder / "tokenizer.json"))
        assert "".join(message.output.text for message in rest) == tokenizer.decode(ids)


def test_native_defaults_are_text_without_ids() -> None:
    @against(ProtocolName.VLLM_NATIVE)
    async def _(one: Peer) -> None:
        request = n.GenerateRequest(text="the engine", stopping=n.Stopping(max_new_tokens=2))
        for answer in (
            await one.unary(INFERENCE + "Generate", request, n.GenerateResponse),
            (await one.all(INFERENCE + "GenerateStream", request, n.GenerateResponse))[-1],
        ):
            assert answer.output.text
            assert list(answer.output.token_ids) == []


def test_native_ends() -> None:
    @against(ProtocolName.VLLM_NATIVE, eos_after=3)
    async def _(one: Peer) -> None:
        stop = one.engine.answer(PROMPT, 2)[1]
        info = (await one.generate(stop_token_ids=[stop]))[-1].output.finish_info
        assert (info.finish_reason, info.stop_token_id, info.num_output_tokens) == (n.STOP, stop, 2)
        info = (await one.generate())[-1].output.finish_info
        assert (info.finish_reason, info.eos_token_id) == (n.STOP, one.engine.engine.vocabulary.eos)
        one.engine.set_faults(stall_after_tokens=1)
        call = one.open()
        await call.read(), await call.read()
        await one.unary(CONTROL + "Abort", n.AbortRequest(request_ids=["r"]), n.AbortResponse)
        (data,) = [data async for data in call]
        info = n.GenerateResponse.FromString(data).output.finish_info
        assert (info.finish_reason, info.num_output_tokens) == (n.ABORTED, 1)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda r: r.ClearField("token_ids"), grpc.StatusCode.INVALID_ARGUMENT),
        (lambda r: r.token_ids.ids.append(900_000), grpc.StatusCode.INVALID_ARGUMENT),
        (lambda r: r.token_ids.ids.extend([300] * 64), grpc.StatusCode.INVALID_ARGUMENT),
        (lambda r: setattr(r.random, "num_sequences", 2), grpc.StatusCode.INVALID_ARGUMENT),
        (lambda r: setattr(r, "temperature", 3.0), grpc.StatusCode.INVALID_ARGUMENT),
        (lambda r: setattr(r, "model", "other"), grpc.StatusCode.NOT_FOUND),
        (lambda r: setattr(r, "lora_name", "x"), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
def test_native_refuses_bad_requests(change: Callable[[Any], Any], code: grpc.StatusCode) -> None:
    @against(ProtocolName.VLLM_NATIVE, context_length=64)
    async def _(one: Peer) -> None:
        path, request, _ = _n()
        change(request)
        assert (await status(one.stream(path, request)))[0] is code


def test_native_takes_the_rank_from_metadata() -> None:
    @against(ProtocolName.VLLM_NATIVE, ranks=2, never_answer=True)
    async def _(one: Peer) -> None:
        path, request, _ = _n()
        for bad in ("2", "x"):
            code, _ = await status(one.stream(path, request, [("x-data-parallel-rank", bad)]))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
        call = one.stream(path, request, [("x-data-parallel-rank", "1")])
        await call.read()
        assert [answer.rank for answer in one.engine.engine.streams] == [1]
        call.cancel()
        await gone(one.engine)


def test_native_information() -> None:
    @against(ProtocolName.VLLM_NATIVE, model="m", context_length=512, ranks=2, kv_blocks=10)
    async def _(one: Peer) -> None:
        info = await one.unary(CONTROL + "GetServerInfo", n.GetServerInfoRequest(), n.ServerInfo)
        assert (info.max_model_len, info.total_kv_blocks, info.parallelism.data_parallel_size) == (512, 20, 2)
        assert info.instance_id
        model = await one.unary(CONTROL + "GetModelInfo", n.GetModelInfoRequest(), n.ModelInfo)
        assert (model.served_model_name, model.supports_token_ids_input) == ("m", True)
        sources = await one.unary(
            CONTROL + "GetKvEventSources", n.GetKvEventSourcesRequest(), n.GetKvEventSourcesResponse
        )
        assert list(sources.sources) == []


@pytest.mark.parametrize(
    ("protocol", "service"),
    [
        (ProtocolName.VLLM, "vllm.grpc.engine.VllmEngine"),
        (ProtocolName.VLLM_NATIVE, "vllm.Inference"),
        (ProtocolName.VLLM_NATIVE, "vllm.Control"),
        (ProtocolName.SGLANG, None),
    ],
)
def test_standard_health(protocol: ProtocolName, service: str | None) -> None:
    @against(protocol)
    async def _(one: Peer) -> None:
        check = one.channel.unary_unary(HEALTH + "Check")
        if service is None:
            assert (await status(check(b"")))[0] is grpc.StatusCode.UNIMPLEMENTED
            return
        for name in ("", service):
            request = health.HealthCheckRequest(service=name)
            answer = await one.unary(HEALTH + "Check", request, health.HealthCheckResponse)
            assert answer.status == health.HealthCheckResponse.SERVING
        other = health.HealthCheckRequest(service="some.Other").SerializeToString()
        assert (await status(check(other)))[0] is grpc.StatusCode.NOT_FOUND
        watch = one.stream(HEALTH + "Watch", health.HealthCheckRequest(service=service))
        seen = [health.HealthCheckResponse.FromString(await watch.read()).status]
        one.engine.set_faults(healthy=False)
        seen.append(health.HealthCheckResponse.FromString(await watch.read()).status)
        assert seen == [health.HealthCheckResponse.SERVING, health.HealthCheckResponse.NOT_SERVING]
        watch.cancel()


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("stage", [{"never_answer": True}, {"prefill_hold": True}, {"stall_after_tokens": 1}])
def test_a_cancelled_call_aborts_the_request(protocol: ProtocolName, stage: dict[str, Any], tmp_path: Any) -> None:
    @against(protocol, log=str(tmp_path / "log"), **stage)
    async def _(one: Peer) -> None:
        call = one.open(max_tokens=100)
        async with asyncio.timeout(20):
            while not one.engine.engine.streams:
                await asyncio.sleep(0.005)
        call.cancel()
        await gone(one.engine)
        rank = one.engine.engine.simulator.ranks[0]
        assert (rank.running, len(rank.waiting)) == (0, 0)
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert [line["event"] for line in lines] == ["listening", "request", "abort", "end"]
        assert (lines[1]["rid"], lines[2]["by"], lines[3]["outcome"]) == ("r", "cancel", "abort")


@pytest.mark.parametrize("protocol", ALL)
def test_faults_of_a_stream(protocol: ProtocolName) -> None:
    @against(protocol)
    async def _(one: Peer) -> None:
        for fault, code in [
            ({"refuse": "UNAVAILABLE"}, grpc.StatusCode.UNAVAILABLE),
            ({"error_after_tokens": 2}, grpc.StatusCode.INTERNAL),
        ]:
            one.engine.set_faults(refuse="", error_after_tokens=0)
            one.engine.set_faults(**fault)
            assert (await status(one.open()))[0] is code
        one.engine.set_faults(error_after_tokens=0, vanish_after_tokens=2)
        last = (await one.generate())[-1]
        assert not getattr(last, "finished", False)
        assert not (protocol is ProtocolName.VLLM and last.HasField("complete"))
        one.engine.set_faults(vanish_after_tokens=0, die_after_tokens=2)
        code, _ = await status(one.open())
        assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_an_engine_may_be_stopped_while_it_dies() -> None:
    """At whatever point of its death: stopping waits for that and raises nothing."""

    async def main() -> None:
        for steps in range(40):
            async with peer(ProtocolName.VLLM) as one:
                await one.channel.channel_ready()
                one.engine.engine.die()
                for _ in range(steps):
                    await asyncio.sleep(0)
                await one.engine.stop()

    asyncio.run(main())


@pytest.mark.parametrize("protocol", ALL)
def test_every_front_says_the_same_tokens_and_counts_its_cache(protocol: ProtocolName) -> None:
    """One engine's answer can be checked against any other's; the second time all whole blocks are cached."""

    @against(protocol)
    async def _(one: Peer) -> None:
        for expected in (0, 32):
            messages = await one.generate()
            ids, cached = _read(protocol, messages)
            assert (ids, cached) == (one.engine.answer(PROMPT, 4), expected)


def _read(protocol: ProtocolName, messages: list[Any]) -> tuple[list[int], int]:
    if protocol is ProtocolName.VLLM:
        return [i for m in messages for i in m.chunk.token_ids], messages[-1].complete.cached_tokens
    if protocol is ProtocolName.SGLANG:
        return list(messages[-1].output_ids), int(messages[-1].meta_info["cached_tokens"])
    return [i for m in messages for i in m.output.token_ids], messages[-1].output.finish_info.cached_tokens


def test_a_reader_that_is_late_gets_its_tokens_together() -> None:
    """A paced engine does not wait for its reader, and loses nothing for it."""

    async def main() -> None:
        async with MockEngine(MockSettings(tokens_per_second=1000.0)) as engine:
            with engine.engine.open(Job("r", PROMPT, 50)) as stream:
                news = aiter(stream)
                got = (await anext(news)).new
                async with asyncio.timeout(20):
                    while len(stream.answer.output) < 10:
                        await asyncio.sleep(0.001)
                late = await anext(news)
                assert len(late.new) >= 9
                got += late.new + [token async for step in news for token in step.new]
                assert got == engine.answer(PROMPT, 50)

    asyncio.run(main())


def test_two_engines_on_one_port_are_an_error() -> None:
    @against(ProtocolName.VLLM)
    async def _(one: Peer) -> None:
        with pytest.raises(OSError, match="cannot listen on"):
            await MockEngine(MockSettings(port=one.engine.port)).start()
