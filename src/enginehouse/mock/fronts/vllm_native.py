"""`vllm.Inference` and `vllm.Control` as vLLM's Rust frontend speaks them: prompt info, deltas, finish info last."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from enginehouse._proto import vllm_native_pb2 as pb
from enginehouse.mock import text
from enginehouse.mock.engine import Engine, Stream
from enginehouse.mock.fronts.health import SERVICE as HEALTH
from enginehouse.mock.fronts.health import Health
from enginehouse.mock.fronts.rpc import (
    ADMISSION,
    Context,
    Refused,
    Services,
    check_rank,
    refuse_if_told,
)
from enginehouse.mock.fronts.vllm_legs import kept, leg_of_struct, struct
from enginehouse.mock.fronts.vllm_native_wishes import add_output, add_prompt, wishes
from enginehouse.mock.instance import Unsayable
from enginehouse.mock.kv.sockets import HWM
from enginehouse.mock.simulator import End, Job

INFERENCE, CONTROL = "vllm.Inference", "vllm.Control"
_INVALID = grpc.StatusCode.INVALID_ARGUMENT
_LIMIT = 64 * 1024 * 1024
_REASON = {End.LENGTH: pb.LENGTH, End.STOP: pb.STOP, End.ABORT: pb.ABORTED}


class VllmNativeFront:
    """Inference and Control over one engine."""

    options = (("grpc.max_receive_message_length", _LIMIT), ("grpc.max_send_message_length", -1))
    streaming = frozenset({"GenerateStream", "Watch"})

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._health = Health(engine, (INFERENCE, CONTROL), "service not registered")

    def services(self) -> Services:
        return {
            INFERENCE: {"Generate": self.generate, "GenerateStream": self.generate_stream},
            CONTROL: {
                "GetServerInfo": self.server_info,
                "GetModelInfo": self.model_info,
                "GetKvEventSources": self.kv_event_sources,
                "ListLoras": self.list_loras,
                "Abort": self.abort,
            },
            HEALTH: self._health.methods(),
        }

    async def generate_stream(self, data: bytes, context: Context) -> None:
        request = pb.GenerateRequest.FromString(data)
        job, feed = self._job(request, context), self._decoder(request)
        with self._open(job) as stream:
            await context.write(pb.GenerateResponse(prompt_info=self._prompt(request, job)).SerializeToString())
            async for step in stream:
                if step.end in (End.ERROR, End.HANDOVER):
                    raise Refused(grpc.StatusCode.INTERNAL, "engine failed during generation")
                if step.end is not End.VANISHED:
                    output = self._output(request, stream, step.new, step.end, feed)
                    await context.write(pb.GenerateResponse(output=output).SerializeToString())

    async def generate(self, data: bytes, context: Context) -> Any:
        request = pb.GenerateRequest.FromString(data)
        job, feed = self._job(request, context), self._decoder(request)
        with self._open(job) as stream:
            async for step in stream:
                if step.end in (End.ERROR, End.VANISHED, End.HANDOVER):
                    break
            else:
                output = self._output(request, stream, stream.answer.output, stream.answer.end, feed)
                return pb.GenerateResponse(prompt_info=self._prompt(request, job), output=output)
        raise Refused(grpc.StatusCode.INTERNAL, "engine failed during generation")

    def _open(self, job: Job) -> Stream:
        refuse_if_told(self.engine.faults)
        status = self.engine.faults.reject_status or (429 if self.engine.simulator.full(job.rank) else 0)
        if status:
            raise Refused(ADMISSION.get(status, grpc.StatusCode.INTERNAL), "The engine takes no more requests now.")
        return self.engine.open(job)

    def _job(self, request: pb.GenerateRequest, context: Context) -> Job:
        settings, vocabulary, stopping = self.engine.settings, self.engine.vocabulary, request.stopping
        if request.model not in ("", settings.model):
            raise Refused(grpc.StatusCode.NOT_FOUND, f"The model `{request.model}` does not exist.")
        adapters = self.engine.faults.adapters
        if request.lora_name and not adapters:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "LoRA is not enabled")
        if request.lora_name and request.lora_name not in adapters:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"LoRA adapter `{request.lora_name}` is not loaded")
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise Refused(_INVALID, "prompt is required")
        prompt = list(request.token_ids.ids) if kind == "token_ids" else text.encode(vocabulary.folder, request.text)
        if not prompt:
            raise Refused(_INVALID, f"text request `{request.request_id}` must contain at least one prompt token ID")
        alien = [number for number in prompt if number >= vocabulary.size]
        if alien:
            raise Refused(
                _INVALID, f"token_id(s) {alien} in prompt are out of vocabulary. Vocabulary size: {vocabulary.size}"
            )
        room = settings.context_length - len(prompt)
        if room < 1:
            raise Refused(
                _INVALID,
                f"This model's maximum context length is {settings.context_length} tokens. However, your prompt "
                f"contains {len(prompt)} input tokens. Please reduce the length of the input prompt.",
            )
        most = min(stopping.max_new_tokens or room, room)
        if stopping.min_new_tokens > most:
            raise Refused(
                _INVALID,
                "`min_tokens` must be less than or equal to `max_tokens`, "
                f"got min_tokens={stopping.min_new_tokens}, max_tokens={most}",
            )
        if request.random.num_sequences > 1:
            raise Refused(_INVALID, "num_sequences > 1 is not supported")
        if not 0 <= request.temperature <= 2:
            raise Refused(_INVALID, f"temperature must be in [0, 2], got {request.temperature:g}")
        if not 0 <= request.random.top_p <= 1:
            raise Refused(_INVALID, f"top_p must be in (0, 1], got {request.random.top_p:g}")
        asked = wishes(request)
        try:
            said = self.engine.said(prompt, asked.constraint)
        except Unsayable as error:
            raise Refused(_INVALID, str(error)) from error
        return Job(
            rid=request.request_id,
            prompt=prompt,
            max_tokens=most,
            min_tokens=stopping.min_new_tokens,
            stop_ids=frozenset(stopping.stop_token_ids),
            ignore_eos=stopping.ignore_eos,
            rank=self._rank(context),
            lora=request.lora_name,
            leg=leg_of_struct(self.engine, request.kv.kv_transfer_params),
            wishes=asked,
            said=said,
        )

    def _rank(self, context: Context) -> int | None:
        named = dict(context.invocation_metadata()).get("x-data-parallel-rank")
        if named is None:
            return None
        if not re.fullmatch(r"\d{1,10}", named):
            raise Refused(_INVALID, "x-data-parallel-rank metadata must be an unsigned 32-bit integer")
        ranks = list(range(self.engine.settings.ranks))
        return check_rank(
            self.engine,
            int(named),
            lambda number: Refused(
                _INVALID,
                f"engine-core error: data parallel rank {number} is not connected to this frontend; "
                f"connected ranks: {ranks}",
            ),
        )

    def _output(
        self,
        request: pb.GenerateRequest,
        stream: Stream,
        ids: Sequence[int],
        end: End | None,
        feed: Callable[[Sequence[int]], str] | None,
    ) -> pb.Output:
        output = _output(request, stream, ids, end, feed)
        add_output(self.engine, stream.answer.job.wishes, ids, output)
        if end is not None and (params := kept(self.engine, stream)) is not None:
            output.finish_info.kv_transfer_params = struct(params)
        return output

    def _prompt(self, request: pb.GenerateRequest, job: Job) -> pb.PromptInfo:
        ids = job.prompt if request.response.prompt_token_ids else ()
        info = pb.PromptInfo(num_prompt_tokens=len(job.prompt), token_ids=ids)
        add_prompt(self.engine, job.wishes, job.prompt, info)
        return info

    def _decoder(self, request: pb.GenerateRequest) -> Callable[[Sequence[int]], str] | None:
        wanted = request.response.output_text if request.response.HasField("output_text") else True
        return text.decoder(self.engine.vocabulary.folder) if wanted else None

    async def abort(self, data: bytes, context: Context) -> Any:
        for rid in pb.AbortRequest.FromString(data).request_ids:
            for stream in self.engine.by_rid(rid):
                self.engine.abort(stream, by="call")
        return pb.AbortResponse()

    async def server_info(self, data: bytes, context: Context) -> Any:
        settings = self.engine.settings
        return pb.ServerInfo(
            engine_version="0.33.0",
            api_version="vllm",
            instance_id=f"mock-{self.engine.started_ns}",
            parallelism=pb.Parallelism(
                tensor=1,
                pipeline=1,
                data_parallel_size=settings.ranks,
                decode_context_parallel_size=1,
                world_size=settings.ranks,
                data_parallel_size_local=settings.ranks,
            ),
            max_model_len=settings.context_length,
            kv_block_size=settings.told_block_size,
            total_kv_blocks=settings.kv_blocks * settings.ranks,
            max_running_requests=settings.max_running,
            max_batched_tokens=8192,
            protocol_version="0.6.0",
            effective_attention_block_size=settings.told_block_size,
        )

    async def model_info(self, data: bytes, context: Context) -> Any:
        return pb.ModelInfo(
            model_id=str(self.engine.vocabulary.folder),
            served_model_name=self.engine.settings.model,
            supports_text_input=True,
            supports_token_ids_input=True,
            supports_lora=bool(self.engine.faults.adapters),
        )

    async def kv_event_sources(self, data: bytes, context: Context) -> Any:
        kv, settings = self.engine.kv, self.engine.settings
        if kv is None:
            return pb.GetKvEventSourcesResponse()
        replay = kv.replay_endpoints("*") or [""] * settings.ranks
        return pb.GetKvEventSourcesResponse(
            sources=[
                pb.KvEventSource(
                    transport="zmq",
                    endpoint=endpoint,
                    topic=settings.kv_topic,
                    replay_endpoint=replay[rank],
                    data_parallel_rank=rank,
                    encoding="msgpack",
                    schema_version=1,
                    buffer_steps=settings.kv_buffer_batches,
                    hwm=HWM,
                    max_queue_size=HWM,
                )
                for rank, endpoint in enumerate(kv.endpoints("*"))
            ]
        )

    async def list_loras(self, data: bytes, context: Context) -> Any:
        loaded = enumerate(self.engine.faults.adapters, start=1)
        return pb.ListLorasResponse(
            loras=[pb.Lora(lora_id=number, lora_name=name, source_path=f"/loras/{name}") for number, name in loaded]
        )


def _output(
    request: pb.GenerateRequest,
    stream: Stream,
    ids: Sequence[int],
    end: End | None,
    feed: Callable[[Sequence[int]], str] | None,
) -> pb.Output:
    answer = stream.answer
    output = pb.Output(num_tokens=len(ids))
    if request.response.output_token_ids:
        output.token_ids.extend(ids)
    if feed is not None:
        output.text = feed(ids[:-1] if answer.matched is not None and end is End.STOP else ids)
    if end is not None:
        info = output.finish_info
        info.num_output_tokens = len(answer.output)
        info.finish_reason = _REASON[end]
        info.cached_tokens = answer.cached
        if answer.matched is not None:
            if answer.matched in answer.job.stop_ids:
                info.stop_token_id = answer.matched
            else:
                info.eos_token_id = answer.matched
    return output
