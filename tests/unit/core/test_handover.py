"""Where a prefill engine is met, and with whom an engine works."""

from __future__ import annotations

import pytest

from enginehouse.core.handover import meeting_point, no_meeting_point, pairing
from enginehouse.core.routing.candidate import Pairing
from enginehouse.domain.engine import EngineInfo, ProtocolName, Target
from enginehouse.testing.engines import fake_info


def sglang(**fields: object) -> EngineInfo:
    return fake_info(protocol=ProtocolName.SGLANG, **fields)


@pytest.mark.parametrize(
    ("target", "info", "point"),
    [
        (Target("a", 1), sglang(bootstrap_port=8998), ("a", 8998)),
        (Target("a", 1), sglang(bootstrap_port=8998, bootstrap_host="head"), ("head", 8998)),
        (Target("a", 1, bootstrap_port=9), sglang(bootstrap_port=8998), ("a", 9)),
        (Target("a", 1, bootstrap_port=9), sglang(), ("a", 9)),
        (Target("a", 1, bootstrap_host="told"), sglang(bootstrap_port=8998, bootstrap_host="head"), ("told", 8998)),
        (Target("fd00::5", 1), sglang(bootstrap_port=8998), ("fd00::5", 8998)),
        (Target("a", 1, bootstrap_host="told"), sglang(bootstrap_host="head"), None),
    ],
)
def test_the_operators_word_goes_first_then_the_engines_then_where_we_dial(
    target: Target, info: EngineInfo, point: tuple[str, int] | None
) -> None:
    assert meeting_point(target, info) == point
    assert (no_meeting_point(target, info) is None) is (point is not None)


def test_an_engine_of_vllm_is_met_nowhere_and_needs_to_be() -> None:
    for protocol in (ProtocolName.VLLM, ProtocolName.VLLM_NATIVE):
        assert no_meeting_point(Target("a", 1), fake_info(protocol=protocol)) is None


def test_what_has_to_agree_comes_from_the_engine_and_the_group_from_the_operator() -> None:
    info = sglang(transfer_backend="nixl", kv_dtype="fp8_e5m2", block_size=64)
    assert pairing(Target("a", 1, group="blue"), info) == Pairing("sglang", "nixl", "fp8_e5m2", 64, "blue")
    assert pairing(Target("a", 1), fake_info(block_size=None)) == Pairing("vllm")
