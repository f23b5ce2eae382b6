"""What a request asks of an answer besides its sampling, in each engine's words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginehouse._proto import sglang_runtime_v1_pb2 as sglang
from enginehouse._proto import vllm_native_pb2 as native
from enginehouse.adapters.engines.engine import Engine
from enginehouse.adapters.engines.kv_sources import KvSourceSettings
from enginehouse.adapters.engines.legs import as_sent
from enginehouse.adapters.engines.protocol import ProbeSettings
from enginehouse.adapters.engines.sglang import SglangProtocol
from enginehouse.adapters.engines.vllm import VllmProtocol
from enginehouse.adapters.engines.vllm_native import VllmNativeProtocol
from enginehouse.domain.constraint import Constraint, Grammar, JsonObject, JsonSchema, OneOf, Regex, StructuralTag
from enginehouse.domain.engine import Ability, EngineInfo, ProtocolName, Target
from enginehouse.domain.errors import EngineError, EngineFailed, EngineRejected, EngineTimeout
from enginehouse.domain.handover import Fetch, Handover, Keep, Rendezvous
from enginehouse.domain.link import LinkError
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Embedding
from tests.unit.adapters.engines.doubles import HANGS, Answer, FakeLink, Told, status_error

TARGET = Target("127.0.0.1", 1)
S = "/sglang.runtime.v1.SglangService/"
SCHEMA = '{"type": "array"}'
ALL: list[Constraint] = [
    JsonSchema(SCHEMA),
    JsonObject(),
    Regex("a+"),
    Grammar('root ::= "a"'),
    OneOf(("a", "b")),
    StructuralTag('{"type": "structural_tag"}'),
]


def request(
    sampling: Sampling,
    handover: Handover | None = None,
    *,
    prefill_only: bool = False,
    tokens: tuple[int, ...] = (1, 2),
) -> EngineRequest:
    return EngineRequest("0" * 32, tokens, 17, sampling, None, handover, prefill_only)


def sglang_of(**server: Any) -> SglangProtocol:
    """The protocol after it has been told this of the server."""
    link = FakeLink(
        {
            S + "GetServerInfo": sglang.GetServerInfoResponse(json_info=json.dumps(server)).SerializeToString(),
            S + "GetModelInfo": sglang.GetModelInfoResponse(json_info='{"served_model_name": "m"}').SerializeToString(),
            S + "ListModels": b"",
        },
        {S + "WatchEngineState": status_error("UNIMPLEMENTED")},
    )

    async def told() -> SglangProtocol:
        protocol = SglangProtocol(link, TARGET, ProbeSettings())
        await protocol.describe()
        return protocol

    return asyncio.run(told())


def to_sglang(sampling: Sampling, **server: Any) -> sglang.GenerateRequest:
    return sglang.GenerateRequest.FromString(sglang_of(**server).encode(request(sampling)))


def to_vllm(asked: EngineRequest) -> Any:
    protocol = VllmProtocol(FakeLink(), TARGET, ProbeSettings())
    return vllm.GenerateRequest.FromString(protocol.encode(asked)).sampling_params


def to_native(asked: EngineRequest) -> native.GenerateRequest:
    return native.GenerateRequest.FromString(VllmNativeProtocol(FakeLink(), TARGET, ProbeSettings()).encode(asked))


@pytest.mark.parametrize(
    ("constraint", "sent"),
    list(
        zip(
            ALL,
            [
                sglang.GuidedDecoding(json_schema=SCHEMA),
                sglang.GuidedDecoding(json_schema='{"type": "object"}'),
                sglang.GuidedDecoding(regex="a+"),
                sglang.GuidedDecoding(ebnf='root ::= "a"'),
                sglang.GuidedDecoding(choice=sglang.ChoiceConstraint(values=["a", "b"])),
                sglang.GuidedDecoding(structural_tag='{"type": "structural_tag"}'),
            ],
            strict=True,
        )
    ),
)
def test_sglangs_constraints(constraint: Constraint, sent: sglang.GuidedDecoding) -> None:
    params = to_sglang(Sampling(constraint=constraint), kv_events=None).sampling_params
    assert params == sglang.SamplingParams(max_new_tokens=17, guided_decoding=sent)


@pytest.mark.parametrize(
    ("constraint", "field", "text"),
    [
        (ALL[0], "json_schema", SCHEMA),
        (ALL[1], "json_schema", '{"type": "object"}'),
        (ALL[2], "regex", "a+"),
    ],
)
def test_an_old_sglang_has_fields_of_before(constraint: Constraint, field: str, text: str) -> None:
    params = to_sglang(Sampling(constraint=constraint)).sampling_params
    assert params == sglang.SamplingParams(max_new_tokens=17, **{field: text})  # type: ignore[arg-type]


@pytest.mark.parametrize("constraint", ALL[3:])
def test_what_an_old_sglang_would_ignore_is_not_sent(constraint: Constraint) -> None:
    with pytest.raises(ValueError, match="constraint"):
        to_sglang(Sampling(constraint=constraint))


@pytest.mark.parametrize(
    ("constraint", "field", "value"),
    [
        (ALL[0], "json_schema", SCHEMA),
        (ALL[1], "json_object", True),
        (ALL[2], "regex", "a+"),
        (ALL[3], "grammar", 'root ::= "a"'),
        (ALL[4], "choice", vllm.ChoiceConstraint(choices=["a", "b"])),
        (ALL[5], "structural_tag", '{"type": "structural_tag"}'),
    ],
)
def test_vllms_constraints_hold_from_the_first_token(constraint: Constraint, field: str, value: Any) -> None:
    sent = to_vllm(request(Sampling(constraint=constraint)))
    assert sent.WhichOneof("constraint") == field
    assert getattr(sent, field) == value
    assert sent.grammar_from_first_token
    assert not to_vllm(request(Sampling())).grammar_from_first_token


@pytest.mark.parametrize(
    ("constraint", "sent"),
    list(
        zip(
            ALL,
            [
                native.Decoding(json=SCHEMA),
                native.Decoding(json_object=True),
                native.Decoding(regex="a+"),
                native.Decoding(grammar='root ::= "a"'),
                native.Decoding(choice=native.Choices(choices=["a", "b"])),
                native.Decoding(structural_tag='{"type": "structural_tag"}'),
            ],
            strict=True,
        )
    ),
)
def test_the_native_engines_constraints(constraint: Constraint, sent: native.Decoding) -> None:
    message = to_native(request(Sampling(constraint=constraint)))
    assert message.decoding == sent
    assert message.reasoning.reasoning_ended
    assert not to_native(request(Sampling())).HasField("reasoning")


BIAS = ((5, -100.0), (70_000, 2.5))


def test_biases() -> None:
    assert dict(to_vllm(request(Sampling(logit_bias=BIAS))).logit_bias) == dict(BIAS)
    assert dict(to_native(request(Sampling(logit_bias=BIAS))).decoding.logit_bias) == dict(BIAS)
    with pytest.raises(ValueError, match="no field"):
        to_sglang(Sampling(logit_bias=BIAS))


@pytest.mark.parametrize(
    ("own", "prompt", "top", "start"),
    [(0, None, 0, -1), (3, None, 3, -1), (None, 0, 0, 0), (2, 5, 5, 0), (5, 2, 5, 0)],
)
def test_o10_sglang_is_asked_for_log_probabilities(own: int | None, prompt: int | None, top: int, start: int) -> None:
    sent = to_sglang(Sampling(logprobs=own, prompt_logprobs=prompt))
    assert (sent.return_logprob, sent.top_logprobs_num, sent.logprob_start_len) == (True, top, start)


def test_o10_nobody_is_asked_for_log_probabilities_that_nobody_wants() -> None:
    sent = to_sglang(Sampling())
    assert not any(map(sent.HasField, ("return_logprob", "top_logprobs_num", "logprob_start_len", "priority")))
    params = to_vllm(request(Sampling()))
    assert not any(map(params.HasField, ("logprobs", "prompt_logprobs")))
    assert to_native(request(Sampling())).response == native.ResponseOptions(output_text=False, output_token_ids=True)


@pytest.mark.parametrize(("most", "sent"), [(0, 0), (1, 2), (19, 20), (20, 20)])
def test_o10_vllm_is_asked_for_one_more(most: int, sent: int) -> None:
    params = to_vllm(request(Sampling(logprobs=most)))
    assert (params.logprobs, params.HasField("logprobs"), params.HasField("prompt_logprobs")) == (sent, True, False)
    params = to_vllm(request(Sampling(prompt_logprobs=most)))
    assert (params.prompt_logprobs, params.HasField("prompt_logprobs"), params.HasField("logprobs")) == (
        sent,
        True,
        False,
    )


def test_o10_the_native_engine_is_asked_for_candidates() -> None:
    base = {"output_text": False, "output_token_ids": True}
    assert to_native(request(Sampling(logprobs=0, prompt_logprobs=0))).response == native.ResponseOptions(
        **base, output_logprobs=True, prompt_logprobs=True
    )
    assert to_native(request(Sampling(logprobs=2, prompt_logprobs=3))).response == native.ResponseOptions(
        **base,
        output_logprobs=True,
        output_candidates=native.CandidateTokens(top_n=2),
        prompt_logprobs=True,
        prompt_candidates=native.CandidateTokens(top_n=3),
    )


@pytest.mark.parametrize(
    ("server", "sent"),
    [
        ({}, 0),
        ({"kv_events": None}, 0),
        ({"enable_priority_scheduling": True}, 0),  # its release is not known to have the field
        ({"kv_events": None, "enable_priority_scheduling": True}, -7),  # there the larger ones go first
        (
            {
                "kv_events": None,
                "enable_priority_scheduling": True,
                "schedule_low_priority_values_first": True,
            },
            7,
        ),
    ],
)
def test_sglang_is_told_priorities_in_its_own_order_and_only_where_it_heeds_them(
    server: dict[str, Any], sent: int
) -> None:
    message = to_sglang(Sampling(priority=7), **server)
    assert (message.HasField("priority"), message.priority) == (sent != 0, sent)


def test_the_most_urgent_of_all_fits_when_it_is_turned_round() -> None:
    sent = to_sglang(Sampling(priority=-(2**31)), kv_events=None, enable_priority_scheduling=True)
    assert sent.priority == 2**31 - 1


def test_the_native_engine_is_told_priorities() -> None:
    assert to_native(request(Sampling(priority=-7))).priority == -7


def test_a_wish_that_the_protocol_has_no_words_for_rejects_the_request() -> None:
    async def run() -> Told:
        protocol = SglangProtocol(link, TARGET, ProbeSettings())
        engine = Engine(link, TARGET, _info(ProtocolName.SGLANG), protocol, ProbeSettings(), KvSourceSettings())
        told = Told()
        engine.generate(request(Sampling(logit_bias=BIAS)), told)
        await asyncio.sleep(0)
        return told

    link = FakeLink()
    assert isinstance(asyncio.run(run()).error, EngineRejected)
    assert not link.asked


# The legs of a hand-over.

WISHES = Sampling(
    temperature=0.5,
    logit_bias=BIAS,
    constraint=JsonSchema(SCHEMA),
    logprobs=2,
    prompt_logprobs=1,
    priority=3,
    ignore_eos=True,
)


def test_vllms_prefill_engine_hears_of_the_priority_only() -> None:
    sent = as_sent(request(WISHES, Keep(), prefill_only=True)).sampling
    assert sent == Sampling(temperature=0.5, priority=3, min_tokens=1)
    assert as_sent(request(WISHES, Fetch(b"{}"))).sampling == WISHES


def test_sglangs_prefill_engine_draws_the_first_token_as_the_answer_wants_it() -> None:
    wishes = Sampling(constraint=JsonSchema(SCHEMA), logprobs=2, priority=3)
    met = Rendezvous("h", 1, 5)
    sent = as_sent(request(wishes, met, prefill_only=True))
    assert (sent.sampling, sent.max_tokens) == (wishes, 1)
    assert as_sent(request(wishes, met)).sampling == wishes


# Embeddings.

VALUES = [0.5, -0.25, 1.0]
V = "/vllm.grpc.engine.VllmEngine/"


def _info(protocol: ProtocolName) -> EngineInfo:
    return EngineInfo(protocol, "m", abilities=frozenset({Ability.EMBED}))


def embed(link: FakeLink, kind: type[SglangProtocol | VllmProtocol | VllmNativeProtocol]) -> Embedding:
    async def run() -> Embedding:
        protocol = kind(link, TARGET, ProbeSettings())
        engine = Engine(link, TARGET, _info(kind.name), protocol, ProbeSettings(), KvSourceSettings())
        return await engine.embed("0" * 32, [1, 2, 70_000], timeout=7.0)

    return asyncio.run(run())


def test_sglangs_embedding() -> None:
    def answer(message: bytes) -> bytes:
        sent = sglang.EmbedRequest.FromString(message)
        assert (list(sent.input_ids), sent.rid) == ([1, 2, 70_000], "0" * 32)
        return sglang.EmbedResponse(embedding=VALUES, meta_info={"prompt_tokens": "4"}).SerializeToString()

    link = FakeLink({S + "Embed": answer})
    assert embed(link, SglangProtocol) == Embedding(VALUES, 4)
    assert link.timeouts == [7.0]
    silent = sglang.EmbedResponse(embedding=VALUES).SerializeToString()
    assert embed(FakeLink({S + "Embed": silent}), SglangProtocol) == Embedding(VALUES, 3)


def test_vllms_embedding() -> None:
    def answer(message: bytes) -> bytes:
        sent = vllm.EmbedRequest.FromString(message)
        assert (list(sent.tokenized.input_ids), sent.request_id) == ([1, 2, 70_000], "0" * 32)
        made: bytes = vllm.EmbedResponse(embedding=VALUES, prompt_tokens=3, embedding_dim=3).SerializeToString()
        return made

    assert embed(FakeLink({V + "Embed": answer}), VllmProtocol) == Embedding(VALUES, 3)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (status_error("INVALID_ARGUMENT", "too long"), EngineRejected),
        (status_error("INTERNAL", "boom"), EngineFailed),
        (
            status_error("INTERNAL", "The input (9 tokens) is longer than the model's context length (4)"),
            EngineRejected,
        ),
        (b"", EngineError),
        (b"\xff\xff", EngineError),
    ],
)
def test_embeddings_fail_as_answers_do(failure: Answer, kind: type[EngineError]) -> None:
    with pytest.raises(kind):
        embed(FakeLink({S + "Embed": failure}), SglangProtocol)


def test_an_embedding_that_takes_too_long() -> None:
    late = LinkError(HANGS.kind, HANGS.text, may_have_been_processed=True)
    with pytest.raises(EngineTimeout):
        embed(FakeLink({V + "Embed": late}), VllmProtocol)


def test_the_native_protocol_has_no_embeddings() -> None:
    with pytest.raises(EngineRejected, match="no embeddings"):
        embed(FakeLink(), VllmNativeProtocol)
