"""The error tables: what a failed call means for the request, and for whoever waits for the engine."""

from __future__ import annotations

import pytest

from enginehouse.adapters.engines.failures import engine_error, probe_failed, short
from enginehouse.adapters.engines.protocol import ProbeSettings
from enginehouse.adapters.engines.sglang import SglangProtocol
from enginehouse.adapters.engines.vllm import VllmProtocol
from enginehouse.adapters.engines.vllm_native import VllmNativeProtocol
from enginehouse.domain.engine import Target
from enginehouse.domain.errors import (
    AdapterNotLoaded,
    EngineBroken,
    EngineError,
    EngineFailed,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnavailable,
)
from enginehouse.domain.link import GrpcStatus, LinkError, LinkErrorKind
from tests.unit.adapters.engines.doubles import FakeLink, case_error, golden, status_error

STATUSES = {
    "CANCELLED": EngineFailed,
    "UNKNOWN": EngineFailed,
    "INVALID_ARGUMENT": EngineRejected,
    "DEADLINE_EXCEEDED": EngineTimeout,
    "NOT_FOUND": EngineRejected,
    "ALREADY_EXISTS": EngineRejected,
    "PERMISSION_DENIED": EngineUnavailable,
    "RESOURCE_EXHAUSTED": EngineOverloaded,
    "FAILED_PRECONDITION": EngineRejected,
    "ABORTED": EngineFailed,
    "OUT_OF_RANGE": EngineRejected,
    "UNIMPLEMENTED": EngineBroken,
    "INTERNAL": EngineFailed,
    "UNAVAILABLE": EngineUnavailable,
    "DATA_LOSS": EngineBroken,
    "UNAUTHENTICATED": EngineUnavailable,
}
HTTP = {
    EngineRejected: 400,
    EngineOverloaded: 429,
    EngineUnavailable: 503,
    EngineTimeout: 504,
    EngineFailed: 500,
    EngineBroken: 502,
}


@pytest.mark.parametrize("status", [status for status in GrpcStatus if status is not GrpcStatus.OK])
def test_g4_every_status_has_its_meaning(status: GrpcStatus) -> None:
    error = engine_error(status_error(status.name, "said"))
    assert type(error) is STATUSES[status.name]
    assert error.status == HTTP[type(error)]
    assert isinstance(error.__cause__, LinkError)


def test_g4_overload_and_rejection_do_not_put_the_engine_in_doubt() -> None:
    for code in ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "INTERNAL", "OUT_OF_RANGE", "CANCELLED"):
        assert not engine_error(status_error(code)).suspect
    for code in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "DATA_LOSS", "UNAUTHENTICATED"):
        assert engine_error(status_error(code)).suspect


@pytest.mark.parametrize(
    ("kind", "processed", "means"),
    [
        (LinkErrorKind.CONNECT, False, EngineUnavailable),
        (LinkErrorKind.LOST, True, EngineUnavailable),
        (LinkErrorKind.GOAWAY, False, EngineUnavailable),
        (LinkErrorKind.CLOSED, False, EngineUnavailable),
        (LinkErrorKind.RESET, True, EngineBroken),
        (LinkErrorKind.RESET, False, EngineUnavailable),
        (LinkErrorKind.PROTOCOL, True, EngineBroken),
        (LinkErrorKind.TRUNCATED, True, EngineBroken),
        (LinkErrorKind.TOO_LARGE, False, EngineRejected),
        (LinkErrorKind.TOO_LARGE, True, EngineRejected),
        (LinkErrorKind.DEADLINE, True, EngineTimeout),
        (LinkErrorKind.CANCELLED, True, EngineBroken),
    ],
)
def test_every_failure_of_the_link_has_its_meaning(
    kind: LinkErrorKind, processed: bool, means: type[EngineError]
) -> None:
    assert type(engine_error(LinkError(kind, "10.1.2.3 said", may_have_been_processed=processed))) is means


def test_no_kind_is_forgotten() -> None:
    for kind in LinkErrorKind:
        assert isinstance(engine_error(LinkError(kind, "x", may_have_been_processed=True)), EngineError)


def test_g3_a_message_that_a_grpc_server_finds_too_long_is_the_callers_fault() -> None:
    text = "SERVER: Received message larger than max (5000007 vs. 4194304)"
    assert type(engine_error(status_error("RESOURCE_EXHAUSTED", text))) is EngineRejected


def test_texts_for_clients_carry_no_internals_and_rejections_a_short_line() -> None:
    secret = "10.1.2.3:30001 /models/secret"
    for code, means in STATUSES.items():
        if means is not EngineRejected:
            assert secret not in engine_error(status_error(code, secret)).message
    long = engine_error(status_error("INVALID_ARGUMENT", "top_p must be\nin (0, 1]" + " " + "x" * 5000)).message
    assert "top_p must be in (0, 1]" in long
    assert len(long) < 400
    assert "\n" not in long
    assert len(short("y" * 1000)) == 300


TARGET = Target("127.0.0.1", 1)
PROTOCOLS = {
    "sglang-0.5.23": SglangProtocol(FakeLink(), TARGET, ProbeSettings()),
    "vllm-0.32.0": VllmProtocol(FakeLink(), TARGET, ProbeSettings()),
    "vllm-native-0.33.0": VllmNativeProtocol(FakeLink(), TARGET, ProbeSettings()),
}
RECORDED = {
    ("sglang-0.5.23", "prompt too long"): EngineRejected,
    ("sglang-0.5.23", "top_p 1.5"): EngineRejected,
    ("sglang-0.5.23", "empty input"): EngineRejected,
    ("sglang-0.5.23", "unknown LoRA"): AdapterNotLoaded,  # another engine may have it
    ("sglang-0.5.23", "routed_dp_rank 5"): EngineFailed,  # our mistake, not the caller's
    ("sglang-0.5.23", "duplicate id, the second"): EngineFailed,
    ("sglang-0.5.23", "guided_decoding empty"): EngineRejected,
    ("sglang-0.5.23", "Abort while streaming"): EngineFailed,
    ("sglang-0.5.23", "wrong wire type"): EngineFailed,
    ("vllm-0.32.0", "prompt too long"): EngineRejected,
    ("vllm-0.32.0", "top_p 1.5"): EngineRejected,
    ("vllm-0.32.0", "temperature -1"): EngineRejected,
    ("vllm-0.32.0", "token out of vocabulary"): EngineRejected,
    ("vllm-0.32.0", "max_tokens 0"): EngineRejected,
    ("vllm-0.32.0", "data_parallel_rank 3"): EngineRejected,
    ("vllm-native-0.33.0", "prompt too long"): EngineRejected,
    ("vllm-native-0.33.0", "temperature -1"): EngineRejected,
    ("vllm-native-0.33.0", "unknown model"): EngineRejected,
    ("vllm-native-0.33.0", "rank 3"): EngineRejected,
    ("vllm-native-0.33.0", "unknown LoRA"): AdapterNotLoaded,
}


@pytest.mark.parametrize(("source", "case"), RECORDED)
def test_g4_what_the_real_servers_said(source: str, case: str) -> None:
    error = case_error(golden(source)[case])
    assert error is not None
    assert type(PROTOCOLS[source].failure(error)) is RECORDED[source, case]


def test_o14_an_adapter_that_is_gone_is_a_model_that_is_not_found_and_no_fault_of_the_engine() -> None:
    native = PROTOCOLS["vllm-native-0.33.0"]
    for error in (
        native.failure(status_error("NOT_FOUND", "LoRA adapter `x` is not loaded")),
        native.failure(status_error("FAILED_PRECONDITION", "LoRA is not enabled")),
    ):
        assert type(error) is AdapterNotLoaded
        assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
        assert error.retryable
        assert not error.suspect
    assert type(native.failure(status_error("FAILED_PRECONDITION", "LoRAs aside"))) is EngineRejected


@pytest.mark.parametrize(
    ("error", "permanent", "words"),
    [
        (LinkError(LinkErrorKind.DEADLINE, "", may_have_been_processed=True), False, "no answer to Health within 3 s"),
        (LinkError(LinkErrorKind.CONNECT, "refused", may_have_been_processed=False), False, "cannot connect: refused"),
        (LinkError(LinkErrorKind.PROTOCOL, "HTTP/1.1", may_have_been_processed=True), True, "not its HTTP port"),
        (status_error("UNAVAILABLE", "later"), False, "Health answered UNAVAILABLE: later"),
        (LinkError(LinkErrorKind.LOST, "cut", may_have_been_processed=True), False, "connection-lost"),
    ],
)
def test_reasons_for_operators(error: LinkError, permanent: bool, words: str) -> None:
    failed = probe_failed(error, "Health", 3.0)
    assert words in failed.reason
    assert failed.permanent is permanent
