"""`vllm.grpc.engine.VllmEngine` as vLLM's servicer speaks it: chunks of new ids, then a complete with the last."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from datetime import UTC, datetime
from typing import Any

import grpc
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from enginehouse.domain.engine import Role
from enginehouse.mock.engine import Engine, Step, Stream
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
from enginehouse.mock.fronts.vllm_kv import subscribe
from enginehouse.mock.fronts.vllm_legs import kept, leg_of_json
from enginehouse.mock.fronts.vllm_wishes import input_logprobs, output_logprobs, wishes
from enginehouse.mock.instance import Unsayable
from enginehouse.mock.simulator import End, Job

SERVICE = "vllm.grpc.engine.VllmEngine"
_INVALID = grpc.StatusCode.INVALID_ARGUMENT
_PIECE = 64 * 1024
_KV_ROLE = {Role.AGGREGATED: "", Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}


class VllmFront:
    """The servicer's calls over one engine."""

    options = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
    streaming = frozenset({"Generate", "GetTokenizer", "SubscribeKvEvents", "Watch"})

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._health = Health(engine, (SERVICE,), "Unknown service: {service}")
        self._archive = _zip(engine)

    def services(self) -> Services:
        return {
            SERVICE: {
                "Generate": self.generate,
                "Embed": self.embed,
                "HealthCheck": self.health_check,
                "Abort": self.abort,
                "GetModelInfo": self.model_info,
                "GetServerInfo": self.server_info,
                "GetLoads": self.loads,
                "GetTokenizer": self.tokenizer,
                "FlushCache": self.flush_cache,
                "SubscribeKvEvents": self.subscribe_kv_events,
            },
            HEALTH: self._health.methods(),
        }

    async def generate(self, data: bytes, context: Context) -> None:
        request = pb.GenerateRequest.FromString(data)
        job = self._job(request)
        refuse_if_told(self.engine.faults)
        status = self.engine.faults.reject_status or (429 if self.engine.simulator.full(job.rank) else 0)
        if status:
            raise Refused(ADMISSION.get(status, grpc.StatusCode.INTERNAL), "The engine takes no more requests now.")
        with self.engine.open(job) as stream:
            async for step in stream:
                if step.end is End.ERROR:
                    raise Refused(grpc.StatusCode.INTERNAL, "injected failure")
                if request.stream and (step.new or step.end is End.ABORT):
                    await context.write(self._chunk(stream, step))
                if step.end not in (None, End.VANISHED):
                    await context.write(self._complete(stream, step, whole=not request.stream))

    def _job(self, request: pb.GenerateRequest) -> Job:
        params, prompt = request.sampling_params, list(request.tokenized.input_ids)
        context = self.engine.settings.context_length
        if self.engine.settings.embeds:
            raise Refused(_INVALID, "This model does not support generation")
        self._check(prompt)
        if len(prompt) == context:
            raise Refused(
                _INVALID,
                f"The decoder prompt (length {len(prompt)}) plus the number of requested output tokens "
                f"(at least 1) is longer than the maximum model length of {context}.",
            )
        room = context - len(prompt)
        most = params.max_tokens if params.HasField("max_tokens") else room
        if most < 1:
            raise Refused(_INVALID, f"max_tokens must be at least 1, got {most}. (parameter=max_tokens, value={most})")
        if params.HasField("temperature") and params.temperature < 0:
            raise Refused(_INVALID, f"temperature must be non-negative, got {params.temperature}.")
        if not 0 <= params.top_p <= 1:
            raise Refused(_INVALID, f"top_p must be in (0, 1], got {params.top_p:g}. (parameter=top_p)")
        if params.min_tokens > most:
            raise Refused(
                _INVALID, f"min_tokens must be less than or equal to max_tokens={most}, got {params.min_tokens}."
            )
        if params.n > 1:
            raise Refused(_INVALID, "the mock engine has one answer per request: n must be 1")
        rank = check_rank(
            self.engine,
            request.data_parallel_rank if request.HasField("data_parallel_rank") else None,
            lambda number: Refused(_INVALID, f"data_parallel_rank {number} is out of range"),
        )
        asked = wishes(params)
        try:
            said = self.engine.said(prompt, asked.constraint)
        except Unsayable as error:
            raise Refused(_INVALID, str(error)) from error
        return Job(
            rid=request.request_id,
            prompt=prompt,
            max_tokens=min(most, room),
            min_tokens=params.min_tokens,
            stop_ids=frozenset(params.stop_token_ids),
            ignore_eos=params.ignore_eos,
            rank=rank,
            leg=leg_of_json(self.engine, request.kv_transfer_params_json),
            wishes=asked,
            said=said,
        )

    def _check(self, prompt: list[int]) -> None:
        context = self.engine.settings.context_length
        if not prompt:
            raise Refused(_INVALID, "The decoder prompt cannot be empty")
        if max(prompt) >= self.engine.vocabulary.size:
            raise Refused(_INVALID, f"Token id {max(prompt)} is out of vocabulary")
        if len(prompt) > context:
            raise Refused(
                _INVALID,
                f"The decoder prompt (length {len(prompt)}) is longer than the maximum model length of {context}.",
            )

    async def embed(self, data: bytes, context: Context) -> Any:
        request = pb.EmbedRequest.FromString(data)
        prompt = list(request.tokenized.input_ids)
        refuse_if_told(self.engine.faults)
        if not self.engine.settings.embeds:
            raise Refused(_INVALID, "The model does not support Embeddings API")
        self._check(prompt)
        found = await self.engine.embed(request.request_id, prompt)
        return pb.EmbedResponse(embedding=found, prompt_tokens=len(prompt), embedding_dim=len(found))

    def _chunk(self, stream: Stream, step: Step) -> Any:
        job = stream.answer.job
        first = step.total == len(step.new)
        chunk = pb.GenerateStreamChunk(
            token_ids=step.new,
            prompt_tokens=len(job.prompt),
            completion_tokens=len(step.new),
            cached_tokens=stream.answer.cached,
            output_logprobs=output_logprobs(self.engine, job.wishes, step.new),
            input_logprobs=input_logprobs(self.engine, job.wishes, job.prompt) if first else None,
        )
        return pb.GenerateResponse(chunk=chunk).SerializeToString()

    def _complete(self, stream: Stream, step: Step, *, whole: bool) -> Any:
        answer = stream.answer
        ids = [] if step.end in (End.ABORT, End.HANDOVER) else answer.output if whole else step.new
        complete = pb.GenerateComplete(
            output_ids=ids,
            finish_reason="error" if step.end is End.HANDOVER else str(step.end),
            prompt_tokens=len(answer.job.prompt),
            completion_tokens=len(ids),
            cached_tokens=answer.cached,
            output_logprobs=output_logprobs(self.engine, answer.job.wishes, ids),
            input_logprobs=input_logprobs(self.engine, answer.job.wishes, answer.job.prompt) if whole else None,
        )
        if answer.matched is not None and answer.matched in answer.job.stop_ids:
            complete.matched_token_id = answer.matched
        if (params := kept(self.engine, stream)) is not None:
            complete.kv_transfer_params_json = json.dumps(params)
        return pb.GenerateResponse(complete=complete).SerializeToString()

    async def abort(self, data: bytes, context: Context) -> Any:
        for rid in pb.AbortRequest.FromString(data).request_ids:
            for stream in self.engine.by_rid(rid):
                self.engine.abort(stream, by="call")
        return pb.AbortResponse()

    async def health_check(self, data: bytes, context: Context) -> Any:
        # Already true while grpc.health.v1 still says NOT_SERVING, as in the real servicer's warm-up.
        healthy = self.engine.faults.healthy
        return pb.HealthCheckResponse(healthy=healthy, message="Health" if healthy else "")

    async def model_info(self, data: bytes, context: Context) -> Any:
        settings, vocabulary = self.engine.settings, self.engine.vocabulary
        return pb.GetModelInfoResponse(
            model_path=str(vocabulary.folder),
            is_generation=not settings.embeds,
            max_context_length=settings.context_length,
            vocab_size=vocabulary.size,
            served_model_name=settings.model,
            tokenizer_path=str(vocabulary.folder),
            model_type="mock",
            architectures=["MockForCausalLM"],
            eos_token_ids=[vocabulary.eos],
            max_req_input_len=settings.context_length,
            default_sampling_params_json="{}",
        )

    async def server_info(self, data: bytes, context: Context) -> Any:
        settings = self.engine.settings
        return pb.GetServerInfoResponse(
            kv_role=_KV_ROLE[settings.role],
            kv_connector="NixlConnector" if self.engine.handover.connector else "",
            data_parallel_size=settings.ranks,
            kv_cache_dtype="auto",
            block_size=settings.told_block_size,
            model_dtype="torch.bfloat16",
            max_num_seqs=settings.max_running,
            constrained_decoding_start="first_token",
        )

    async def loads(self, data: bytes, context: Context) -> Any:
        settings, wanted = self.engine.settings, pb.GetLoadsRequest.FromString(data)
        total = settings.kv_blocks * settings.block_size
        loads = [
            pb.SchedulerLoad(
                dp_rank=number,
                num_running_reqs=rank.running,
                num_waiting_reqs=len(rank.waiting),
                num_total_reqs=rank.running + len(rank.waiting),
                num_used_tokens=rank.held_tokens(),
                max_total_num_tokens=total,
                token_usage=min(1.0, rank.held_tokens() / max(1, total)),
                max_running_requests=settings.max_running,
            )
            for number, rank in enumerate(self.engine.simulator.ranks)
            if not wanted.HasField("dp_rank") or wanted.dp_rank == number
        ]
        now = datetime.now(UTC).isoformat()
        return pb.GetLoadsResponse(timestamp=now, version="0.32.0", dp_rank_count=settings.ranks, loads=loads)

    async def tokenizer(self, data: bytes, context: Context) -> None:
        pieces = [self._archive[at : at + _PIECE] for at in range(0, len(self._archive), _PIECE)]
        for piece in pieces[:-1]:
            await context.write(common.GetTokenizerChunk(data=piece).SerializeToString())
        digest = hashlib.sha256(self._archive).hexdigest()
        await context.write(common.GetTokenizerChunk(data=pieces[-1], sha256=digest).SerializeToString())

    async def flush_cache(self, data: bytes, context: Context) -> Any:
        self.engine.simulator.clear_caches()
        return common.FlushCacheResponse(success=True)

    async def subscribe_kv_events(self, data: bytes, context: Context) -> None:
        await subscribe(self.engine, data, context)


def _zip(engine: Engine) -> bytes:
    """The model folder's small text files; the same bytes for the same content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(engine.vocabulary.folder.iterdir()):
            if path.suffix in (".json", ".jinja", ".txt"):
                archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
