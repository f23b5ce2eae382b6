"""The real SGLang native gRPC server (sglang.runtime.v1) out of the PyPI wheel, with a pretend engine behind it.

Real: everything the compiled extension does - HTTP/2, protobuf, checks, status codes, cancellation, abort, duplicate
ids, WatchEngineState, chunk deadlines. Pretend: the Python side it calls into (tokens, meta_info, server info, load,
KV events, prefill/decode hand-over), modelled on the 0.5.23 sources.

    python sglang_native_server.py --port 61100 --kv-events 'tcp://*:61110' --kv-replay 'tcp://*:61120'
    python sglang_native_server.py --port 61101 --role prefill --bootstrap-port 61130
    python sglang_native_server.py --port 61102 --role decode

Needs pyzmq and msgpack for KV events, tokenizers for text and stop strings, and a CPython that the wheel was built for
(3.10 to 3.13). See rigkit.py for faults and token values, wheels.py for where the server comes from.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import pathlib
import signal
import sys
import time
from types import SimpleNamespace

import rig_engine
import rigkit
import wheels

EVENT_TAGS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}


def extension(version: tuple[int, ...]):
    path = wheels.sglang_extension(".".join(map(str, version)))
    spec = importlib.util.spec_from_file_location(path.name.split(".")[0], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kv_events(positional: bool):
    """SGLang's events: maps since 0.5.20, arrays before; a nil medium or name is left out of maps."""

    def shape(stored, removed, extra):
        events = []
        if stored is None:
            events.append({"type": "AllBlocksCleared"})
        if removed:  # room is made first
            events.append({"type": "BlockRemoved", "block_hashes": removed, "medium": "GPU"})
        for block in stored or ():
            last = events[-1] if events else None
            if last and last["type"] == "BlockStored" and last["block_hashes"][-1] == block.parent:
                last["block_hashes"].append(block.hash)
                last["token_ids"].extend(block.tokens)
            else:
                events.append(
                    {
                        "type": "BlockStored",
                        "block_hashes": [block.hash],
                        "parent_block_hash": block.parent,
                        "token_ids": list(block.tokens),
                        "block_size": len(block.tokens),
                        "lora_id": None,
                        "medium": "GPU",
                        **extra,
                    }
                )
        if positional:
            return [[e["type"], *(e[name] for name in EVENT_TAGS[e["type"]])] for e in events]
        return events

    return shape


class Bootstrap:
    """Stand-in for the KV transfer: the decode leg fetches its room from the prefill named in the request.

    A room is found only under the rank the decode side derives (room mod ranks), and room 0 never, as in SGLang.
    """

    def __init__(self, args):
        self.args, self.rooms = args, {}

    async def serve(self) -> None:
        await asyncio.start_server(self._answer, self.args.host, self.args.bootstrap_port)

    async def _answer(self, reader, writer) -> None:
        try:
            wanted = json.loads(await reader.readline())
            room = self.rooms.get(wanted["room"])
            found = room and room["rank"] == wanted["room"] % self.args.dp_size and room["prompt"] == wanted["prompt"]
            writer.write(json.dumps(bool(found)).encode() + b"\n")
            await writer.drain()
            if found:
                room["taken"].set()
        finally:
            writer.close()

    def prefill_gate(self, room: int, rank: int, prompt):
        async def gate():
            entry = self.rooms[room] = {"rank": rank, "prompt": hash(prompt), "taken": asyncio.Event()}
            try:
                await asyncio.wait_for(entry["taken"].wait(), self.args.bootstrap_timeout)
            except TimeoutError:
                raise TimeoutError(f"Prefill bootstrap failed: no decode peer for bootstrap_room={room}") from None
            finally:
                self.rooms.pop(room, None)

        return gate

    def decode_gate(self, host: str, port: int, room: int, prompt):
        async def gate():
            deadline = time.monotonic() + self.args.bootstrap_timeout
            while time.monotonic() < deadline:
                try:
                    reader, writer = await asyncio.open_connection(host.strip("[]"), port)
                    writer.write(json.dumps({"room": room, "prompt": hash(prompt)}).encode() + b"\n")
                    answer = json.loads(await reader.readline() or b"false")
                    writer.close()
                    if answer and room != 0:
                        return
                except (OSError, ValueError):
                    pass
                await asyncio.sleep(0.05)
            raise TimeoutError(f"Decode handshake failed for bootstrap_room={room} at {host}:{port}")

        return gate


class Runtime:
    """The object the extension calls, from its own threads; everything that waits runs on the asyncio loop."""

    def __init__(self, args, loop):
        self.args, self.loop = args, loop
        self.text = rigkit.Text(args.model)
        self.log = rigkit.RequestLog(args.log)
        self.engine = rig_engine.Engine(
            args,
            vllm=False,
            shape_events=kv_events(args.version < (0, 5, 20)),
            text=self.text,
            old_replay=args.version < (0, 5, 22),
        )
        self.bootstrap = Bootstrap(args)
        self.warm_at = time.monotonic() + args.warmup_s
        self.changed = None
        self.config = json.loads(pathlib.Path(args.model, "config.json").read_text()) if args.model else {}
        # read by the extension at start
        self.tokenizer_manager = SimpleNamespace(
            model_config=SimpleNamespace(context_len=args.context_length),
            server_args=SimpleNamespace(tokenizer_path=args.model, model_path=args.model, tokenizer_mode="auto"),
        )

    # -- state --

    def set_engine_state_changed_callback(self, callback) -> None:
        self.changed = callback

    def health_check(self) -> bool:
        return bool(self.engine.faults.get("healthy", True)) and time.monotonic() >= self.warm_at

    def is_pause(self) -> bool:
        return self.engine.paused

    async def watch_state(self) -> None:
        seen = None
        while True:
            now = (self.health_check(), self.is_pause())
            if seen not in (None, now) and self.changed:
                self.changed()
            seen = now
            await asyncio.sleep(0.05)

    async def http(self, reader, writer) -> None:
        line = await reader.readline()
        while (await reader.readline()).strip():
            pass
        ok = line.startswith(b"GET /health") and self.health_check()
        status = "200 OK" if ok else "503 Service Unavailable"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    # -- facts --

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

    def tokenize(self, text: str, add_special_tokens: bool = True) -> str:
        ids = self.text.encode(text)
        return json.dumps(
            {"tokens": ids, "count": len(ids), "max_model_len": self.args.context_length, "input_text": text}
        )

    def detokenize(self, tokens) -> str:
        return json.dumps({"text": self.text.decode(list(tokens))})

    # -- admin calls: answered through the callback, on the loop --

    def _reply(self, callback, make) -> None:
        self.loop.call_soon_threadsafe(lambda: callback(json.dumps(make()).encode(), finished=True))

    def get_load(self, callback, dp_rank=None) -> None:
        def make():
            total = self.args.kv_pages * self.args.page_size
            return [
                {
                    "timestamp": time.time(),
                    "dp_rank": r.number,
                    "num_running_reqs": r.running,
                    "num_waiting_reqs": r.waiting,
                    "num_waiting_uncached_tokens": 0,
                    "num_used_tokens": r.held,
                    "num_total_tokens": r.held,
                    "num_active_tokens": r.held,
                    "num_prealloc_ready_tokens": 0,
                    "max_total_num_tokens": total,
                    "max_running_requests": self.args.max_running,
                    "token_usage": r.held / total,
                    "gen_throughput": 0.0,
                    "cache_hit_rate": 0.0,
                    "utilization": r.running / self.args.max_running,
                    "total_prefill_uncached_tokens": 0,
                    "total_prefill_busy_us": 0,
                    "decode_moments": None,
                }
                for r in self.engine.ranks
                if dp_rank in (None, r.number)
            ]

        self._reply(callback, make)

    def flush_cache(self, callback) -> None:
        def make():
            if self.engine.jobs:
                return {"success": False, "message": "Cache flushed."}  # the message is fixed upstream
            for rank in self.engine.ranks:
                rank.clear()
            return {"success": True, "message": "Cache flushed."}

        self._reply(callback, make)

    def pause_generation(self, mode: str, callback) -> None:
        def make():
            self.engine.pause_called = True
            if mode == "abort":
                self.engine.abort("", prefix=True)
            return {"message": f"Generation paused (mode={mode})."}

        self._reply(callback, make)

    def continue_generation(self, callback) -> None:
        def make():
            self.engine.pause_called = False
            return {"message": "Generation continued."}

        self._reply(callback, make)

    def abort(self, rid: str = "", abort_all: bool = False) -> None:
        def act():
            self.log.write(event="abort", rid=rid, all=abort_all)
            if (
                abort_all or rid in self.engine.jobs
            ):  # only a live id reaches the scheduler, which then matches by prefix
                self.engine.abort("" if abort_all else rid, prefix=True)

        self.loop.call_soon_threadsafe(act)

    # -- generation --

    def submit_request(self, *, req_type: str, req_dict: dict, chunk_callback, is_disconnected_fn=None) -> None:
        request = dict(req_dict)
        future = asyncio.run_coroutine_threadsafe(
            self._serve(req_type, request, chunk_callback, is_disconnected_fn), self.loop
        )
        future.add_done_callback(
            lambda f: f.exception() and print("rig failure:", repr(f.exception()), file=sys.stderr)
        )

    async def _serve(self, req_type, request, callback, is_disconnected) -> None:
        ready = asyncio.Event()
        callback.set_on_ready(lambda: self.loop.call_soon_threadsafe(ready.set))
        rid = request.get("rid")
        self.log.write(
            event="request",
            type=req_type,
            **{k: v for k, v in request.items() if k != "input_ids"},
            input_len=len(request.get("input_ids") or ()),
        )
        outcome = "closed"
        try:
            if req_type != "generate":
                raise rig_engine.Refused(
                    "This model does not appear to be an embedding model by default. "
                    "Please add `--is-embedding` when launching the server or try another model."
                )
            async for chunk, last in self._chunks(request, is_disconnected):
                status = callback(chunk, finished=last)
                if last:
                    outcome = (chunk["meta_info"]["finish_reason"] or {}).get("type")
                    return
                if status is None or status == type(status).Closed:
                    self.engine.abort(rid, prefix=True)
                    return
                if status == type(status).Pending:  # bounded channel: wait for the client, as the real bridge does
                    await asyncio.wait_for(ready.wait(), 300)
                    ready.clear()
        except (rig_engine.Refused, ValueError, TimeoutError) as error:
            outcome = f"error: {error}"
            callback({}, finished=True, error=str(error))
        finally:
            callback.clear_on_ready()
            self.log.write(event="end", rid=rid, outcome=outcome)

    def _check(self, request) -> tuple[rig_engine.Job, rig_engine.Rank]:
        """What SGLang's TokenizerManager refuses: arrives as INTERNAL with the text."""
        a, params = self.args, dict(request.get("sampling_params") or {})
        prompt = request.get("input_ids") or (self.text.encode(request["text"]) if request.get("text") else [])
        if not prompt:
            raise ValueError("input_ids cannot be empty.")
        if len(prompt) >= a.context_length:
            raise ValueError(
                f"The input ({len(prompt)} tokens) is longer than the model's context length"
                f" ({a.context_length} tokens)."
            )
        most = params.get("max_new_tokens", 128)
        if "max_new_tokens" in params and most + len(prompt) > a.context_length:
            raise ValueError(
                f"Requested token count exceeds the model's maximum context length of {a.context_length} tokens."
            )
        if not 0 < params.get("top_p", 1) <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {params['top_p']}.")
        if params.get("temperature", 1) < 0:
            raise ValueError(f"temperature must be a non-negative finite number, got {params['temperature']}.")
        lora = request.get("lora_path")
        if lora and lora not in a.lora:
            raise ValueError(f"The following requested LoRA adapters are not loaded: {{'{lora}'}}")
        rank, routed = self.engine.least_loaded(), request.get("routed_dp_rank")
        if a.role == "prefill" and request.get("bootstrap_room") is not None:
            rank = self.engine.ranks[request["bootstrap_room"] % a.dp_size]
        if routed is not None and not (a.dp_size == 1 and routed == 0):
            if not 0 <= routed < a.dp_size:
                raise ValueError(f"routed_dp_rank={routed} out of range [0, {a.dp_size})")
            rank = self.engine.ranks[routed]
        stop = params.get("stop") or ()
        extra = {k: v for k, v in (("session_id", request.get("session_id")), ("lora_name", lora)) if v}
        job = rig_engine.Job(
            rid=request["rid"],
            prompt=tuple(prompt),
            max_tokens=min(most, a.context_length - len(prompt) - 1),
            min_tokens=params.get("min_new_tokens", 0),
            stop_ids=frozenset(params.get("stop_token_ids") or ()),
            stop_strings=tuple([stop] if isinstance(stop, str) else stop),
            eos=None if params.get("ignore_eos") else a.eos_id,
            namespace=lora or "",
            stored_extra=extra,
        )
        return job, rank

    async def _chunks(self, request, is_disconnected):
        a, stream, began = self.args, bool(request.get("stream")), time.monotonic()
        job, rank = self._check(request)
        room, gate = request.get("bootstrap_room"), None

        def rejected(message, code):
            return {
                "output_ids": [],
                "text": "",
                "meta_info": {
                    "id": job.rid,
                    "finish_reason": {"type": "abort", "message": message, "status_code": code, "err_type": None},
                    "completion_tokens": 0,
                    "weight_version": "default",
                    "e2e_latency": time.monotonic() - began,
                },
            }

        refusal = None
        if code := self.engine.faults.get("abort_status"):
            refusal = "injected rejection", code
        elif a.role != "null" and room is None:
            refusal = (
                f"Invalid request: Disaggregated request received without bootstrap room id. req.rid='{job.rid}'",
                400,
            )
        elif a.max_queued is not None and rank.running >= a.max_running and rank.waiting >= a.max_queued:
            refusal = "The request queue is full.", 503
        if refusal:
            if not stream:  # HTTPException's text has the code in front, ValueError's has not
                raise ValueError(refusal[0] if refusal[1] == 400 else f"{refusal[1]}: {refusal[0]}")
            yield rejected(*refusal), True
            return
        if a.role == "prefill":
            gate = self.bootstrap.prefill_gate(room, rank.number, job.prompt)
        elif a.role == "decode":
            gate = self.bootstrap.decode_gate(
                request.get("bootstrap_host") or "", request.get("bootstrap_port") or 0, room, job.prompt
            )

        out: list[int] = []
        try:
            async for step in self.engine.run(job, rank, gate):
                if is_disconnected and not stream and is_disconnected():
                    job.aborted = True
                out += step.new
                if stream or step.finish:
                    yield self._chunk(request, job, rank, out, step, began), step.finish is not None
        except TimeoutError as error:
            if not stream:
                raise
            yield rejected(str(error), 500), True

    def _chunk(self, request, job, rank, out, step, began) -> dict:
        a, incremental = self.args, bool(request.get("stream")) and self.args.incremental
        first = step.total - len(step.new) if incremental else 0
        if step.finish == "abort":
            first = max(0, step.total - 1) if incremental else 0  # upstream repeats the last token here
        ids = out[first:]
        reason = {
            None: None,
            "length": {"type": "length", "length": step.total},
            "stop": {"type": "stop", "matched": step.matched},
            "abort": {
                "type": "abort",
                "message": "Abort in waiting queue" if not out else "Aborted",
                "status_code": None,
                "err_type": None,
            },
        }[step.finish]
        meta = {
            "id": job.rid,
            "finish_reason": reason,
            "prompt_tokens": len(job.prompt),
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": step.total,
            "cached_tokens": step.cached,
        }
        if a.dp_size > 1:
            meta["dp_rank"] = rank.number
        if request.get("return_logprob"):
            meta |= self._logprobs(request, job, out, first)
        if first == 0 and ids and (step.total == len(step.new)):
            meta["response_sent_to_client_ts"] = time.time()
        if step.finish:
            meta["e2e_latency"] = time.monotonic() - began
        text = self.text.decode(out)
        if isinstance(step.matched, str):
            text = text[: text.index(step.matched)]
        return {"text": text[len(self.text.decode(out[:first])) :], "output_ids": ids, "meta_info": meta}

    def _logprobs(self, request, job, out, first) -> dict:
        def entries(tokens, none_first=False):
            return [[None if none_first and i == 0 else rigkit.logprob(t), t, None] for i, t in enumerate(tokens)]

        def tops(tokens, k, none_first=False):
            return [
                None if none_first and i == 0 else [[rigkit.logprob(t) - n, t + n, None] for n in range(k)]
                for i, t in enumerate(tokens)
            ]

        start, k = request.get("logprob_start_len", -1), request.get("top_logprobs_num") or 0
        prompt = job.prompt[start:] if start is not None and start >= 0 else ()
        meta = {
            "input_token_logprobs": entries(prompt, start == 0),
            "output_token_logprobs": entries(out[first:]),
            "output_token_logprobs_length": len(out),
        }
        if k:
            meta |= {"input_top_logprobs": tops(prompt, k, start == 0), "output_top_logprobs": tops(out[first:], k)}
        return meta


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rigkit.common_arguments(parser)
    add = parser.add_argument
    add("--sglang-version", default="0.5.23", help="0.5.16 to 0.5.23: wire, server info and KV encoding follow")
    add("--incremental", action="store_true", help="chunks are deltas (SGLang: --incremental-streaming-output)")
    add("--role", choices=["null", "prefill", "decode"], default="null")
    add("--bootstrap-port", type=int, default=8998)
    add("--bootstrap-timeout", type=float, default=300)
    add("--max-queued", type=int, help="beyond it: abort with status_code 503")
    add("--http-port", type=int, default=0, help="also answer GET /health over HTTP, as Dynamo's sidecar demands")
    add("--lora", metavar="NAME=PATH", action="append", default=[])
    add("--tool-call-parser")
    add("--reasoning-parser")
    add("--listen-delay-s", type=float, default=0, help="slow start: no listener for so long")
    add("--warmup-s", type=float, default=0, help="slow start: listening, but healthy=false for so long")
    add("--response-timeout", type=int, default=300, help="seconds without a chunk until DEADLINE_EXCEEDED")
    add("--follower", action="store_true", help="node_rank > 0: metadata server with GetServerInfo only (>= 0.5.22)")
    args = parser.parse_args()
    args.lora = dict(item.split("=", 1) for item in args.lora)
    args.version = tuple(map(int, args.sglang_version.split(".")))
    native = extension(args.version)
    loop = asyncio.get_running_loop()
    runtime = Runtime(args, loop)
    await asyncio.sleep(args.listen_delay_s)
    if args.follower:
        server = native.start_metadata_server(
            host=args.host, port=args.port, server_info_json=runtime.get_server_info()
        )
    else:
        if args.role == "prefill":
            await runtime.bootstrap.serve()
        options = {"response_timeout_secs": args.response_timeout} if args.version >= (0, 5, 21) else {}
        server = native.start_server(
            host=args.host, port=args.port, runtime_handle=runtime, worker_threads=2, **options
        )
        if args.http_port:
            await asyncio.start_server(runtime.http, args.host, args.http_port)
    print(f"sglang {args.sglang_version} gRPC on {args.host}:{args.port}, pid {os.getpid()}", flush=True)
    stop = asyncio.Event()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop.set)
    watch = asyncio.create_task(runtime.watch_state())
    await stop.wait()
    watch.cancel()
    await asyncio.to_thread(server.shutdown)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
