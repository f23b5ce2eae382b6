"""The two requests of a hand-over on the wire, what comes back from them, and which errors their failures are."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginehouse._proto import sglang_runtime_v1_pb2 as sglang
from enginehouse._proto import vllm_native_pb2 as native
from enginehouse.adapters.engines import sglang_prompt
from enginehouse.adapters.engines.engine import Engine
from enginehouse.adapters.engines.legs import as_sent
from enginehouse.adapters.engines.protocol import EngineProtocol, ProbeSettings
from enginehouse.adapters.engines.sglang import SglangProtocol
from enginehouse.adapters.engines.vllm import VllmProtocol
from enginehouse.adapters.engines.vllm_native import VllmNativeProtocol
from enginehouse.domain.errors import (
    EngineBroken,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    HandoverFailed,
)
from enginehouse.domain.handover import Fetch, Handover, Keep, Rendezvous
from enginehouse.domain.link import LinkError
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Delta, Finish
from tests.unit.adapters.engines.doubles import FakeLink, Told, status_error
from tests.unit.adapters.engines.test_encode import EVERYTHING, TARGET, request, to_native, to_sglang, to_vllm
from tests.unit.adapters.engines.test_engine import with_engine

MEETING = Rendezvous("10.0.0.7", 8998, 2**63 - 25)


def leg(handover: Handover | None, *, prefill_only: bool = False) -> EngineRequest:
    return as_sent(EngineRequest("0" * 32, [1, 2], 17, EVERYTHING, 2, handover, prefill_only))


# What is sent.


def test_p3_sglang_both_legs_carry_the_same_meeting_and_no_digit_of_the_room_is_lost() -> None:
    want = sglang.DisaggregatedParams(bootstrap_host="10.0.0.7", bootstrap_port=8998, bootstrap_room=2**63 - 25)
    assert to_sglang(leg(MEETING, prefill_only=True)).disaggregated_params == want
    assert to_sglang(leg(MEETING)).disaggregated_params == want
    assert not to_sglang(request()).HasField("disaggregated_params")


def test_sglang_the_two_legs_share_the_prompts_bytes() -> None:
    tokens = [1, 2, 70_000]
    with patch.object(sglang_prompt, "_field", wraps=sglang_prompt._field) as made:
        for only in (True, False):
            sent = to_sglang(as_sent(EngineRequest("0" * 32, tokens, 5, handover=MEETING, prefill_only=only)))
            assert list(sent.input_ids) == tokens
    assert made.call_count == 1


@pytest.mark.parametrize("handover", [MEETING, Keep()])
@pytest.mark.parametrize(
    "asked", [Sampling(stop_token_ids=(5,)), Sampling(ignore_eos=True), Sampling(min_tokens=3), Sampling(min_tokens=1)]
)
def test_whatever_the_user_asks_of_length_a_prefill_leg_is_of_one_token(handover: Handover, asked: Sampling) -> None:
    sent = as_sent(EngineRequest("0" * 32, [1], 9, asked, handover=handover, prefill_only=True))
    assert (sent.max_tokens, sent.sampling) == (1, Sampling(min_tokens=1 if handover == Keep() else 0))


@pytest.mark.parametrize(("host", "sent"), [("fd00::7", "[fd00::7]"), ("node-0", "node-0"), ("10.0.0.7", "10.0.0.7")])
def test_sglang_an_ipv6_host_is_in_brackets(host: str, sent: str) -> None:
    made = to_sglang(leg(Rendezvous(host, 8998, 1)))
    assert made.disaggregated_params.bootstrap_host == sent


def test_sglang_the_room_alone_chooses_the_rank_that_prefills() -> None:
    assert not to_sglang(leg(MEETING, prefill_only=True)).HasField("routed_dp_rank")
    assert to_sglang(leg(MEETING)).routed_dp_rank == 2


def test_p9_a_prefill_leg_generates_one_token_in_every_spelling() -> None:
    rendezvous = to_sglang(leg(MEETING, prefill_only=True)).sampling_params
    assert rendezvous == sglang.SamplingParams(
        temperature=0.5,
        top_p=0.75,
        top_k=40,
        min_p=0.25,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.25,
        max_new_tokens=1,
        seed=12,
    )
    keep = to_vllm(leg(Keep(), prefill_only=True)).sampling_params
    assert (keep.max_tokens, keep.min_tokens, list(keep.stop_token_ids), keep.ignore_eos) == (1, 1, [], False)
    stopping = to_native(leg(Keep(), prefill_only=True)).stopping
    assert stopping == native.Stopping(max_new_tokens=1, min_new_tokens=1)


@pytest.mark.parametrize("handover", [MEETING, Fetch(b"{}"), None])
def test_a_decode_leg_carries_all_that_the_client_asked_for(handover: Handover | None) -> None:
    assert leg(handover) == EngineRequest("0" * 32, [1, 2], 17, EVERYTHING, 2, handover)


def test_a_minimum_beyond_the_limit_is_left_alone_unless_a_kept_cache_is_only_to_be_freed() -> None:
    def least(handover: Handover | None) -> int:
        return as_sent(EngineRequest("0" * 32, [1], 1, EVERYTHING, handover=handover)).sampling.min_tokens

    assert least(Fetch(b"{}")) == 1
    assert least(None) == least(MEETING) == 3


def test_vllm_keep_asks_for_remote_decode() -> None:
    want = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert json.loads(to_vllm(leg(Keep(), prefill_only=True)).kv_transfer_params_json) == want
    sent = Struct.FromString(to_native(leg(Keep(), prefill_only=True)).kv.kv_transfer_params)
    assert dict(sent.items()) == want
    assert not to_vllm(request()).HasField("kv_transfer_params_json")
    assert not to_native(request()).HasField("kv")


def test_a_prefill_engine_of_vllm_is_told_its_rank() -> None:
    sent = leg(Keep(), prefill_only=True)
    assert to_vllm(sent).data_parallel_rank == 2
    assert protocol(VllmNativeProtocol).metadata(sent) == (("x-data-parallel-rank", "2"),)


@pytest.mark.parametrize(
    ("kind", "handover"),
    [
        (SglangProtocol, Keep()),
        (SglangProtocol, Fetch(b"")),
        (SglangProtocol, Rendezvous("h", 1, 0)),
        (SglangProtocol, Rendezvous("h", 1, 2**63)),
        (VllmProtocol, MEETING),
        (VllmNativeProtocol, MEETING),
    ],
)
def test_what_the_protocol_has_no_room_for_is_never_sent(kind: type[EngineProtocol], handover: Handover) -> None:
    with pytest.raises(ValueError, match=r"."):
        protocol(kind).encode(leg(handover))


# What was kept travels unchanged.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PARAMS = st.dictionaries(st.text(max_size=8), JSON, min_size=1, max_size=5)


@given(PARAMS, st.booleans())
def test_vllm_what_was_kept_is_sent_on_letter_for_letter(params: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(params, ensure_ascii=ascii_only)
    kept = decode(VllmProtocol, complete(text)).kept
    assert kept is not None
    sent = to_vllm(leg(Fetch(kept))).kv_transfer_params_json
    assert sent == text
    assert json.loads(sent) == params


@given(PARAMS)
def test_native_what_was_kept_is_sent_on_byte_for_byte(params: dict[str, Any]) -> None:
    made = Struct()
    made.update(json.loads(json.dumps(params), parse_int=float))  # a Struct has only doubles: its writer rounds
    kept = decode(VllmNativeProtocol, last(made.SerializeToString())).kept
    assert kept == made.SerializeToString()
    assert to_native(leg(Fetch(kept))).kv.kv_transfer_params == kept


# What comes back.


def test_p7_a_prefill_leg_that_kept_nothing_is_a_failed_handover() -> None:
    for text in (None, "", "{}", "null"):
        told = heard(Keep(), complete(text))
        assert isinstance(told.error, HandoverFailed)
        assert told.error.message.startswith("the prefill engine kept nothing")
        assert told.deltas == []


def test_a_prefill_leg_ends_with_what_it_kept() -> None:
    told = heard(Keep(), complete('{"a": 1}'))
    assert told.ends == [None]
    assert told.deltas == [Delta([7], Finish.LENGTH, 2, 0, b'{"a": 1}')]
    told = heard(Keep(), begun(), complete('{"a": 1}'))
    assert told.ends == [None]
    assert told.deltas == [Delta([7], None, 2, 0), Delta((), Finish.LENGTH, 2, 0, b'{"a": 1}')]


@pytest.mark.parametrize("handover", [None, Fetch(b"{}")])
def test_an_answer_that_nobody_asked_to_keep_ends_as_ever(handover: Handover | None) -> None:
    assert heard(handover, complete(None)).ends == [None]


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_p7_a_decode_leg_that_fails_before_its_first_token_is_a_failed_handover(reason: str) -> None:
    told = heard(Fetch(b"{}"), complete(None, reason))
    assert isinstance(told.error, HandoverFailed)
    assert isinstance(told.error.__cause__, EngineFailed)
    assert heard(Fetch(b"{}"), status_error("INTERNAL", "engine failed")).error.code == "handover_failed"


def test_later_and_other_failures_of_a_decode_leg_are_what_they_are() -> None:
    assert type(heard(Fetch(b"{}"), begun(), complete(None, "error")).error) is EngineFailed
    for status, kind in (("UNAVAILABLE", EngineUnavailable), ("INVALID_ARGUMENT", EngineRejected)):
        assert type(heard(Fetch(b"{}"), status_error(status)).error) is kind
    assert type(heard(Fetch(b"{}"), b"\xff").error) is EngineBroken
    assert type(heard(None, complete(None, "error")).error) is EngineFailed


FAILURES = [
    "Prefill bootstrap failed for request rank=0 req.rid='r' req.bootstrap_room=5 with exception no peer",
    "Decode handshake failed for request rank=0 decode_req.req.rid='r'",
    "Decode transfer failed for request rank=0 decode_req.req.rid='r'",
    "KVTransferError: it might be dead",
    "Bootstrap timed out",
    "Invalid request: Disaggregated request received without bootstrap room id. req.rid='r'",
]


@pytest.mark.parametrize("text", FAILURES)
@pytest.mark.parametrize("status", [None, 400, 500, 503])
def test_p7_sglang_a_failed_transfer_is_never_an_answer_nor_the_clients_fault(text: str, status: int | None) -> None:
    reason = {"type": "abort", "message": text, "status_code": status}
    meta = {"finish_reason": json.dumps(reason), "completion_tokens": "0"}
    with pytest.raises(HandoverFailed) as caught:
        decode(SglangProtocol, sglang.GenerateResponse(meta_info=meta, finished=True).SerializeToString())
    link = protocol(SglangProtocol).failure(status_error("INTERNAL", text))
    assert isinstance(link, HandoverFailed)
    for error in (caught.value, link):
        assert (error.retryable, error.suspect, error.status) == (True, False, 502)
        assert "bootstrap" not in error.message
        assert error.__cause__ is not None


def test_sglang_other_ends_of_a_leg_stay_what_they_are() -> None:
    def end(message: str, status: int | None) -> EngineError:
        reason = {"type": "abort", "message": message, "status_code": status}
        meta = {"finish_reason": json.dumps(reason)}
        with pytest.raises(EngineError) as caught:
            decode(SglangProtocol, sglang.GenerateResponse(meta_info=meta, finished=True).SerializeToString())
        return caught.value

    assert type(end("The request queue is full.", 503)) is EngineOverloaded
    assert type(end("Aborted", None)) is EngineFailed
    assert type(end("too long", 400)) is EngineRejected
    too_long = status_error("INTERNAL", "The input (9 tokens) is longer than the model's context length (4 tokens).")
    assert type(protocol(SglangProtocol).failure(too_long)) is EngineRejected


def protocol(kind: type[EngineProtocol]) -> EngineProtocol:
    return kind(FakeLink(), TARGET, ProbeSettings())


def decode(kind: type[EngineProtocol], message: bytes) -> Delta:
    delta = protocol(kind).decoder(EngineRequest("", (), 1)).decode(message)
    assert delta is not None
    return delta


def begun() -> bytes:
    chunk = vllm.GenerateStreamChunk(token_ids=[7], prompt_tokens=2)
    return vllm.GenerateResponse(chunk=chunk).SerializeToString()


def complete(kept: str | None, reason: str = "length") -> bytes:
    ids = [7] if reason == "length" else []
    made = vllm.GenerateComplete(output_ids=ids, finish_reason=reason, prompt_tokens=2, kv_transfer_params_json=kept)
    return vllm.GenerateResponse(complete=made).SerializeToString()


def last(kept: bytes) -> bytes:
    info = native.FinishInfo(finish_reason=native.LENGTH, kv_transfer_params=kept)
    return native.GenerateResponse(
        output=native.Output(token_ids=[7], num_tokens=1, finish_info=info)
    ).SerializeToString()


def heard(handover: Handover | None, *sent: bytes | LinkError) -> Told:
    """What is told of an answer of vLLM's servicer."""
    told = Told()

    async def test(engine: Engine, link: FakeLink) -> None:
        engine.generate(EngineRequest("0" * 32, [1, 2], 4, handover=handover, prefill_only=handover == Keep()), told)
        asked = vllm.GenerateRequest.FromString(link.calls[-1].message)
        assert asked.sampling_params.max_tokens == (1 if handover == Keep() else 4)
        for message in sent:
            if isinstance(message, LinkError):
                link.calls[-1].sink.on_end(message)
            else:
                link.calls[-1].sink.on_message(message)

    with_engine(test)
    return told
