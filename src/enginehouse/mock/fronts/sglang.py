"""`sglang.runtime.v1.SglangService` as SGLang speaks it: all ids so far in each message, or deltas with its flag."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import grpc

from enginehouse._proto import sglang_runtime_v1_pb2 as pb
from enginehouse.domain.engine import Role
from enginehouse.mock.engine import Engine, Step, Stream
from enginehouse.mock.fronts.rpc import (
    Context,
    Refused,
    Services,
    StreamHandler,
    UnaryHandler,
    check_rank,
    refuse_if_told,
)
from enginehouse.mock.fronts.sglang_info import load, model_info, server_info
from enginehouse.mock.fronts.sglang_legs import leg
from enginehouse.mock.fronts.sglang_wishes import logprobs, wishes
from enginehouse.mock.handover.legs import Offer
from enginehouse.mock.instance import Unsayable
from enginehouse.mock.simulator import End, Job

SERVICE = "sglang.runtime.v1.SglangService"
_INTERNAL = grpc.StatusCode.INTERNAL
_DEFAULT_MAX_TOKENS = 128
_LIMIT = 64 * 1024 * 1024


class SglangFront:
    """SGLang's calls over one engine."""

    options = (("grpc.max_receive_message_length", _LIMIT), ("grpc.max_send_message_length", _LIMIT))
    streaming = frozenset({"Generate", "WatchEngineState"})

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._aborted: set[Stream] = set()
        """Named by an Abort call themselves; those that only share the prefix end with a message instead."""

    def services(self) -> Services:
        calls: dict[str, UnaryHandler | StreamHandler] = {
            "Generate": self.generate,
            "Embed": self.embed,
            "Abort": self.abort,
            "HealthCheck": self.health_check,
            "GetModelInfo": self.model_info,
            "GetServerInfo": self.server_info,
            "ListModels": self.list_models,
            "GetLoad": self.load,
        }
        if not self.engine.settings.old_release:
            calls["WatchEngineState"] = self.watch_state
        return {SERVICE: calls}

    async def generate(self, data: bytes, context: Context) -> None:
        request = pb.GenerateRequest.FromString(data)
        job = self._job(request)
        refuse_if_told(self.engine.faults)
        refusal = self._refusal(job)
        try:
            job = replace(job, said=self.engine.said(job.prompt, job.wishes.constraint))
        except Unsayable as error:
            refusal = refusal or (str(error), 400)
        if refusal is not None:
            text, code = refusal
            if not request.stream:
                raise Refused(_INTERNAL, text if code == 400 else f"{code}: {text}")
            await context.write(_rejected(job, text, code))
            return
        began = time.monotonic()
        with self.engine.open(job) as stream:
            try:
                async for step in stream:
                    if step.end is End.ERROR:
                        raise Refused(_INTERNAL, "injected failure")
                    if step.end is End.HANDOVER:
                        if not request.stream:
                            raise Refused(_INTERNAL, f"500: {stream.answer.trouble}")
                        await context.write(_rejected(job, stream.answer.trouble, 500))
                        return
                    if step.end is End.ABORT and stream in self._aborted:
                        raise Refused(grpc.StatusCode.CANCELLED, f"Request aborted: {job.rid}")
                    if (request.stream or step.end) and step.end is not End.VANISHED:
                        await context.write(self._message(request.stream, stream, step, began))
            finally:
                self._aborted.discard(stream)

    def _job(self, request: pb.GenerateRequest) -> Job:
        params, prompt = request.sampling_params, list(request.input_ids)
        context = self.engine.settings.context_length
        most = params.max_new_tokens if params.HasField("max_new_tokens") else None
        if request.rid and self.engine.by_rid(request.rid):
            text = f"Failed to submit request: RuntimeError: Duplicate active gRPC request id: {request.rid}"
            raise Refused(_INTERNAL, text)
        if self.engine.settings.embeds:
            raise Refused(_INTERNAL, "This model does not appear to be a generation model.")
        self._check(prompt)
        if most is not None and len(prompt) + most > context:
            text = f"Requested token count exceeds the model's maximum context length of {context} tokens."
            raise Refused(_INTERNAL, text)
        if params.HasField("top_p") and not 0 < params.top_p <= 1:
            raise Refused(_INTERNAL, f"top_p must be in (0, 1], got {params.top_p:g}.")
        if params.HasField("temperature") and params.temperature < 0:
            raise Refused(_INTERNAL, f"temperature must be a non-negative finite number, got {params.temperature:g}.")
        if request.lora_path and request.lora_path not in self.engine.faults.adapters:
            text = f"The following requested LoRA adapters are not loaded: {{'{request.lora_path}'}}"
            raise Refused(_INTERNAL, text)
        ranks = self.engine.settings.ranks
        rank = check_rank(
            self.engine,
            request.routed_dp_rank if request.HasField("routed_dp_rank") else None,
            lambda number: Refused(_INTERNAL, f"routed_dp_rank={number} out of range [0, {ranks})"),
        )
        part = leg(request, self.engine.settings.role)
        if rank is None and isinstance(part, Offer):
            rank = part.room % ranks
        return Job(
            rid=request.rid,
            prompt=prompt,
            max_tokens=min(_DEFAULT_MAX_TOKENS if most is None else most, context - len(prompt) - 1),
            min_tokens=params.min_new_tokens,
            stop_ids=frozenset(params.stop_token_ids),
            ignore_eos=params.ignore_eos,
            rank=rank,
            lora=request.lora_path,
            leg=part,
            wishes=wishes(request, old=self.engine.settings.old_release),
        )

    def _check(self, prompt: list[int]) -> None:
        context = self.engine.settings.context_length
        if not prompt:
            raise Refused(_INTERNAL, "input_ids cannot be empty.")
        if len(prompt) >= context:
            text = f"The input ({len(prompt)} tokens) is longer than the model's context length ({context} tokens)."
            raise Refused(_INTERNAL, text)

    async def embed(self, data: bytes, context: Context) -> Any:
        request = pb.EmbedRequest.FromString(data)
        refuse_if_told(self.engine.faults)
        if not self.engine.settings.embeds:
            raise Refused(_INTERNAL, "This model does not appear to be an embedding model by default.")
        prompt = list(request.input_ids)
        self._check(prompt)
        found = await self.engine.embed(request.rid, prompt)
        return pb.EmbedResponse(embedding=found, meta_info={"prompt_tokens": str(len(prompt))})

    def _refusal(self, job: Job) -> tuple[str, int] | None:
        """What SGLang's scheduler refuses: a normal message that says abort when streaming, INTERNAL otherwise."""
        if self.engine.faults.reject_status:
            return "injected rejection", self.engine.faults.reject_status
        if self.engine.settings.role is not Role.AGGREGATED and job.leg is None:
            text = f"Invalid request: Disaggregated request received without bootstrap room id. req.rid='{job.rid}'"
            return text, 400
        if self.engine.simulator.full(job.rank):
            return "The request queue is full.", 503
        return None

    def _message(self, streaming: bool, stream: Stream, step: Step, began: float) -> bytes:
        answer = stream.answer
        ids = answer.output[: step.total]
        if streaming and self.engine.settings.incremental:
            # On abort SGLang sends the last id again.
            ids = ids[-1:] if step.end is End.ABORT else step.new
        meta = {
            "id": json.dumps(answer.job.rid),
            "finish_reason": "null" if step.end is None else json.dumps(_finish_reason(stream, step)),
            "completion_tokens": str(step.total),
            "weight_version": '"default"',
        }
        if step.end is not End.ABORT:
            meta |= {
                "prompt_tokens": str(len(answer.job.prompt)),
                "cached_tokens": str(answer.cached),
                "num_retractions": "0",
                "reasoning_tokens": "0",
            }
            if self.engine.settings.ranks > 1:
                meta["dp_rank"] = str(answer.rank)
            meta |= logprobs(self.engine, answer, ids, step.total)
        if step.end is not None:
            meta["e2e_latency"] = repr(time.monotonic() - began)
        return pb.GenerateResponse(output_ids=ids, meta_info=meta, finished=step.end is not None).SerializeToString()

    async def abort(self, data: bytes, context: Context) -> Any:
        request = pb.AbortRequest.FromString(data)
        if not request.rid and not request.abort_all:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "Abort requires a non-empty rid unless abort_all is true")
        # Only a live id reaches the scheduler, and there it takes along every id that begins with it.
        if request.abort_all or self.engine.by_rid(request.rid):
            for answer, stream in list(self.engine.streams.items()):
                named = request.abort_all or answer.job.rid == request.rid
                if named:
                    self._aborted.add(stream)
                if named or answer.job.rid.startswith(request.rid):
                    self.engine.abort(stream, by="call" if named else "prefix")
        return pb.AbortResponse(success=True)

    async def health_check(self, data: bytes, context: Context) -> Any:
        return pb.HealthCheckResponse(healthy=self.engine.healthy)

    async def watch_state(self, data: bytes, context: Context) -> None:
        revision, told = 0, None
        while True:
            change = self.engine.next_change()  # before the look: writing takes time, too
            if self.engine.healthy != told:
                told, revision = self.engine.healthy, revision + 1
                snapshot = pb.EngineStateSnapshot(
                    instance_id=self.engine.started_ns,
                    revision=revision,
                    healthy=told,
                    model_info=model_info(self.engine),
                    server_info=server_info(self.engine),
                )
                await context.write(snapshot.SerializeToString())
            await change

    async def model_info(self, data: bytes, context: Context) -> Any:
        return model_info(self.engine)

    async def server_info(self, data: bytes, context: Context) -> Any:
        return server_info(self.engine)

    async def list_models(self, data: bytes, context: Context) -> Any:
        settings = self.engine.settings
        card = pb.ModelCard(id=settings.model, root=settings.model, max_model_len=settings.context_length)
        adapters = [pb.ModelCard(id=n, root=f"/loras/{n}", parent=card.id) for n in self.engine.faults.adapters]
        return pb.ListModelsResponse(models=[card, *adapters])

    async def load(self, data: bytes, context: Context) -> Any:
        request = pb.GetLoadRequest.FromString(data)
        return load(self.engine, request.dp_rank if request.HasField("dp_rank") else None)


def _finish_reason(stream: Stream, step: Step) -> dict[str, object]:
    if step.end is End.STOP:
        return {"type": "stop", "matched": stream.answer.matched}
    if step.end is End.LENGTH:
        return {"type": "length", "length": step.total}
    text = "Aborted" if step.total else "Abort in waiting queue"
    return {"type": "abort", "message": text, "status_code": None, "err_type": None}


def _rejected(job: Job, text: str, code: int) -> bytes:
    reason = {"type": "abort", "message": text, "status_code": code, "err_type": None}
    meta = {
        "id": json.dumps(job.rid),
        "finish_reason": json.dumps(reason),
        "completion_tokens": "0",
        "weight_version": '"default"',
        "e2e_latency": "0.0",
    }
    return pb.GenerateResponse(meta_info=meta, finished=True).SerializeToString()
