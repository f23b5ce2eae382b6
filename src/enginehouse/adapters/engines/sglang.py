"""SGLang's own gRPC server, `sglang.runtime.v1.SglangService` (`--grpc-port`), releases 0.5.16 and later."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from enginehouse._proto import sglang_runtime_v1_pb2 as pb
from enginehouse.adapters.engines import sampling as params
from enginehouse.adapters.engines.calls import ask, implemented
from enginehouse.adapters.engines.extras import Extras
from enginehouse.adapters.engines.failures import engine_error, not_loaded, rejected
from enginehouse.adapters.engines.legs import bracketed
from enginehouse.adapters.engines.protocol import Decoder, Load, ProbeSettings
from enginehouse.adapters.engines.sglang_constraints import constrain
from enginehouse.adapters.engines.sglang_info import Facts, engine_info, is_guided
from enginehouse.adapters.engines.sglang_logprobs import SglangLogprobDecoder
from enginehouse.adapters.engines.sglang_prompt import Prompts
from enginehouse.adapters.engines.sglang_stream import SglangDecoder, handover_failed
from enginehouse.domain.engine import Ability, EngineInfo, ProtocolName, Target
from enginehouse.domain.errors import EngineError, ProbeFailed
from enginehouse.domain.handover import Handover, Rendezvous
from enginehouse.domain.link import GrpcStatus, LinkError
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Embedding
from enginehouse.ports import EngineLoad, Link

_SERVICE = "/sglang.runtime.v1.SglangService/"
_HIGHEST = (1 << 31) - 1
_prompts = Prompts()
"""One for all engines: the legs of a hand-over go to two."""

# How SGLang's Python side words what the caller got wrong; all of it arrives as INTERNAL.
_ARGUMENT_TEXTS = (
    "is longer than the model's context length",
    "exceeds the model's maximum context length",
    "input_ids cannot be empty",
    " must be in ",
    " must be a ",
    " must be at least ",
    " must be non-negative",
    " must be positive",
)
_NOT_LOADED = "LoRA adapters are not loaded"


class SglangProtocol:
    """Implements EngineProtocol."""

    name: ClassVar[ProtocolName] = ProtocolName.SGLANG
    service: ClassVar[str] = "sglang.runtime.v1.SglangService"
    generate_path: ClassVar[str] = _SERVICE + "Generate"
    generate_canary: ClassVar[bytes] = b""
    kv_events_path: ClassVar[str | None] = None

    def __init__(self, link: Link, target: Target, settings: ProbeSettings) -> None:
        self._link = link
        self._target = target
        self._timeout = settings.call_timeout
        self._extras = Extras(link, settings.optional_call_timeout)
        self._incremental: bool | None = None
        self._guided = False
        """It takes `guided_decoding`, and has not only the two fields of before."""
        self._urgency = 0
        """What a priority of ours is multiplied with; 0: it schedules by none."""

    async def recognise(self) -> bool:
        try:
            server = await self._server_info()
        except LinkError as error:
            if error.status is GrpcStatus.UNIMPLEMENTED:
                return False
            raise
        rank = server.get("node_rank")
        if isinstance(rank, int) and rank > 0:
            raise ProbeFailed(
                f"follower of a multi-node SGLang engine (node_rank {rank}): only node 0 takes requests;"
                " select head pods",
                permanent=True,
            )
        if not await implemented(self._link, _SERVICE + "HealthCheck", b"", timeout=self._timeout):
            raise ProbeFailed(
                "answers GetServerInfo of sglang.runtime.v1 and nothing else: the metadata server of a follower node",
                permanent=True,
            )
        return True

    async def health(self) -> None:
        answer = await ask(
            self._link,
            _SERVICE + "HealthCheck",
            pb.HealthCheckRequest(),
            pb.HealthCheckResponse,
            timeout=self._timeout,
        )
        if not answer.healthy:
            raise ProbeFailed("not healthy yet (SGLang HealthCheck says healthy=false: still warming up, or stuck)")

    async def describe(self) -> EngineInfo:
        server = await self._server_info()
        model = await ask(
            self._link,
            _SERVICE + "GetModelInfo",
            pb.GetModelInfoRequest(),
            pb.GetModelInfoResponse,
            timeout=self._timeout,
        )
        cards = await ask(
            self._link, _SERVICE + "ListModels", pb.ListModelsRequest(), pb.ListModelsResponse, timeout=self._timeout
        )
        snapshot, load = await asyncio.gather(
            # The state as it is now; before 0.5.20 there is none.
            self._extras.first(_SERVICE + "WatchEngineState", pb.WatchEngineStateRequest(), pb.EngineStateSnapshot),
            self._extras.ask(_SERVICE + "GetLoad", pb.GetLoadRequest(), pb.GetLoadResponse),
        )
        if snapshot is not None and snapshot.is_pause:
            raise ProbeFailed("generation is paused on this engine")
        flag = server.get("incremental_streaming_output")
        self._incremental = flag if isinstance(flag, bool) else None
        facts = Facts(
            server=server,
            model=_json_object(model.json_info),
            cards=tuple(cards.models),
            loads=_loads(load) if load is not None else (),
            instance_id=snapshot.instance_id if snapshot is not None else None,
        )
        info = engine_info(facts, self._target.host)
        self._guided = is_guided(server)
        small_first = server.get("schedule_low_priority_values_first") is True
        self._urgency = (1 if small_first else -1) if Ability.PRIORITY in info.abilities else 0
        return info

    async def _server_info(self) -> dict[str, Any]:
        answer = await ask(
            self._link,
            _SERVICE + "GetServerInfo",
            pb.GetServerInfoRequest(),
            pb.GetServerInfoResponse,
            timeout=self._timeout,
        )
        return _json_object(answer.json_info)

    async def load(self) -> Mapping[int, EngineLoad]:
        answer = await ask(
            self._link, _SERVICE + "GetLoad", pb.GetLoadRequest(), pb.GetLoadResponse, timeout=self._timeout
        )
        return {
            _count(entry.get("dp_rank")): Load(
                running=_count(entry.get("num_running_reqs")),
                waiting=_count(entry.get("num_waiting_reqs")),
                used_tokens=_count_or_none(entry.get("num_used_tokens")),
                total_tokens=_count_or_none(entry.get("max_total_num_tokens")),
            )
            for entry in _loads(answer)
        }

    def encode(self, request: EngineRequest) -> bytes:
        asked = request.sampling
        sampling = pb.SamplingParams(
            temperature=asked.temperature,
            top_p=None if asked.top_p is None else params.top_p(asked.top_p),
            top_k=None if asked.top_k is None else (params.top_k_or_zero(asked.top_k) or -1),
            min_p=asked.min_p,
            frequency_penalty=asked.frequency_penalty,
            presence_penalty=asked.presence_penalty,
            repetition_penalty=asked.repetition_penalty,
            max_new_tokens=request.max_tokens,
            min_new_tokens=asked.min_tokens or None,
            stop_token_ids=asked.stop_token_ids,
            ignore_eos=asked.ignore_eos or None,
            seed=None if asked.seed is None else params.fold_seed(asked.seed, 64),
        )
        message = pb.GenerateRequest(
            sampling_params=sampling,
            stream=True,
            rid=request.request_id,
            routed_dp_rank=request.rank,
            disaggregated_params=_meeting(request.handover) if request.handover is not None else None,
            priority=min(asked.priority * self._urgency, _HIGHEST) or None,
            lora_path=request.lora,
        )
        if asked.constraint is not None:
            constrain(message.sampling_params, asked.constraint, guided=self._guided)
        if asked.logprobs is not None or asked.prompt_logprobs is not None:
            _ask_for_logprobs(message, asked)
        if asked.logit_bias:
            raise ValueError("SGLang's protocol has no field for it")
        head, tokens = message.SerializeToString(), request.token_ids
        return head + (_prompts.for_prefill(tokens) if request.prefill_only else _prompts.for_decode(tokens))

    def metadata(self, request: EngineRequest) -> Sequence[tuple[str, str]]:
        return ()

    def decoder(self, request: EngineRequest) -> Decoder:
        asked = request.sampling
        if asked.logprobs is None and asked.prompt_logprobs is None:
            return SglangDecoder(self._incremental)
        return SglangLogprobDecoder(self._incremental, request)

    async def embed(self, request_id: str, token_ids: Sequence[int], timeout: float) -> Embedding:
        answer = await ask(
            self._link,
            _SERVICE + "Embed",
            pb.EmbedRequest(input_ids=token_ids, rid=request_id),
            pb.EmbedResponse,
            timeout=timeout,
        )
        told = answer.meta_info.get("prompt_tokens", "")
        return Embedding(answer.embedding[:], int(told) if told.isdigit() else len(token_ids))

    def failure(self, error: LinkError) -> EngineError:
        if error.status is GrpcStatus.INTERNAL and any(text in error.text for text in _ARGUMENT_TEXTS):
            refused = rejected(error.text)
            refused.__cause__ = error
            return refused
        if error.status is GrpcStatus.INTERNAL and _NOT_LOADED in error.text:
            return not_loaded(error)
        if error.status is GrpcStatus.INTERNAL and (made := handover_failed(error.text)) is not None:
            made.__cause__ = error
            return made
        return engine_error(error)

    async def abort(self, request_id: str) -> None:
        await ask(
            self._link, _SERVICE + "Abort", pb.AbortRequest(rid=request_id), pb.AbortResponse, timeout=self._timeout
        )

    async def tokenizer_files(self) -> Mapping[str, bytes]:
        return {}  # the protocol has none


def _ask_for_logprobs(message: pb.GenerateRequest, asked: Sampling) -> None:
    """There is one number for the answer and the prompt: the decoder cuts."""
    message.return_logprob = True
    message.top_logprobs_num = max(asked.logprobs or 0, asked.prompt_logprobs or 0)
    message.logprob_start_len = -1 if asked.prompt_logprobs is None else 0


def _meeting(handover: Handover) -> pb.DisaggregatedParams:
    if not isinstance(handover, Rendezvous) or handover.room < 1:  # SGLang takes room 0 for "none yet", and waits
        raise ValueError("not a hand-over of SGLang's")
    return pb.DisaggregatedParams(
        bootstrap_host=bracketed(handover.host), bootstrap_port=handover.port, bootstrap_room=handover.room
    )


def _loads(answer: pb.GetLoadResponse) -> tuple[dict[str, Any], ...]:
    """Load by rank."""
    try:
        found = json.loads(answer.json_info)
    except (ValueError, RecursionError):
        return ()
    return tuple(entry for entry in found if isinstance(entry, dict)) if isinstance(found, list) else ()


def _json_object(text: str) -> dict[str, Any]:
    """A JSON object; an empty one for anything else. The text itself may hold secrets and goes nowhere."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _count_or_none(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) else None


def _count(value: object) -> int:
    return _count_or_none(value) or 0
