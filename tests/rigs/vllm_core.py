"""The pretend engine core that vllm-rs talks to over ZMQ: handshake, requests in, outputs out, utility calls."""

import asyncio
import struct
import time

import msgpack
import rig_engine
import rig_kv
import rigkit
import zmq
from vllm_handover import Leases, kv_events

STOP, LENGTH, ABORT, ERROR = range(4)  # vLLM's engine-side finish reasons


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
            reasoning_ended=body[17] if len(body) > 17 else None,
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
                of_prompt = (
                    self._logprobs(prompt[1:], params["prompt_logprobs"], tensors=True)
                    if params.get("prompt_logprobs") is not None and first
                    else None
                )
                outcome = step.finish
                await self._send(
                    rank,
                    [[rid, step.new, logprobs, of_prompt, None, finish, matched, None, handed, None, None, stats]],
                )
        except rig_engine.Refused as error:
            outcome = f"error: {error}"
            await self._send(rank, [[rid, [], None, None, None, ERROR]])
        finally:
            self.log.write(event="end", rid=rid, outcome=outcome)

    def _logprobs(self, tokens, k: int, *, tensors: bool = False) -> list:
        """Arrays [tokens, k + 1]: the sampled one, then k candidates from better to worse; and the former's rank.

        tensors: as PyTorch names the types of their elements, not NumPy.
        """
        vocab = self.args.vocab
        whole, broken = ("int32", "float32") if tensors else ("<i4", "<f4")
        k = max(k, 0)
        found = [rigkit.likely(token, k, vocab) for token in tokens]
        rows = [[(token, own), *best] for token, (own, _, best) in zip(tokens, found, strict=True)]
        ids = struct.pack(f"<{len(tokens) * (k + 1)}i", *(token for row in rows for token, _ in row))
        values = struct.pack(f"<{len(tokens) * (k + 1)}f", *(value for row in rows for _, value in row))
        ranks = struct.pack(f"<{len(tokens)}i", *(rank for _, rank, _ in found))
        return [
            [whole, [len(tokens), k + 1], msgpack.ExtType(3, ids)],
            [broken, [len(tokens), k + 1], msgpack.ExtType(3, values)],
            [whole, [len(tokens)], msgpack.ExtType(3, ranks)],
        ]
