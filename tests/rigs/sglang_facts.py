"""What the pretend SGLang says of itself, release by release."""

import json


class Facts:
    """The answers of the information calls. config: the model's config.json."""

    def __init__(self, args, config):
        self.args, self.config = args, config

    def get_model_info(self) -> str:
        a = self.args
        return json.dumps(
            {
                "model_path": a.model or "/models/m",
                "served_model_name": a.served_model_name,
                "tokenizer_path": a.model or "/models/m",
                "is_generation": True,
                "weight_version": "default",
                "load_format": "auto",
                "reasoning_parser": a.reasoning_parser,
                "tool_call_parser": a.tool_call_parser,
                "disaggregation_mode": a.role,
                "model_type": self.config.get("model_type", "llama"),
                "architectures": self.config.get("architectures", ["LlamaForCausalLM"]),
            }
        )

    def get_server_info(self) -> str:
        a = self.args
        tcp = bool(a.kv_events)
        host, port = a.kv_events.split("://", 1)[1].rsplit(":", 1) if tcp else ("", "0")
        replay_port = int(a.kv_replay.rsplit(":", 1)[1]) if tcp and a.kv_replay else None
        kv = (
            {
                "publisher": "zmq",
                "endpoint_host": host,
                "endpoint_port_base": int(port),
                "topic": a.kv_topic,
                "block_size": a.page_size,
                "dp_size": a.dp_size,
            }
            if tcp
            else None
        )
        if kv and replay_port and a.version >= (0, 5, 22):
            kv["replay_endpoint_port_base"] = replay_port
        sources = (
            [
                {
                    "dp_rank": r,
                    "endpoint": f"tcp://127.0.0.1:{int(port) + r}",
                    "topic": a.kv_topic,
                    "block_size": a.page_size,
                    **({"replay_endpoint": f"tcp://127.0.0.1:{replay_port + r}"} if replay_port else {}),
                }
                for r in range(a.dp_size)
            ]
            if tcp
            else []
        )
        info = {
            "model_path": a.model or "/models/m",
            "tokenizer_path": a.model or "/models/m",
            "served_model_name": a.served_model_name,
            "context_length": None,
            "host": a.host,
            "port": a.http_port or 30000,
            "page_size": a.page_size,
            "max_prefill_tokens": 16384,
            "max_running_requests": None,
            "tp_size": 1,
            "pp_size": 1,
            "dp_size": 1 if a.version >= (0, 5, 22) else a.dp_size,
            "dcp_size": 1,
            "nnodes": 1,
            "node_rank": 0,
            "enable_dp_attention": a.dp_size > 1,
            "dist_init_addr": None,
            "load_balance_method": "follow_bootstrap_room" if a.role == "prefill" else "round_robin",
            "disaggregation_mode": a.role,
            "disaggregation_bootstrap_port": a.bootstrap_port,
            "disaggregation_transfer_backend": "mooncake",
            "tool_call_parser": a.tool_call_parser,
            "reasoning_parser": a.reasoning_parser,
            "enable_lora": bool(a.lora),
            "weight_version": "default",
            "incremental_streaming_output": a.incremental,
            "stream_interval": a.stream_interval,
            "grpc_port": a.port,
            "grammar_backend": "xgrammar",
            "enable_priority_scheduling": a.priority_scheduling,
            "schedule_low_priority_values_first": False,
            "kv_events_config": json.dumps(
                {"publisher": "zmq", "endpoint": a.kv_events, "replay_endpoint": a.kv_replay, "topic": a.kv_topic}
            )
            if tcp
            else None,
            # scheduler facts
            "max_total_num_tokens": a.kv_pages * a.page_size,
            "max_req_input_len": a.context_length - 6,
            "status": "ready",
            "startup_time": 12.5,
            "hicache_object_layout": None,
        }
        if a.version >= (0, 5, 18):
            info["kv_events"] = kv
        if a.version >= (0, 5, 20):
            info["launch_command"] = "sglang serve --model-path m --admin-api-key RIG-SECRET-MUST-NOT-BE-LOGGED"
        if a.version >= (0, 5, 21):
            info["grpc_response_timeout_secs"] = a.response_timeout
        if a.version >= (0, 5, 22):
            info |= {"kv_event_sources": sources, "attn_dp_size": a.dp_size}
        if a.version >= (0, 5, 23):
            info["grpc_features"] = []
        return json.dumps(info)

    def list_models(self) -> str:
        name = self.args.served_model_name
        cards = [{"id": name, "root": name, "max_model_len": self.args.context_length}]
        return json.dumps(cards + [{"id": k, "root": v, "parent": name} for k, v in self.args.lora.items()])
