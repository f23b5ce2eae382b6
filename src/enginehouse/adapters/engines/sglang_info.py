"""What SGLang's information calls add up to: pure reading of their JSON, over all supported releases.

There is no version in it, so age is told by which keys exist. Numbers may arrive as strings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginehouse._proto.sglang_runtime_v1_pb2 import ModelCard
from enginehouse.adapters.engines import abilities
from enginehouse.adapters.engines.kv_sources import address, host_of, is_local, reachable
from enginehouse.adapters.engines.ranks import sound_ranks
from enginehouse.domain.engine import EngineInfo, KvEventSource, ProtocolName, Role, is_host
from enginehouse.domain.errors import ProbeFailed

_ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE, "null": Role.AGGREGATED, None: Role.AGGREGATED}
_APART = (Role.PREFILL, Role.DECODE)
_KEYS_BY_AGE = (
    ("grpc_features", "0.5.23"),
    ("kv_event_sources", "0.5.22"),
    ("grpc_response_timeout_secs", "0.5.21"),
    ("launch_command", "0.5.20"),
    ("kv_events", "0.5.18"),
)


@dataclass(frozen=True, slots=True)
class Facts:
    """The answers of one engine."""

    server: Mapping[str, Any]
    model: Mapping[str, Any]
    cards: Sequence[ModelCard]
    loads: Sequence[Mapping[str, Any]] = ()
    instance_id: int | None = None


def engine_info(facts: Facts, host: str) -> EngineInfo:
    """host: where we dialled it. Raises ProbeFailed for an engine that no request can be sent to."""
    server, model = facts.server, facts.model
    base = next((card for card in facts.cards if not card.HasField("parent")), None)
    name = _text(server.get("served_model_name")) or _text(model.get("served_model_name")) or (base.id if base else "")
    if not name:
        raise ProbeFailed("does not say which model it serves")
    ranks = sound_ranks(_ranks(facts))
    mode = server.get("disaggregation_mode", model.get("disaggregation_mode"))
    role = _ROLES.get(mode) if mode is None or isinstance(mode, str) else None
    loaded = facts.loads[0] if facts.loads else {}
    longest = _number(server.get("max_req_input_len"))
    context = (_number(base.max_model_len) if base else None) or _number(server.get("context_length")) or longest
    page, parallel = _number(server.get("page_size")), _number(server.get("dcp_size")) or 1
    told = server.get("kv_events")
    told = told if isinstance(told, dict) else {}
    block = _number(told.get("block_size")) or (page * parallel if page else None)
    return EngineInfo(
        protocol=ProtocolName.SGLANG,
        model=name,
        model_path=_text(model.get("model_path")) or _text(server.get("model_path")),
        tokenizer_path=_text(server.get("tokenizer_path")) or _text(model.get("tokenizer_path")),
        context_length=context,
        max_prompt_tokens=longest if longest and context and longest < context else None,
        block_size=block,
        kv_capacity_tokens=_number(server.get("max_total_num_tokens")) or _number(loaded.get("max_total_num_tokens")),
        max_running=_number(server.get("max_running_requests")) or _number(loaded.get("max_running_requests")),
        role=role,
        ranks=ranks,
        instance_id=str(facts.instance_id) if facts.instance_id else None,
        version=next((f">={release}" for key, release in _KEYS_BY_AGE if key in server), None),
        tool_parser=_text(server.get("tool_call_parser")) or _text(model.get("tool_call_parser")),
        reasoning_parser=_text(server.get("reasoning_parser")) or _text(model.get("reasoning_parser")),
        bootstrap_host=_bootstrap_host(server) if role is Role.PREFILL else None,
        bootstrap_port=_port(server.get("disaggregation_bootstrap_port")) if role is Role.PREFILL else None,
        transfer_backend=_text(server.get("disaggregation_transfer_backend")) if role in _APART else None,
        kv_dtype=_dtype(server.get("kv_cache_dtype")),
        kv_event_sources=_kv_event_sources(server, told, ranks, block, host),
        loras=tuple(card.id for card in facts.cards if card.HasField("parent")),
        abilities=abilities.EMBEDDING
        if model.get("is_generation") is False
        else abilities.sglang(server, guided=is_guided(server), role=role),
    )


def is_guided(server: Mapping[str, Any]) -> bool:
    """Whether the release takes `guided_decoding` and priorities: 0.5.17 does, but cannot be told from 0.5.16."""
    return any(key in server for key, _ in _KEYS_BY_AGE)


def _bootstrap_host(server: Mapping[str, Any]) -> str | None:
    """Where node 0 of an engine is: the first half of `--dist-init-addr`, if others can use it.

    SGLang's bootstrap server runs there. An engine on one node is best met where it is dialled.
    """
    host = host_of(_text(server.get("dist_init_addr")) or "")
    return host if host and is_host(host) and not is_local(host) else None


def _port(value: object) -> int | None:
    found = _number(value)
    return found if found is not None and found <= 65535 else None


def _dtype(value: object) -> str | None:
    """`auto` is whatever the model's weights are, which another engine may call by its name."""
    found = _text(value)
    return None if found == "auto" else found


def _ranks(facts: Facts) -> int:
    """Data-parallel ranks. From 0.5.22 on a deployment with attention ranks counts them apart from dp_size."""
    told = facts.server.get("kv_events")
    if isinstance(told, dict) and (ranks := _number(told.get("dp_size"))):
        return ranks
    if facts.loads:
        return len(facts.loads)
    ranks = _number(facts.server.get("dp_size")) or 1
    if "kv_event_sources" in facts.server:
        ranks *= _number(facts.server.get("attn_dp_size")) or 1
    return ranks


def _kv_event_sources(
    server: Mapping[str, Any], told: Mapping[str, Any], ranks: int, block: int | None, host: str
) -> tuple[KvEventSource, ...]:
    """From the resolved block, or before 0.5.18 from the option as it was given."""
    option = _kv_option(server)
    replay_first = reachable(_text(option.get("replay_endpoint")) or "", host)
    if port := _number(told.get("endpoint_port_base")):
        bound = _text(told.get("endpoint_host")) or "*"
        first: str | None = address(bound, port, host)
        topic = _text(told.get("topic")) or ""
        if replay := _number(told.get("replay_endpoint_port_base")):  # from 0.5.22 on
            replay_first = address(bound, replay, host)
    elif "kv_events" in server or option.get("publisher") != "zmq":
        return ()
    else:
        first = reachable(_text(option.get("endpoint")) or "tcp://*:5557", host)
        topic = _text(option.get("topic")) or ""
    if first is None:
        return ()
    return tuple(
        KvEventSource(
            rank,
            _shifted(first, rank),
            topic,
            _shifted(replay_first, rank) if replay_first else None,
            block,
        )
        for rank in range(ranks)
    )


def _kv_option(server: Mapping[str, Any]) -> Mapping[str, Any]:
    """`--kv-events-config` as it was given."""
    try:
        option = json.loads(server.get("kv_events_config") or "null")
    except (ValueError, TypeError, RecursionError):
        return {}
    return option if isinstance(option, dict) else {}


def _shifted(endpoint: str, rank: int) -> str:
    head, _, port = endpoint.rpartition(":")
    return f"{head}:{int(port) + rank}"


def _text(value: object) -> str | None:
    """A text that is there and can be written out again: JSON may hold halves of characters."""
    return value if isinstance(value, str) and value and value.isprintable() else None


def _number(value: object) -> int | None:
    """A count above zero, however it is written; None for what cannot be one."""
    try:
        found = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return found if 0 < found < 1 << 53 else None
