"""What SGLang says of itself: the JSON blobs of GetModelInfo, GetServerInfo and GetLoad, as 0.5.23 shapes them."""

from __future__ import annotations

import json
import time

from enginehouse._proto import sglang_runtime_v1_pb2 as pb
from enginehouse.domain.engine import Role
from enginehouse.mock.engine import Engine

_LATER = ("grpc_features", "kv_event_sources", "grpc_response_timeout_secs", "launch_command", "kv_events")
"""What releases after the first ones tell."""
_MODE = {Role.AGGREGATED: "null", Role.PREFILL: "prefill", Role.DECODE: "decode"}


def model_info(engine: Engine) -> pb.GetModelInfoResponse:
    """Name, paths, kind."""
    folder = str(engine.vocabulary.folder)
    info = {
        "model_path": folder,
        "served_model_name": engine.settings.model,
        "tokenizer_path": folder,
        "is_generation": not engine.settings.embeds,
        "weight_version": "default",
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": _MODE[engine.settings.role],
        "model_type": "mock",
        "architectures": ["MockForCausalLM"],
    }
    return pb.GetModelInfoResponse(model_path=folder, json_info=json.dumps(info))


def server_info(engine: Engine) -> pb.GetServerInfoResponse:
    """The resolved launch arguments with the scheduler's facts."""
    settings, folder = engine.settings, str(engine.vocabulary.folder)
    info: dict[str, object] = {
        "model_path": folder,
        "tokenizer_path": folder,
        "served_model_name": settings.model,
        "context_length": None,
        "host": settings.host,
        "port": 30000,
        "page_size": settings.told_block_size,
        "max_prefill_tokens": 16384,
        "max_running_requests": None,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "attn_dp_size": settings.ranks,
        "dcp_size": 1,
        "nnodes": 1,
        "node_rank": 0,
        "enable_dp_attention": settings.ranks > 1,
        "dist_init_addr": None,
        "load_balance_method": "follow_bootstrap_room" if settings.role is Role.PREFILL else "round_robin",
        "disaggregation_mode": _MODE[settings.role],
        "disaggregation_bootstrap_port": engine.handover.port or 8998,
        "disaggregation_transfer_backend": "mooncake",
        "tool_call_parser": None,
        "reasoning_parser": None,
        "enable_lora": bool(engine.faults.adapters),
        "weight_version": "default",
        "incremental_streaming_output": settings.incremental,
        "stream_interval": 1,
        "grpc_port": settings.port,
        "grammar_backend": settings.grammar_backend,
        "enable_priority_scheduling": settings.priority_scheduling,
        "schedule_low_priority_values_first": False,
        "grpc_response_timeout_secs": 300,
        # The real one can hold keys of the operator: nobody may log it.
        "launch_command": "sglang serve --admin-api-key MOCK-SECRET-MUST-NOT-BE-LOGGED",
        **_kv_events(engine),
        "grpc_features": [],
        "max_total_num_tokens": settings.kv_blocks * settings.block_size,
        "max_req_input_len": settings.context_length - 6,
        "status": "ready",
        "startup_time": 1.0,
        "hicache_object_layout": None,
    }
    if settings.old_release:
        info = {name: value for name, value in info.items() if name not in _LATER}
    return pb.GetServerInfoResponse(json_info=json.dumps(info))


def _kv_events(engine: Engine) -> dict[str, object]:
    """Where events come from. Before 0.5.18 only the option was told, as it was given."""
    settings, kv = engine.settings, engine.kv
    if kv is None:
        return {"kv_events_config": None, "kv_events": None, "kv_event_sources": []}
    wild, near = (kv.endpoints(host) for host in ("*", "127.0.0.1"))
    wild_replay, near_replay = (kv.replay_endpoints(host) for host in ("*", "127.0.0.1"))
    config: dict[str, object] = {"publisher": "zmq", "endpoint": wild[0], "topic": settings.kv_topic}
    if wild_replay:
        config["replay_endpoint"] = wild_replay[0]
    if settings.kv_events_old:
        return {"kv_events_config": json.dumps(config)}
    block: dict[str, object] = {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": kv.port,
        "topic": settings.kv_topic,
        "block_size": settings.told_block_size,
        "dp_size": settings.ranks,
    }
    sources: list[dict[str, object]] = [
        {"dp_rank": rank, "endpoint": endpoint, "topic": settings.kv_topic, "block_size": settings.told_block_size}
        for rank, endpoint in enumerate(near)
    ]
    if kv.replay_port is not None:
        block["replay_endpoint_port_base"] = kv.replay_port
        for source, endpoint in zip(sources, near_replay, strict=True):
            source["replay_endpoint"] = endpoint
    return {"kv_events_config": json.dumps(config), "kv_events": block, "kv_event_sources": sources}


def load(engine: Engine, wanted: int | None) -> pb.GetLoadResponse:
    """One object per rank."""
    settings, total = engine.settings, engine.settings.kv_blocks * engine.settings.block_size
    loads = []
    for number, rank in enumerate(engine.simulator.ranks):
        if wanted in (None, number):
            held = rank.held_tokens()
            loads.append(
                {
                    "timestamp": time.time(),
                    "dp_rank": number,
                    "num_running_reqs": rank.running,
                    "num_waiting_reqs": len(rank.waiting),
                    "num_waiting_uncached_tokens": sum(len(answer.job.prompt) for answer in rank.waiting),
                    "num_used_tokens": held,
                    "num_total_tokens": held,
                    "max_total_num_tokens": total,
                    "max_running_requests": settings.max_running,
                    "token_usage": held / max(1, total),
                    "gen_throughput": 0.0,
                    "cache_hit_rate": 0.0,
                    "utilization": rank.running / settings.max_running,
                }
            )
    return pb.GetLoadResponse(json_info=json.dumps(loads))
