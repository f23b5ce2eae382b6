"""vLLM's native Rust frontend, `vllm.Inference` and `vllm.Control` (`--grpc-port`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

from google.protobuf.message import Message

from enginehouse._proto import vllm_native_pb2 as pb
from enginehouse.adapters.engines import abilities
from enginehouse.adapters.engines import sampling as params
from enginehouse.adapters.engines.calls import ask
from enginehouse.adapters.engines.extras import Extras
from enginehouse.adapters.engines.failures import engine_error, not_loaded
from enginehouse.adapters.engines.health import require_serving, serving
from enginehouse.adapters.engines.kv_sources import reachable
from enginehouse.adapters.engines.legs import KEEP_STRUCT
from enginehouse.adapters.engines.protocol import Decoder, ProbeSettings
from enginehouse.adapters.engines.ranks import sound_ranks
from enginehouse.adapters.engines.vllm_constraints import constrain_native
from enginehouse.adapters.engines.vllm_native_logprobs import VllmNativeLogprobDecoder
from enginehouse.adapters.engines.vllm_native_stream import VllmNativeDecoder
from enginehouse.domain.engine import EngineInfo, KvEventSource, ProtocolName, Target
from enginehouse.domain.errors import EngineError, EngineRejected, ProbeFailed
from enginehouse.domain.handover import Fetch, Handover, Keep, Rendezvous
from enginehouse.domain.link import GrpcStatus, LinkError
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Embedding
from enginehouse.ports import EngineLoad, Link

_CONTROL = "/vllm.Control/"
_RANK_HEADER = "x-data-parallel-rank"
_ABSENT = (GrpcStatus.UNIMPLEMENTED, GrpcStatus.FAILED_PRECONDITION)

M = TypeVar("M", bound=Message)


class VllmNativeProtocol:
    """Implements EngineProtocol."""

    name: ClassVar[ProtocolName] = ProtocolName.VLLM_NATIVE
    service: ClassVar[str] = "vllm.Inference"
    generate_path: ClassVar[str] = "/vllm.Inference/GenerateStream"
    generate_canary: ClassVar[bytes] = b""
    kv_events_path: ClassVar[str | None] = None

    def __init__(self, link: Link, target: Target, settings: ProbeSettings) -> None:
        self._link = link
        self._host = target.host
        self._timeout = settings.call_timeout
        self._first_rank = 0
        self._extras = Extras(link, settings.optional_call_timeout)

    async def recognise(self) -> bool:
        if await self._ask_if_told("GetServerInfo", pb.GetServerInfoRequest(), pb.ServerInfo) is not None:
            return True
        # Releases that had no such call are told by their health service.
        return await serving(self._link, self.service, timeout=self._timeout) is not None

    async def health(self) -> None:
        await require_serving(self._link, self.service, timeout=self._timeout)
        paused = await self._extras.ask(_CONTROL + "IsPaused", pb.IsPausedRequest(), pb.IsPausedResponse)
        if paused is not None and paused.paused:
            raise ProbeFailed("generation is paused on this engine")

    async def describe(self) -> EngineInfo:
        server = await self._ask_if_told("GetServerInfo", pb.GetServerInfoRequest(), pb.ServerInfo) or pb.ServerInfo()
        model = await self._ask_if_told("GetModelInfo", pb.GetModelInfoRequest(), pb.ModelInfo)
        name = (model.served_model_name or model.model_id) if model is not None else ""
        if model is None or not name:
            raise ProbeFailed(
                "this vLLM does not say which model it serves (no vllm.Control/GetModelInfo): it is too old",
                permanent=True,
            )
        parallel = server.parallelism
        ranks = sound_ranks(max(1, parallel.data_parallel_size_local or parallel.data_parallel_size))
        self._first_rank = parallel.data_parallel_rank
        blocks, block = server.total_kv_blocks, server.kv_block_size
        sources, loras = await asyncio.gather(self._kv_event_sources(block or None), self._loras(model))
        return EngineInfo(
            protocol=ProtocolName.VLLM_NATIVE,
            model=name,
            aliases=tuple(model.aliases),
            model_path=model.model_id or None,
            tokenizer_path=model.model_id or None,
            context_length=server.max_model_len or None,
            block_size=block or None,
            kv_capacity_tokens=blocks * block // ranks or None,
            max_running=server.max_running_requests or None,
            ranks=ranks,
            first_rank=parallel.data_parallel_rank,
            instance_id=server.instance_id or None,
            version=server.engine_version or None,
            tool_parser=model.tool_call_parser or None,
            reasoning_parser=model.reasoning_parser or None,
            kv_event_sources=sources,
            loras=loras,
            abilities=abilities.VLLM_NATIVE,
        )

    async def _kv_event_sources(self, block: int | None) -> tuple[KvEventSource, ...]:
        path = _CONTROL + "GetKvEventSources"
        told = await self._extras.ask(path, pb.GetKvEventSourcesRequest(), pb.GetKvEventSourcesResponse)
        found: list[KvEventSource] = []
        for place, source in enumerate(told.sources if told is not None else ()):
            endpoint = reachable(source.endpoint, self._host)
            if source.transport not in ("", "zmq") or endpoint is None:
                continue
            has_rank = source.HasField("data_parallel_rank")
            rank = source.data_parallel_rank if has_rank else self._first_rank + place
            replay = reachable(source.replay_endpoint, self._host)
            found.append(KvEventSource(rank, endpoint, source.topic, replay, block))
        return tuple(found)

    async def _loras(self, model: pb.ModelInfo) -> tuple[str, ...]:
        if not model.supports_lora:
            return ()
        told = await self._extras.ask(_CONTROL + "ListLoras", pb.ListLorasRequest(), pb.ListLorasResponse)
        return tuple(lora.lora_name for lora in told.loras) if told is not None else ()

    async def _ask_if_told(self, method: str, request: Message, answer: type[M]) -> M | None:
        """None where this release, or this way of running it, has no such call."""
        try:
            return await ask(self._link, _CONTROL + method, request, answer, timeout=self._timeout)
        except LinkError as error:
            if error.status in _ABSENT:
                return None
            raise

    async def load(self) -> Mapping[int, EngineLoad]:
        return {}  # the protocol does not tell

    def encode(self, request: EngineRequest) -> bytes:
        # Absent temperature means greedy here, so it is always written.
        asked = params.with_defaults(request.sampling, {})
        message = pb.GenerateRequest(
            request_id=request.request_id,
            temperature=asked.temperature,
            random=pb.RandomSampling(
                top_k=params.top_k_or_zero(asked.top_k),
                top_p=0.0 if asked.top_p is None else params.top_p(asked.top_p),
                min_p=asked.min_p or 0.0,
                seed=None if asked.seed is None else params.fold_seed(asked.seed, 64),
            ),
            decoding=pb.Decoding(
                presence_penalty=asked.presence_penalty or 0.0,
                frequency_penalty=asked.frequency_penalty or 0.0,
                repetition_penalty=asked.repetition_penalty or 0.0,
            ),
            stopping=pb.Stopping(
                max_new_tokens=request.max_tokens,
                min_new_tokens=asked.min_tokens,
                stop_token_ids=asked.stop_token_ids,
                ignore_eos=asked.ignore_eos,
            ),
            response=pb.ResponseOptions(output_text=False, output_token_ids=True),
            priority=asked.priority,
            lora_name=request.lora or "",
        )
        if asked.logit_bias:
            message.decoding.logit_bias.update(asked.logit_bias)
        if asked.constraint is not None:
            constrain_native(message, asked.constraint)
        if asked.logprobs is not None or asked.prompt_logprobs is not None:
            _ask_for_logprobs(message.response, asked)
        if request.handover is not None:
            message.kv.kv_transfer_params = _transfer(request.handover)
        message.token_ids.ids.extend(request.token_ids)  # in place: a third of the time of a message that is copied in
        return message.SerializeToString()

    def metadata(self, request: EngineRequest) -> Sequence[tuple[str, str]]:
        return () if request.rank is None else ((_RANK_HEADER, str(request.rank)),)

    def decoder(self, request: EngineRequest) -> Decoder:
        asked = request.sampling
        if asked.logprobs is None and asked.prompt_logprobs is None:
            return VllmNativeDecoder()
        return VllmNativeLogprobDecoder(request)

    async def embed(self, request_id: str, token_ids: Sequence[int], timeout: float) -> Embedding:
        raise EngineRejected("the engine's protocol has no embeddings")

    def failure(self, error: LinkError) -> EngineError:
        # Not loaded, or with no adapters at all since it was asked last.
        if error.status in (GrpcStatus.NOT_FOUND, GrpcStatus.FAILED_PRECONDITION) and error.text.startswith("LoRA "):
            return not_loaded(error)
        return engine_error(error)

    async def abort(self, request_id: str) -> None:
        await ask(
            self._link,
            _CONTROL + "Abort",
            pb.AbortRequest(request_ids=[request_id]),
            pb.AbortResponse,
            timeout=self._timeout,
        )

    async def tokenizer_files(self) -> Mapping[str, bytes]:
        return {}  # the protocol has none


def _ask_for_logprobs(response: pb.ResponseOptions, asked: Sampling) -> None:
    if asked.logprobs is not None:
        response.output_logprobs = True
        if asked.logprobs:
            response.output_candidates.top_n = asked.logprobs
    if asked.prompt_logprobs is not None:
        response.prompt_logprobs = True
        if asked.prompt_logprobs:
            response.prompt_candidates.top_n = asked.prompt_logprobs


def _transfer(handover: Handover) -> bytes:
    """Numbers in a Struct are doubles: from 0.33 on vLLM makes whole ones integers again, and one beyond 2**53 was
    rounded by the engine that wrote it."""
    match handover:
        case Keep():
            return KEEP_STRUCT
        case Fetch():
            return handover.params
        case Rendezvous():
            raise ValueError("not a hand-over of vLLM's")
