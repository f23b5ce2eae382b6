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
from sglang_answers import Answers
from sglang_bootstrap import Bootstrap, kv_events
from sglang_facts import Facts


def extension(version: tuple[int, ...]):
    path = wheels.sglang_extension(".".join(map(str, version)))
    spec = importlib.util.spec_from_file_location(path.name.split(".")[0], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        self.answers = Answers(args, self.engine, self.text, self.bootstrap)
        self.warm_at = time.monotonic() + args.warmup_s
        self.changed = None
        config = json.loads(pathlib.Path(args.model, "config.json").read_text()) if args.model else {}
        self.facts = Facts(args, config)
        # read by the extension at start
        self.tokenizer_manager = SimpleNamespace(
            model_config=SimpleNamespace(context_len=args.context_length),
            server_args=SimpleNamespace(tokenizer_path=args.model, model_path=args.model, tokenizer_mode="auto"),
        )

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

    def get_model_info(self) -> str:
        return self.facts.get_model_info()

    def get_server_info(self) -> str:
        return self.facts.get_server_info()

    def list_models(self) -> str:
        return self.facts.list_models()

    def tokenize(self, text: str, add_special_tokens: bool = True) -> str:
        ids = self.text.encode(text)
        return json.dumps(
            {"tokens": ids, "count": len(ids), "max_model_len": self.args.context_length, "input_text": text}
        )

    def detokenize(self, tokens) -> str:
        return json.dumps({"text": self.text.decode(list(tokens))})

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
            async for chunk, last in self.answers.chunks(request, is_disconnected):
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
    add("--priority-scheduling", action="store_true")
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
