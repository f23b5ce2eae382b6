"""The real vLLM native gRPC server (vllm.Inference, vllm.Control): the vllm-rs binary out of the PyPI wheel, 0.33.0,
with a pretend engine core behind it on ZMQ.

Real: the whole frontend process - gRPC and HTTP, checks, tokenizer, stop strings, text, status codes, health, DP rank
metadata. Pretend: tokens, logprobs, cached counts, KV events, LoRA, pause, NIXL hand-over parameters.

    python makemodel.py --no-weights MODEL        # vllm-rs needs a folder with config.json and tokenizer.json
    python vllm_native_server.py --model MODEL --port 61300 --kv-events 'tcp://*:61310' --kv-replay 'tcp://*:61320'
    python vllm_native_server.py --model MODEL --port 61301 --role prefill --side-channel-port 61330
    python vllm_native_server.py --model MODEL --port 61302 --role decode

Needs pyzmq and msgpack. Linux x86-64 or arm64. See rigkit.py for faults and token values, wheels.py for where the
binary comes from; here healthy=false means the engine core reports death, which is final.
"""

import argparse
import asyncio
import ctypes
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid

import msgpack
import rig_engine
import rig_kv
import rigkit
import wheels
import zmq
import zmq.asyncio

STOP, LENGTH, ABORT, ERROR = range(4)  # vLLM's engine-side finish reasons


def kv_events(stored, removed, extra):
    """vLLM's events: maps; a removal per block, ahead of the stores it made room for."""
    if stored is None:
        return [{"type": "AllBlocksCleared"}]
    events = []
    for block in stored:
        last = events[-1] if events else None
        if last and last["block_hashes"][-1] == block.parent:
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
                    "lora_id": extra.get("lora_id"),
                    "medium": "GPU",
                    "lora_name": extra.get("lora_name"),
                }
            )
    salt, lora = extra.get("salt"), extra.get("lora_name")
    for event in events:
        first = event["parent_block_hash"] is None  # a salt marks block 0 only, a LoRA name every block
        event["extra_keys"] = [
            [*([lora] if lora else []), *([salt] if salt and first and i == 0 else [])] or None
            for i in range(len(event["block_hashes"]))
        ]
        event |= {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
        if extra.get("session_id"):
            event["session_id"] = extra["session_id"]
    return [
        {"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU", "group_idx": 0} for key in removed
    ] + events


class Leases:
    """Stand-in for NIXL: a prefill holds blocks under its request id until a decode fetches them or 30 s pass."""

    def __init__(self, args):
        self.args, self.held, self.engine_id = args, {}, str(uuid.uuid4())

    async def serve(self) -> None:
        await asyncio.start_server(self._answer, self.args.host, self.args.side_channel_port)

    async def _answer(self, reader, writer) -> None:
        wanted = json.loads(await reader.readline())
        lease = self.held.pop(wanted["request"], None)
        found = (
            lease
            and lease[0] > time.monotonic()
            and lease[1] == wanted["prompt"]
            and wanted["engine"] == self.engine_id
        )
        writer.write(json.dumps(bool(found)).encode() + b"\n")
        await writer.drain()
        writer.close()

    def offer(self, rid: str, prompt) -> dict:
        self.held[rid] = time.monotonic() + self.args.lease_s, hash(prompt)
        blocks = list(range(1, 1 + -(-len(prompt) // self.args.page_size)))
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks],
            "remote_engine_id": self.engine_id,
            "remote_request_id": rid,
            "remote_host": self.args.host,
            "remote_port": self.args.side_channel_port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": len(prompt),
            "remote_blocks_expiry_time": time.time() + self.args.lease_s,
            "remote_registration_generation": 1,
            "transfer_mode": "pull",
        }

    def fetch(self, params: dict, prompt):
        async def gate():
            try:
                reader, writer = await asyncio.open_connection(params["remote_host"], params["remote_port"])
                writer.write(
                    json.dumps(
                        {
                            "request": params["remote_request_id"],
                            "engine": params["remote_engine_id"],
                            "prompt": hash(prompt),
                        }
                    ).encode()
                    + b"\n"
                )
                found = json.loads(await reader.readline() or b"false")
                writer.close()
            except (KeyError, OSError, ValueError):
                found = False
            if not found or not params.get("remote_block_ids"):
                raise rig_engine.Refused("KV load failure")

        return gate


class Core:
    """All engine cores of one frontend: handshake, requests in, outputs out, utility calls."""

    def __init__(self, args, context):
        self.args = args
        self.engine = rig_engine.Engine(args, vllm=True, shape_events=kv_events, text=rigkit.Text(None))
        self.leases, self.log = Leases(args), rigkit.RequestLog(args.log)
        self.context, self.loras, self.dead = context, {}, False
        self.outputs, self.tasks = [], set()

    def ready(self, rank: int) -> dict:
        a = self.args
        events = (
            {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": rig_kv.shifted(a.kv_events, rank),
                "replay_endpoint": rig_kv.shifted(a.kv_replay, rank),
                "buffer_steps": a.kv_buffer,
                "hwm": 100_000,
                "max_queue_size": 100_000,
                "topic": a.kv_topic,
            }
            if a.kv_events
            else None
        )
        return {
            "max_model_len": a.context_length,
            "num_gpu_blocks": a.kv_pages,
            "block_size": a.page_size,
            "dp_stats_address": None,
            "dtype": "bfloat16",
            "vllm_version": "0.33.0",
            "world_size": 1,
            "data_parallel_size": a.dp_size,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "data_parallel_rank": rank,
            "max_num_seqs": a.max_running,
            "max_num_batched_tokens": 8192,
            "instance_id": f"{self.leases.engine_id}-{rank}",
            "supports_lora": True,
            "max_loras": 4,
            "mamba_block_size": None,
            "kv_cache_size_tokens": a.kv_pages * a.page_size,
            "kv_cache_max_concurrency": 1.0,
            "kv_events_config": events,
            "weight_transfer_backend": None,
            "enable_sleep_mode": False,
            "supports_draft_weight_updates": False,
            "effective_attention_block_size": a.page_size,
            "coord_store_port": 0,
            "coordinator_input_address": None,
            "coordinator_output_address": None,
        }

    async def serve(self, input_port: int, output_port: int) -> None:
        await asyncio.sleep(self.args.warmup_s)
        if self.args.role == "prefill":
            await self.leases.serve()
        for rank in range(self.args.dp_size):
            source, sink = self.context.socket(zmq.DEALER), self.context.socket(zmq.PUSH)
            source.setsockopt(zmq.IDENTITY, rank.to_bytes(2, "little"))
            source.connect(f"tcp://127.0.0.1:{input_port}")
            sink.connect(f"tcp://127.0.0.1:{output_port}")
            self.outputs.append(sink)
            await source.send(msgpack.packb(self.ready(rank)))
            self._spawn(self._receive(rank, source))
        self._spawn(self._watch_death())

    def _spawn(self, coroutine) -> None:
        task = asyncio.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _watch_death(self) -> None:
        while self.engine.faults.get("healthy", True):
            await asyncio.sleep(0.05)
        self.dead = True
        for sink in self.outputs:
            await sink.send(b"ENGINE_CORE_DEAD")

    async def _receive(self, rank: int, source) -> None:
        while True:
            kind, *frames = await source.recv_multipart()
            body = msgpack.unpackb(frames[0], strict_map_key=False) if frames else None
            if kind == b"\x00":
                self._spawn(self._request(rank, body))
            elif kind == b"\x01":
                for rid in body:
                    self.log.write(event="abort", rid=rid)
                    self.engine.abort(rid, prefix=False)
            elif kind == b"\x03":
                _, call, method, arguments = body
                self.log.write(event="utility", method=method, arguments=arguments)
                result = self._utility(method, arguments)
                await self._send(rank, utility=[call, None, [None, result]])

    def _utility(self, method: str, arguments: list):
        if method == "pause_generation":
            self.engine.pause_called = True
            if arguments and arguments[0] == "abort":
                for rid in list(self.engine.jobs):
                    self.engine.abort(rid, prefix=False)
            if len(arguments) > 1 and arguments[1]:
                self._utility("reset_prefix_cache", [])
            return None
        if method == "resume_scheduler":
            self.engine.pause_called = False
            return None
        if method == "reset_prefix_cache":
            for rank in self.engine.ranks:
                rank.clear()
            return True
        if method == "add_lora":
            self.loras[arguments[0][0]] = arguments[0][1]
            return True
        return {"is_scheduler_paused": self.engine.paused, "is_sleeping": False, "remove_lora": True}.get(method)

    async def _send(self, rank: int, outputs=(), utility=None) -> None:
        if not self.dead:
            await self.outputs[rank].send(
                msgpack.packb([rank, list(outputs), None, time.monotonic(), *([utility] if utility else [])])
            )

    async def _request(self, rank: int, body: list) -> None:
        rid, prompt, params, lora, salt = body[0], tuple(body[1] or ()), body[3] or {}, body[6], body[7]
        session = body[21] if len(body) > 21 else None
        transfer = (params.get("extra_args") or {}).get("kv_transfer_params") or {}
        self.log.write(
            event="request",
            rank=rank,
            rid=rid,
            input_len=len(prompt),
            params=params,
            lora=lora,
            salt=salt,
            dp_rank=body[8],
            priority=body[13] if len(body) > 13 else None,
            session=session,
        )
        lora_name = lora[0] if lora else None
        job = rig_engine.Job(
            rid=rid,
            prompt=prompt,
            max_tokens=params.get("max_tokens") or self.args.context_length,
            min_tokens=params.get("min_tokens", 0),
            stop_ids=frozenset(params.get("stop_token_ids") or ()),
            eos=params.get("_eos_token_id"),
            namespace=f"{lora_name or ''}|{salt or ''}".strip("|"),
            stored_extra={
                "lora_name": lora_name,
                "lora_id": lora[1] if lora else None,
                "salt": salt,
                "session_id": session,
            },
        )
        if params.get("skip_reading_prefix_cache"):
            job.namespace += f"|{rid}"
        gate = None
        if self.args.role == "decode" and transfer.get("do_remote_prefill"):
            gate = self.leases.fetch(transfer, prompt)
        outcome = None
        try:
            async for step in self.engine.run(job, self.engine.ranks[rank], gate):
                first = step.total == len(step.new)
                stats = (
                    {
                        "num_prompt_tokens": len(prompt),
                        "num_computed_tokens": len(prompt) - step.cached,
                        "num_cached_tokens": step.cached,
                        "num_local_cached_tokens": step.cached,
                        "num_external_cached_tokens": 0,
                        "num_cache_creation_tokens": 0,
                    }
                    if first
                    else None
                )
                finish = {None: None, "stop": STOP, "length": LENGTH, "abort": ABORT}[step.finish]
                matched = step.matched if step.matched != job.eos else None  # EOS is told by stop without a reason
                handed = (
                    self.leases.offer(rid, prompt)
                    if finish in (STOP, LENGTH) and transfer.get("do_remote_decode")
                    else None
                )
                logprobs = (
                    self._logprobs(step.new, params["logprobs"])
                    if params.get("logprobs") is not None and step.new
                    else None
                )
                outcome = step.finish
                await self._send(
                    rank, [[rid, step.new, logprobs, None, None, finish, matched, None, handed, None, None, stats]]
                )
        except rig_engine.Refused as error:
            outcome = f"error: {error}"
            await self._send(rank, [[rid, [], None, None, None, ERROR]])
        finally:
            self.log.write(event="end", rid=rid, outcome=outcome)

    @staticmethod
    def _logprobs(tokens, k: int) -> list:
        """Arrays [tokens, k + 1]: the sampled one, then k candidates from better to worse; and the former's rank."""
        k = max(k, 0)
        rows = [[t, *(t + n for n in range(k))] for t in tokens]
        ids = struct.pack(f"<{len(tokens) * (k + 1)}i", *(t for row in rows for t in row))
        values = struct.pack(
            f"<{len(tokens) * (k + 1)}f",
            *(rigkit.logprob(row[0]) - max(0, n - 1) for row in rows for n in range(k + 1)),
        )
        ranks = struct.pack(f"<{len(tokens)}i", *(1 for _ in tokens))
        return [
            ["<i4", [len(tokens), k + 1], msgpack.ExtType(3, ids)],
            ["<f4", [len(tokens), k + 1], msgpack.ExtType(3, values)],
            ["<i4", [len(tokens)], msgpack.ExtType(3, ranks)],
        ]


def listener(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(128)
    sock.set_inheritable(True)
    return sock


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rigkit.common_arguments(parser)
    add = parser.add_argument
    add("--alias", action="append", default=[], help="further served model names")
    add("--http-port", type=int, default=0, help="vllm-rs's OpenAI HTTP server (0: any free port)")
    add("--role", choices=["both", "prefill", "decode"], default="both", help="vLLM does not report it")
    add("--side-channel-port", type=int, default=5600)
    add("--lease-s", type=float, default=30)
    add("--listen-delay-s", type=float, default=0, help="slow start: no listener for so long")
    add("--warmup-s", type=float, default=0, help="slow start: the port accepts TCP, but nothing answers for so long")
    add(
        "--frontend-args",
        type=json.loads,
        default={},
        metavar="JSON",
        help='more vllm-rs options, e.g. {"max_logprobs": 5}',
    )
    args = parser.parse_args()
    if not args.model or not pathlib.Path(args.model, "config.json").exists():
        parser.error(
            "--model needs a folder with config.json and tokenizer.json: python makemodel.py --no-weights FOLDER"
        )
    binary = wheels.vllm_rs()
    await asyncio.sleep(args.listen_delay_s)
    sockets = [
        listener(args.host, args.http_port),
        listener(args.host, args.port),
        listener("127.0.0.1", 0),
        listener("127.0.0.1", 0),
    ]
    http, grpc, inputs, outputs = (s.fileno() for s in sockets)
    ports = [s.getsockname()[1] for s in sockets]
    options = {
        "model_tag": args.model,
        "served_model_name": [args.served_model_name, *args.alias],
        "engine_ready_timeout_secs": 600,
        **args.frontend_args,
    }
    command = [
        binary,
        "frontend",
        "--listen-fd",
        http,
        "--grpc-listen-fd",
        grpc,
        "--input-listener-fd",
        inputs,
        "--output-listener-fd",
        outputs,
        "--engine-start-index",
        0,
        "--engine-count",
        args.dp_size,
        "--data-parallel-size",
        args.dp_size,
        "--args-json",
        json.dumps(options),
    ]
    libc = ctypes.CDLL(None)
    child = subprocess.Popen(
        [str(part) for part in command],
        pass_fds=(http, grpc, inputs, outputs),
        env={**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"},
        preexec_fn=lambda: libc.prctl(1, signal.SIGKILL),
    )  # dies with this process
    for sock in sockets:
        sock.close()
    core = Core(args, zmq.asyncio.Context())
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for sig in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sig, stop.set)
    print(f"vllm-rs gRPC on {args.host}:{args.port}, HTTP on {ports[0]}, pid {os.getpid()}", flush=True)
    serving = asyncio.create_task(core.serve(ports[2], ports[3]))
    gone = loop.run_in_executor(None, child.wait)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([gone, stopping], return_when=asyncio.FIRST_COMPLETED)
    if serving.done() and serving.exception():
        print("rig failure:", repr(serving.exception()), file=sys.stderr)
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
    os._exit(0 if stop.is_set() else child.returncode or 1)


if __name__ == "__main__":
    asyncio.run(main())
