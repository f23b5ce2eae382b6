"""What SGLang says of itself, over releases and deployments."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from enginehouse._proto.sglang_runtime_v1_pb2 import (
    GetLoadResponse,
    GetModelInfoResponse,
    GetServerInfoResponse,
    ListModelsResponse,
    ModelCard,
)
from enginehouse.adapters.engines.sglang import _json_object
from enginehouse.adapters.engines.sglang_info import Facts, engine_info
from enginehouse.domain.engine import Ability, EngineInfo, KvEventSource, ProtocolName, Role
from enginehouse.domain.errors import ProbeFailed
from tests.unit.adapters.engines.doubles import golden, messages


def read(server: dict[str, Any], *, cards: list[ModelCard] | None = None, loads: int = 0, **model: Any) -> EngineInfo:
    base = {"served_model_name": "m", **server}
    given = tuple(cards if cards is not None else [ModelCard(id="m", root="m")])
    return engine_info(Facts(base, model, given, [{}] * loads), "10.0.0.7")


def test_the_recorded_release() -> None:
    cases = golden("sglang-0.5.23")
    (server,), (model,), (cards,), (load,) = (
        messages(cases[name]) for name in ("GetServerInfo", "GetModelInfo", "ListModels", "GetLoad")
    )
    facts = Facts(
        json.loads(GetServerInfoResponse.FromString(server).json_info),
        json.loads(GetModelInfoResponse.FromString(model).json_info),
        tuple(ListModelsResponse.FromString(cards).models),
        json.loads(GetLoadResponse.FromString(load).json_info),
        instance_id=1796030845748858859,
    )
    info = engine_info(facts, "fd00::5")
    assert info == EngineInfo(
        protocol=ProtocolName.SGLANG,
        model="m",
        model_path="/models/tiny",
        tokenizer_path="/models/tiny",
        context_length=4096,
        max_prompt_tokens=4090,
        block_size=16,
        kv_capacity_tokens=160_000,
        max_running=256,
        role=Role.AGGREGATED,
        instance_id="1796030845748858859",
        version=">=0.5.23",
        kv_event_sources=(KvEventSource(0, "tcp://[fd00::5]:61101", "", "tcp://[fd00::5]:61102", 16),),
        abilities=BASE | ALL_CONSTRAINTS,
    )
    assert "SECRET" not in repr(info)


@pytest.mark.parametrize(
    ("card", "server", "context", "longest"),
    [
        (4096, {"context_length": 8192, "max_req_input_len": 9000}, 4096, None),
        (None, {"context_length": "8192", "max_req_input_len": "8186"}, 8192, 8186),
        (None, {"context_length": None, "max_req_input_len": 4090}, 4090, None),
        (None, {}, None, None),
        (None, {"context_length": "many"}, None, None),
    ],
)
def test_context_length_precedence(
    card: int | None, server: dict[str, Any], context: int | None, longest: int | None
) -> None:
    info = read(server, cards=[ModelCard(id="m", root="m", max_model_len=card)])
    assert (info.context_length, info.max_prompt_tokens) == (context, longest)


@pytest.mark.parametrize(
    ("server", "loads", "ranks"),
    [
        ({"dp_size": 4, "attn_dp_size": 4}, 0, 4),  # before 0.5.22 attn_dp_size counts for nothing
        ({"dp_size": 1, "attn_dp_size": 4, "kv_event_sources": []}, 0, 4),
        ({"dp_size": 2, "attn_dp_size": 4, "kv_event_sources": []}, 0, 8),
        ({"dp_size": 2}, 3, 3),
        ({"dp_size": 2, "kv_events": {"dp_size": 5}}, 3, 5),
        ({"dp_size": "2"}, 0, 2),
        ({}, 0, 1),
    ],
)
def test_k7_rank_count(server: dict[str, Any], loads: int, ranks: int) -> None:
    assert read(server, loads=loads).ranks == ranks


@pytest.mark.parametrize(
    ("mode", "role"),
    [("null", Role.AGGREGATED), (None, Role.AGGREGATED), ("prefill", Role.PREFILL), ("decode", Role.DECODE)],
)
def test_roles(mode: str | None, role: Role) -> None:
    info = read({"disaggregation_mode": mode, "disaggregation_bootstrap_port": 8998})
    assert info.role is role
    assert info.bootstrap_port == (8998 if role is Role.PREFILL else None)


@pytest.mark.parametrize(
    ("told", "host"),
    [
        ("10.0.0.9:5000", "10.0.0.9"),
        ("node-0.set.svc:5000", "node-0.set.svc"),
        ("tcp://10.0.0.9:5000", "10.0.0.9"),
        ("[fd00::9]:5000", "fd00::9"),
        ("fd00::9:5000", None),
        ("127.0.0.1:5000", None),
        ("[::1]:5000", None),
        ("localhost:5000", None),
        ("0.0.0.0:5000", None),
        ("[::]:5000", None),
        (":5000", None),
        ("[fd00::", None),
        ("a b:5000", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_a_prefill_engine_is_met_where_its_first_node_is_if_others_can_go_there(told: object, host: str | None) -> None:
    engine = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8998, "dist_init_addr": told}
    info = read(engine)
    assert (info.bootstrap_host, info.bootstrap_port) == (host, 8998)
    info = read({**engine, "disaggregation_mode": "decode"})
    assert (info.bootstrap_host, info.bootstrap_port) == (None, None)


@pytest.mark.parametrize("port", [0, -1, 65536, "x", None, True, [8998], "9" * 5000])
def test_a_bootstrap_port_that_cannot_be_is_not_told(port: object) -> None:
    assert read({"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": port}).bootstrap_port in (None, 1)


def test_what_has_to_agree_between_two_engines_is_read() -> None:
    both = {"disaggregation_transfer_backend": "nixl", "kv_cache_dtype": "fp8_e5m2"}
    for mode in ("prefill", "decode"):
        info = read({**both, "disaggregation_mode": mode})
        assert (info.transfer_backend, info.kv_dtype) == ("nixl", "fp8_e5m2")
    assert read(both).transfer_backend is None
    assert read({"kv_cache_dtype": "auto"}).kv_dtype is None


@pytest.mark.parametrize(
    ("server", "version"),
    [
        ({}, None),
        ({"kv_events": None}, ">=0.5.18"),
        ({"kv_events": None, "launch_command": ""}, ">=0.5.20"),
        ({"grpc_response_timeout_secs": 300}, ">=0.5.21"),
        ({"kv_event_sources": []}, ">=0.5.22"),
    ],
)
def test_age_is_told_by_keys(server: dict[str, Any], version: str | None) -> None:
    assert read(server).version == version


def test_kv_sources_of_several_ranks_get_the_dialled_host() -> None:
    told = {"endpoint_host": "0.0.0.0", "endpoint_port_base": 5557, "topic": "kv", "block_size": 64, "dp_size": 2}
    assert read({"kv_events": told, "page_size": 16}).kv_event_sources == (
        KvEventSource(0, "tcp://10.0.0.7:5557", "kv", None, 64),
        KvEventSource(1, "tcp://10.0.0.7:5558", "kv", None, 64),
    )


def test_kv_sources_of_old_releases_come_from_the_option() -> None:
    option = json.dumps({"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"})
    assert read({"kv_events_config": option, "page_size": 16, "dp_size": 2}).kv_event_sources == (
        KvEventSource(0, "tcp://10.0.0.7:5557", "", "tcp://10.0.0.7:5657", 16),
        KvEventSource(1, "tcp://10.0.0.7:5558", "", "tcp://10.0.0.7:5658", 16),
    )
    for option in ("{}", "nonsense", '{"publisher": "zmq", "endpoint": "inproc://x"}', "[1]"):
        assert read({"kv_events_config": option, "page_size": 16}).kv_event_sources == ()
    assert read({"kv_events": None, "kv_events_config": '{"publisher": "zmq"}'}).kv_event_sources == ()


@pytest.mark.parametrize(("told", "port"), [(None, 5657), (5757, 5757)])
def test_where_past_events_are_is_told_since_0_5_22_and_before_by_the_option(told: int | None, port: int) -> None:
    block = {"endpoint_host": "*", "endpoint_port_base": 5557, "dp_size": 2}
    if told is not None:
        block["replay_endpoint_port_base"] = told
    option = json.dumps({"publisher": "zmq", "endpoint": "tcp://*:1", "replay_endpoint": "tcp://*:5657"})
    sources = read({"kv_events": block, "kv_events_config": option}).kv_event_sources
    assert [source.endpoint for source in sources] == ["tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558"]
    assert [source.replay_endpoint for source in sources] == [f"tcp://10.0.0.7:{port}", f"tcp://10.0.0.7:{port + 1}"]


def test_adapters_are_the_cards_with_a_parent() -> None:
    cards = [ModelCard(id="m", root="m", max_model_len=10), ModelCard(id="a", root="/a", parent="m")]
    assert read({}, cards=cards).loras == ("a",)


ALL_CONSTRAINTS = frozenset(
    {
        Ability.JSON_SCHEMA,
        Ability.JSON_OBJECT,
        Ability.REGEX,
        Ability.CHOICE,
        Ability.GRAMMAR,
        Ability.STRUCTURAL_TAG,
    }
)
FIRST = frozenset({Ability.JSON_SCHEMA, Ability.JSON_OBJECT, Ability.REGEX})
BASE = frozenset({Ability.GENERATE, Ability.LOGPROBS, Ability.PROMPT_LOGPROBS})
APART = (BASE | ALL_CONSTRAINTS) - {Ability.PROMPT_LOGPROBS}


@pytest.mark.parametrize(
    ("server", "abilities"),
    [
        ({}, BASE | FIRST),  # 0.5.16, or 0.5.17, which takes more and does not tell
        ({"kv_events": None}, BASE | ALL_CONSTRAINTS),
        ({"kv_events": None, "grammar_backend": "xgrammar"}, BASE | ALL_CONSTRAINTS),
        ({"kv_events": None, "grammar_backend": "none"}, BASE),
        ({"kv_events": None, "grammar_backend": "outlines"}, BASE | FIRST | {Ability.CHOICE}),
        ({"kv_events": None, "enable_priority_scheduling": True}, BASE | ALL_CONSTRAINTS | {Ability.PRIORITY}),
        ({"enable_priority_scheduling": True}, BASE | FIRST),
        ({"kv_events": None, "disaggregation_mode": "decode"}, APART),
        ({"kv_events": None, "disaggregation_mode": "prefill"}, APART),
    ],
)
def test_abilities_by_release_and_settings(server: dict[str, Any], abilities: frozenset[Ability]) -> None:
    assert read(server).abilities == abilities


def test_a_model_that_does_not_generate_embeds() -> None:
    assert read({"kv_events": None}, is_generation=False).abilities == {Ability.EMBED}


def test_page_size_times_context_parallel_ranks() -> None:
    assert read({"page_size": 16, "dcp_size": 2}).block_size == 32
    assert read({"page_size": None}).block_size is None


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan, [], {}, "9" * 5000, 10**400, True, "\ud800", None])
def test_m3_whatever_stands_where_a_number_or_a_word_should_be_it_is_read_as_not_told(odd: Any) -> None:
    keys = (
        "max_req_input_len",
        "context_length",
        "page_size",
        "dcp_size",
        "max_total_num_tokens",
        "max_running_requests",
        "dp_size",
        "attn_dp_size",
        "disaggregation_mode",
        "kv_events",
        "kv_events_config",
        "tokenizer_path",
        "tool_call_parser",
    )
    info = read({"kv_event_sources": 1, **dict.fromkeys(keys, odd)})
    assert (info.model, info.ranks) == ("m", 1)
    assert info.context_length in (None, 1)
    assert info.tokenizer_path in (None, "9" * 5000)
    told = read({"kv_events": dict.fromkeys(("dp_size", "block_size", "endpoint_port_base", "endpoint_host"), odd)})
    assert told.ranks == 1
    named = engine_info(Facts({"served_model_name": odd}, {}, [ModelCard(id="m", root="m")]), "h")
    assert named.model in ("m", "9" * 5000)


def test_m3_deep_json_is_read_as_not_told() -> None:
    deep = "[" * 100_000
    assert read({"kv_events_config": deep}).kv_event_sources == ()
    assert _json_object(deep) == {}


@pytest.mark.parametrize("server", [{"dp_size": 10**9}, {"kv_events": {"dp_size": 10**9, "endpoint_port_base": 5557}}])
def test_m3_an_absurd_number_of_ranks_is_refused(server: dict[str, Any]) -> None:
    with pytest.raises(ProbeFailed, match="1000000000 data-parallel ranks"):
        read(server)
