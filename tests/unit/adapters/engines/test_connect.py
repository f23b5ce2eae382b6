"""Probing: order of questions, refusals that an operator can act on, nothing left open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginehouse._proto import grpc_health_pb2 as health
from enginehouse._proto import sglang_runtime_v1_pb2 as sglang
from enginehouse._proto import vllm_native_pb2 as native
from enginehouse.adapters.engines import EngineConnector, ProbeSettings
from enginehouse.adapters.engines.engine import Engine
from enginehouse.domain.engine import KvEventSource, ProtocolName, Target
from enginehouse.domain.errors import ProbeFailed
from enginehouse.domain.link import LinkError, LinkErrorKind
from enginehouse.testing.clock import run_virtual
from tests.unit.adapters.engines.doubles import HANGS, Answer, FakeLink, status_error

SERVING = health.HealthCheckResponse(status=health.HealthCheckResponse.SERVING).SerializeToString()
NOT_SERVING = health.HealthCheckResponse(status=health.HealthCheckResponse.NOT_SERVING).SerializeToString()
HEALTH = "/grpc.health.v1.Health/Check"
S = "/sglang.runtime.v1.SglangService/"
V = "/vllm.grpc.engine.VllmEngine/"
G, C = "/vllm.Inference/", "/vllm.Control/"
REFUSES = status_error("INVALID_ARGUMENT", "prompt is required")


def health_of(*services: str, status: bytes = SERVING) -> Answer:
    def answer(message: bytes) -> bytes:
        if health.HealthCheckRequest.FromString(message).service not in services:
            raise status_error("NOT_FOUND", "unknown service")
        return status

    return answer


def sglang_answers(**server: Any) -> dict[str, Answer]:
    info = {"served_model_name": "m", "page_size": 16, "incremental_streaming_output": True, **server}
    return {
        S + "GetServerInfo": sglang.GetServerInfoResponse(json_info=json.dumps(info)).SerializeToString(),
        S + "HealthCheck": sglang.HealthCheckResponse(healthy=True).SerializeToString(),
        S + "GetModelInfo": sglang.GetModelInfoResponse(json_info="{}").SerializeToString(),
        S + "ListModels": b"",
        S + "GetLoad": sglang.GetLoadResponse(json_info="[]").SerializeToString(),
        S + "Generate": status_error("INTERNAL", "input_ids cannot be empty."),
    }


def snapshot(**fields: Any) -> dict[str, Sequence[bytes] | LinkError]:
    made = sglang.EngineStateSnapshot(instance_id=77, revision=1, healthy=True, **fields)
    return {S + "WatchEngineState": [made.SerializeToString(), made.SerializeToString()]}


NO_SNAPSHOT: dict[str, Sequence[bytes] | LinkError] = {S + "WatchEngineState": status_error("UNIMPLEMENTED")}


def vllm_answers() -> dict[str, Answer]:
    model = vllm.GetModelInfoResponse(
        served_model_name="m",
        model_path="/models/m",
        is_generation=True,
        max_context_length=4096,
        max_req_input_len=4096,
        vocab_size=8000,
        eos_token_ids=[2, 3],
        default_sampling_params_json='{"temperature":0.9}',
    )
    server = vllm.GetServerInfoResponse(block_size=32, max_num_seqs=128, data_parallel_size=2)
    loads = vllm.GetLoadsResponse(
        version="0.32.0", dp_rank_count=2, loads=[vllm.SchedulerLoad(max_total_num_tokens=1000, num_running_reqs=3)]
    )
    return {
        HEALTH: health_of("", "vllm.grpc.engine.VllmEngine"),
        V + "GetServerInfo": server.SerializeToString(),
        V + "GetModelInfo": model.SerializeToString(),
        V + "GetLoads": loads.SerializeToString(),
        V + "HealthCheck": vllm.HealthCheckResponse(healthy=True).SerializeToString(),
        V + "Generate": REFUSES,
    }


NO_TOKENIZER: dict[str, Sequence[bytes] | LinkError] = {V + "GetTokenizer": status_error("UNIMPLEMENTED")}


def native_answers() -> dict[str, Answer]:
    server = native.ServerInfo(
        engine_version="0.33.0",
        instance_id="abc-0",
        parallelism=native.Parallelism(data_parallel_size=16, data_parallel_rank=8, data_parallel_size_local=8),
        max_model_len=4096,
        kv_block_size=16,
        total_kv_blocks=80,
        max_running_requests=256,
    )
    model = native.ModelInfo(model_id="/m", served_model_name="m", aliases=["n"], supports_lora=True)
    sources = native.GetKvEventSourcesResponse(
        sources=[native.KvEventSource(transport="zmq", endpoint="tcp://*:5565", data_parallel_rank=8)]
    )
    return {
        HEALTH: health_of("", "vllm.Inference", "vllm.Control"),
        C + "GetServerInfo": server.SerializeToString(),
        C + "GetModelInfo": model.SerializeToString(),
        C + "GetKvEventSources": sources.SerializeToString(),
        C + "ListLoras": status_error("FAILED_PRECONDITION", "LoRA is off"),
        C + "IsPaused": b"",
        G + "GenerateStream": REFUSES,
    }


def probe(link: FakeLink, target: Target | None = None) -> Engine:
    async def run() -> Engine:
        return await EngineConnector(lambda _: link, ProbeSettings(call_timeout=3.0)).probe(
            target or Target("10.0.0.7", 30001)
        )

    return asyncio.run(run())


def refused(link: FakeLink, target: Target | None = None) -> ProbeFailed:
    with pytest.raises(ProbeFailed) as caught:
        probe(link, target)
    assert link.closed == 1
    return caught.value


def test_sglang_is_found_first() -> None:
    link = FakeLink(sglang_answers(), snapshot())
    engine = probe(link)
    assert (engine.info.protocol, engine.info.model, engine.info.instance_id) == (ProtocolName.SGLANG, "m", "77")
    assert link.closed == 0
    assert link.asked[0] == S + "GetServerInfo"
    assert not any(path.startswith((V, G, C)) for path in link.asked)
    assert [call.did for call in link.calls] == [["cancel"]]  # the state stream is left after one message


def test_sglang_before_the_state_stream_has_no_instance_id() -> None:
    assert probe(FakeLink(sglang_answers(), NO_SNAPSHOT)).info.instance_id is None


def test_vllm_servicer() -> None:
    info = probe(FakeLink(vllm_answers(), NO_TOKENIZER)).info
    assert (info.protocol, info.context_length, info.max_prompt_tokens) == (ProtocolName.VLLM, 4096, None)
    assert (info.block_size, info.kv_capacity_tokens, info.max_running, info.ranks) == (32, 1000, 128, 2)
    assert (info.eos_token_ids, info.default_sampling, info.version) == ((2, 3), {"temperature": 0.9}, "0.32.0")
    assert (info.role, info.instance_id, info.tokenizer_digest) == (None, None, None)


@pytest.mark.parametrize(
    ("connector", "dtype", "backend", "told"),
    [
        ("NixlConnector", "fp8_e4m3", "NixlConnector", "fp8_e4m3"),
        ("MultiConnector", "auto", None, None),
        ("", "", None, None),
    ],
)
def test_vllm_says_what_has_to_agree_between_two_engines(
    connector: str, dtype: str, backend: str | None, told: str | None
) -> None:
    server = vllm.GetServerInfoResponse(kv_connector=connector, kv_cache_dtype=dtype, block_size=32)
    answers = vllm_answers() | {V + "GetServerInfo": server.SerializeToString()}
    info = probe(FakeLink(answers, NO_TOKENIZER)).info
    assert (info.transfer_backend, info.kv_dtype) == (backend, told)


def test_vllm_native() -> None:
    info = probe(FakeLink(native_answers())).info
    assert (info.protocol, info.model, info.aliases) == (ProtocolName.VLLM_NATIVE, "m", ("n",))
    assert (info.ranks, info.first_rank, info.instance_id, info.version) == (8, 8, "abc-0", "0.33.0")
    assert (info.context_length, info.block_size, info.kv_capacity_tokens) == (4096, 16, 160)
    assert info.kv_event_sources == (KvEventSource(8, "tcp://10.0.0.7:5565", "", None, 16),)
    assert info.loras == ()


def test_an_old_native_frontend_without_server_info_leaves_lengths_open() -> None:
    answers = native_answers()
    del answers[C + "GetServerInfo"]
    info = probe(FakeLink(answers)).info
    assert (info.model, info.context_length, info.block_size) == ("m", None, None)
    del answers[C + "GetModelInfo"]
    assert "too old" in refused(FakeLink(answers)).reason


def test_every_question_has_a_deadline() -> None:
    for link in (FakeLink(sglang_answers(), snapshot()), FakeLink(native_answers())):
        probe(link)
        assert set(link.timeouts) == {3.0, 1.0}
        assert all(call.timeout for call in link.calls)


OPTIONAL = {
    "sglang": ((S + "GetLoad",), (S + "WatchEngineState",)),
    "vllm": ((V + "GetLoads",), (V + "GetTokenizer",)),
    "vllm-native": ((C + "GetKvEventSources", C + "ListLoras", C + "IsPaused"), ()),
}


def one_of_each() -> dict[str, FakeLink]:
    return {
        "sglang": FakeLink(sglang_answers(), snapshot()),
        "vllm": FakeLink(vllm_answers(), NO_TOKENIZER),
        "vllm-native": FakeLink(native_answers()),
    }


@pytest.mark.parametrize("failure", [HANGS, status_error("INTERNAL"), status_error("DEADLINE_EXCEEDED")])
@pytest.mark.parametrize("kind", OPTIONAL)
def test_m9_optional_questions_that_hang_or_fail_take_neither_probe_nor_check_down(
    kind: str, failure: LinkError
) -> None:
    async def run() -> None:
        link = one_of_each()[kind]
        unary, streams = OPTIONAL[kind]
        link.answers |= dict.fromkeys(unary, failure)
        link.streams |= dict.fromkeys(streams, failure)
        async with asyncio.timeout(6):  # of the ten that a probe has
            engine = await EngineConnector(lambda _: link).probe(Target("10.0.0.7", 30001))
        async with asyncio.timeout(3):  # of the four that a check has
            assert await engine.check() == engine.info
        assert engine.info.model == "m"

    run_virtual(run())


@pytest.mark.parametrize("failure", [HANGS, status_error("INTERNAL")])
@pytest.mark.parametrize("kind", OPTIONAL)
def test_m9_what_was_last_known_stands_until_the_connection_is_lost(kind: str, failure: LinkError) -> None:
    async def run() -> None:
        link = one_of_each()[kind]
        if kind == "vllm-native":
            loras = native.ListLorasResponse(loras=[native.Lora(lora_name="x")])
            link.answers[C + "ListLoras"] = loras.SerializeToString()
        engine = await EngineConnector(lambda _: link).probe(Target("10.0.0.7", 30001))
        before = engine.info
        unary, streams = OPTIONAL[kind]
        link.answers |= dict.fromkeys(unary, failure)
        link.streams |= dict.fromkeys(streams, failure)
        assert await engine.check() == before
        for told in link.lost:
            told(LinkError(LinkErrorKind.LOST, "reset by peer", may_have_been_processed=True))
        assert await engine.check() != before

    run_virtual(run())


@pytest.mark.parametrize(
    ("answers", "streams", "words", "permanent"),
    [
        ({"/sglang.api.v1.SglangService/GetServerInfo": b""}, {}, "SGLANG_RUST_SERVER=1", True),
        ({"/sglang.grpc.scheduler.SglangScheduler/GetServerInfo": b""}, {}, "--smg-grpc-mode", True),
        ({"/trtllm.TrtllmService/GetServerInfo": b""}, {}, "TensorRT-LLM is not supported", True),
        ({HEALTH: health_of("")}, {}, "none that generates", True),
        ({}, {}, "tried sglang.runtime.v1.SglangService, vllm.grpc.engine.VllmEngine, vllm.Inference", True),
        (sglang_answers(node_rank=1), snapshot(), "node_rank 1", True),
        ({S + "GetServerInfo": sglang_answers()[S + "GetServerInfo"]}, {}, "metadata server of a follower", True),
        ({**sglang_answers(), S + "HealthCheck": b""}, snapshot(), "healthy=false", False),
        (sglang_answers(), snapshot(is_pause=True), "paused", False),
        (
            {**vllm_answers(), HEALTH: health_of("vllm.grpc.engine.VllmEngine", status=NOT_SERVING)},
            NO_TOKENIZER,
            "NOT_SERVING",
            False,
        ),
        ({**native_answers(), HEALTH: health_of("vllm.Inference", status=NOT_SERVING)}, {}, "NOT_SERVING", False),
        (
            {**native_answers(), C + "IsPaused": native.IsPausedResponse(paused=True).SerializeToString()},
            {},
            "paused",
            False,
        ),
    ],
)
def test_refusals_say_what_to_change(
    answers: dict[str, Answer], streams: dict[str, Sequence[bytes] | LinkError], words: str, permanent: bool
) -> None:
    failed = refused(FakeLink(answers, streams))
    assert words in failed.reason
    assert failed.permanent is permanent


@pytest.mark.parametrize(
    ("answers", "streams", "generate"),
    [
        (sglang_answers(), snapshot(), S + "Generate"),
        (vllm_answers(), NO_TOKENIZER, V + "Generate"),
        (native_answers(), {}, G + "GenerateStream"),
    ],
)
def test_d10_a_healthy_engine_without_generate_is_refused(
    answers: Mapping[str, Answer], streams: dict[str, Sequence[bytes] | LinkError], generate: str
) -> None:
    link = FakeLink({path: answer for path, answer in answers.items() if path != generate}, streams)
    failed = refused(link)
    assert "no Generate" in failed.reason
    assert failed.permanent


def test_the_servicers_own_health_call_does_not_count_while_the_common_one_says_no() -> None:
    answers = vllm_answers()
    answers[HEALTH] = health_of("vllm.grpc.engine.VllmEngine", status=NOT_SERVING)
    assert "not healthy yet" in refused(FakeLink(answers, NO_TOKENIZER)).reason
    del answers[HEALTH]  # a servicer without the common service: its own word is all there is
    assert probe(FakeLink(answers, NO_TOKENIZER)).info.model == "m"


def test_a_forced_protocol_is_the_only_one_taken() -> None:
    target = Target("10.0.0.7", 30001, protocol=ProtocolName.VLLM)
    link = FakeLink(vllm_answers(), NO_TOKENIZER)
    assert probe(link, target).info.protocol is ProtocolName.VLLM
    assert link.asked[0] == V + "GetServerInfo"
    failed = refused(FakeLink(sglang_answers(), snapshot()), target)
    assert "speaks sglang.runtime.v1.SglangService, not vllm.grpc.engine.VllmEngine" in failed.reason
    assert failed.permanent


def test_no_answer_and_no_connection_are_worth_another_try() -> None:
    silent = LinkError(LinkErrorKind.DEADLINE, "deadline", may_have_been_processed=True)
    failed = refused(FakeLink({S + "GetServerInfo": silent}))
    assert "no answer to the first question within 3 s" in failed.reason
    assert not failed.permanent
    absent = LinkError(LinkErrorKind.CONNECT, "connection refused", may_have_been_processed=False)
    failed = refused(FakeLink({S + "GetServerInfo": absent}))
    assert failed.reason == "cannot connect: connection refused"
    assert not failed.permanent


def test_an_engine_that_answers_nonsense_is_refused() -> None:
    assert "does not speak gRPC as asked" in refused(FakeLink({S + "GetServerInfo": b"\xff\xff\xff"})).reason
    answers = sglang_answers()
    answers[S + "GetServerInfo"] = sglang.GetServerInfoResponse(json_info="{bad").SerializeToString()
    assert "does not say which model" in refused(FakeLink(answers, snapshot())).reason


def test_reasons_never_show_the_server_info() -> None:
    answers = sglang_answers(launch_command="sglang serve --admin-api-key TOP-SECRET", served_model_name="")
    failed = refused(FakeLink(answers, snapshot()))
    assert "TOP-SECRET" not in failed.reason
    assert "TOP-SECRET" not in repr(failed)


def test_cancelling_closes_the_link() -> None:
    class Mute(FakeLink):
        async def unary(self, *_: Any, **__: Any) -> bytes:
            await asyncio.Event().wait()
            raise AssertionError

    async def run() -> FakeLink:
        link = Mute()
        task = asyncio.create_task(EngineConnector(lambda _: link).probe(Target("10.0.0.7", 1)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return link

    assert asyncio.run(run()).closed == 1
