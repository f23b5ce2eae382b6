"""Requests on the wire: what each engine gets for our sampling parameters, and for those left open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginehouse._proto import sglang_runtime_v1_pb2 as sglang
from enginehouse._proto import vllm_native_pb2 as native
from enginehouse.adapters.engines.legs import as_sent
from enginehouse.adapters.engines.protocol import ProbeSettings
from enginehouse.adapters.engines.sampling import fold_seed, with_defaults
from enginehouse.adapters.engines.sglang import SglangProtocol
from enginehouse.adapters.engines.vllm import VllmProtocol
from enginehouse.adapters.engines.vllm_native import VllmNativeProtocol
from enginehouse.domain.engine import Target
from enginehouse.domain.handover import Handover, Keep, Rendezvous
from enginehouse.domain.request import EngineRequest, Sampling
from tests.unit.adapters.engines.doubles import FakeLink, golden, messages

TARGET = Target("127.0.0.1", 1)
EVERYTHING = Sampling(
    temperature=0.5,
    top_p=0.75,
    top_k=40,
    min_p=0.25,
    frequency_penalty=0.5,
    presence_penalty=-0.5,
    repetition_penalty=1.25,
    seed=12,
    stop_token_ids=(5, 6),
    ignore_eos=True,
    min_tokens=3,
)


def request(sampling: Sampling = Sampling(), rank: int | None = None) -> EngineRequest:  # noqa: B008 (frozen)
    return EngineRequest("0" * 32, [1, 2, 70_000], 17, sampling, rank)


def to_sglang(asked: EngineRequest) -> sglang.GenerateRequest:
    return sglang.GenerateRequest.FromString(SglangProtocol(FakeLink(), TARGET, ProbeSettings()).encode(asked))


def to_vllm(asked: EngineRequest, defaults: str = "") -> Any:
    protocol = VllmProtocol(FakeLink(), TARGET, ProbeSettings())
    if defaults:
        info = vllm.GetModelInfoResponse(
            is_generation=True, served_model_name="m", default_sampling_params_json=defaults
        )
        base = "/vllm.grpc.engine.VllmEngine/"
        protocol._link = FakeLink({base + "GetServerInfo": b"", base + "GetModelInfo": info.SerializeToString()})
        asyncio.run(_describe(protocol))
    return vllm.GenerateRequest.FromString(protocol.encode(asked))


async def _describe(protocol: VllmProtocol) -> None:
    protocol._digest_asked = True  # no tokenizer here
    await protocol.describe()


def to_native(asked: EngineRequest) -> native.GenerateRequest:
    return native.GenerateRequest.FromString(VllmNativeProtocol(FakeLink(), TARGET, ProbeSettings()).encode(asked))


def test_sglang_gets_everything() -> None:
    sent = to_sglang(request(EVERYTHING, rank=2))
    assert (list(sent.input_ids), sent.rid, sent.stream, sent.routed_dp_rank) == ([1, 2, 70_000], "0" * 32, True, 2)
    assert sent.sampling_params == sglang.SamplingParams(
        temperature=0.5,
        top_p=0.75,
        top_k=40,
        min_p=0.25,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.25,
        max_new_tokens=17,
        min_new_tokens=3,
        stop_token_ids=[5, 6],
        ignore_eos=True,
        seed=12,
    )


def test_sglang_is_left_its_own_defaults() -> None:
    sent = to_sglang(request())
    assert sent.sampling_params == sglang.SamplingParams(max_new_tokens=17)
    assert not sent.HasField("routed_dp_rank")


def test_vllm_gets_everything() -> None:
    sent = to_vllm(request(EVERYTHING, rank=2))
    assert (list(sent.tokenized.input_ids), sent.request_id, sent.stream) == ([1, 2, 70_000], "0" * 32, True)
    assert sent.data_parallel_rank == 2
    assert sent.sampling_params == vllm.SamplingParams(
        temperature=0.5,
        top_p=0.75,
        top_k=40,
        min_p=0.25,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.25,
        max_tokens=17,
        min_tokens=3,
        stop_token_ids=[5, 6],
        ignore_eos=True,
        seed=12,
    )


def test_g11_vllm_is_told_the_models_own_defaults_where_the_request_says_nothing() -> None:
    defaults = '{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05, "max_tokens": 5}'
    sent = to_vllm(request(Sampling(top_p=0.5)), defaults).sampling_params
    assert sent == vllm.SamplingParams(temperature=0.6, top_p=0.5, top_k=20, repetition_penalty=1.05, max_tokens=17)
    for nothing in ("", "[]", "{bad", '{"temperature": "hot", "top_k": true}'):
        assert to_vllm(request(), nothing).sampling_params == vllm.SamplingParams(temperature=1.0, max_tokens=17)


def test_native_gets_everything() -> None:
    sent = to_native(request(EVERYTHING))
    assert sent == native.GenerateRequest(
        request_id="0" * 32,
        token_ids=native.TokenIds(ids=[1, 2, 70_000]),
        temperature=0.5,
        random=native.RandomSampling(top_k=40, top_p=0.75, min_p=0.25, seed=12),
        decoding=native.Decoding(presence_penalty=-0.5, frequency_penalty=0.5, repetition_penalty=1.25),
        stopping=native.Stopping(max_new_tokens=17, min_new_tokens=3, stop_token_ids=[5, 6], ignore_eos=True),
        response=native.ResponseOptions(output_text=False, output_token_ids=True),
    )


def test_g11_an_open_temperature_does_not_mean_greedy_to_the_native_engine() -> None:
    assert to_native(request()).temperature == 1.0
    greedy = to_native(request(Sampling(temperature=0.0)))
    assert greedy.HasField("temperature")
    assert greedy.temperature == 0.0


def test_the_native_engine_reads_the_rank_from_metadata() -> None:
    protocol = VllmNativeProtocol(FakeLink(), TARGET, ProbeSettings())
    assert protocol.metadata(request(rank=3)) == (("x-data-parallel-rank", "3"),)
    assert protocol.metadata(request()) == ()


@pytest.mark.parametrize("off", [-1, 0])
def test_top_k_off(off: int) -> None:
    sampling = Sampling(top_k=off)
    assert to_sglang(request(sampling)).sampling_params.top_k == -1
    assert to_vllm(request(sampling)).sampling_params.top_k == 0
    assert to_native(request(sampling)).random.top_k == 0


def test_top_p_zero_is_not_taken_for_unset() -> None:
    sampling = Sampling(top_p=0.0)
    for sent in (to_sglang(request(sampling)).sampling_params, to_vllm(request(sampling)).sampling_params):
        assert 0 < sent.top_p < 0.001
    assert 0 < to_native(request(sampling)).random.top_p < 0.001


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31 - 1, 2**31, 2**40 + 7, 2**63, 2**64 + 3, -(2**70)])
def test_every_seed_fits_and_stays_the_same(seed: int) -> None:
    sampling = Sampling(seed=seed)
    assert to_vllm(request(sampling)).sampling_params.seed == fold_seed(seed, 32)
    assert to_sglang(request(sampling)).sampling_params.seed == fold_seed(seed, 64)
    assert to_native(request(sampling)).random.seed == fold_seed(seed, 64)
    for bits in (32, 64):
        assert -(2 ** (bits - 1)) <= fold_seed(seed, bits) < 2 ** (bits - 1)
    if -(2**31) <= seed < 2**31:
        assert fold_seed(seed, 32) == seed


def test_defaults_never_replace_what_was_asked() -> None:
    filled = with_defaults(EVERYTHING, {"temperature": 0.1, "top_p": 0.1, "top_k": 1, "min_p": 0.1, "seed": 1})
    assert filled == EVERYTHING


def test_what_the_recorder_sent_is_read_by_our_messages() -> None:
    sent = sglang.GenerateRequest.FromString(bytes.fromhex(golden("sglang-0.5.23")["stop token"]["request_hex"]))
    assert (len(sent.input_ids), list(sent.sampling_params.stop_token_ids), sent.rid) == (100, [7889], "stop-token")
    sent = native.GenerateRequest.FromString(bytes.fromhex(golden("vllm-native-0.33.0")["no text"]["request_hex"]))
    assert (sent.stopping.max_new_tokens, sent.response.output_text, sent.response.output_token_ids) == (4, False, True)
    assert messages(golden("vllm-0.32.0")["Abort unknown id"]) == [b""]


def test_o14_an_adapter_goes_by_its_name_and_is_not_mentioned_where_none_is_asked_for() -> None:
    asked = replace(request(), lora="a")
    assert to_sglang(asked).lora_path == "a"
    assert not to_sglang(request()).HasField("lora_path")
    assert to_native(asked).lora_name == "a"
    assert to_native(request()).lora_name == ""
    with pytest.raises(ValueError, match="no field"):
        to_vllm(asked)


@pytest.mark.parametrize("handover", [Keep(), Rendezvous("10.0.0.1", 8998, 7)])
def test_o14_both_legs_of_a_hand_over_name_the_adapter(handover: Handover) -> None:
    for prefill_only in (True, False):
        asked = EngineRequest("0" * 32, [1, 2], 5, Sampling(), None, handover, prefill_only, "a")
        assert as_sent(asked).lora == "a"
