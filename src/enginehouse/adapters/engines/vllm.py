"""vLLM's Python servicer, `vllm.grpc.engine.VllmEngine` (`vllm serve --grpc`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from enginehouse.adapters.engines import abilities, tokenizer_zip
from enginehouse.adapters.engines import sampling as params
from enginehouse.adapters.engines.calls import ask, gather
from enginehouse.adapters.engines.extras import Extras
from enginehouse.adapters.engines.failures import engine_error
from enginehouse.adapters.engines.health import require_serving
from enginehouse.adapters.engines.legs import KEEP_JSON
from enginehouse.adapters.engines.protocol import Decoder, Load, ProbeSettings
from enginehouse.adapters.engines.ranks import sound_ranks
from enginehouse.adapters.engines.vllm_constraints import constrain
from enginehouse.adapters.engines.vllm_logprobs import VllmLogprobDecoder, to_ask
from enginehouse.adapters.engines.vllm_stream import VllmDecoder
from enginehouse.core.tokenizer_files import digest
from enginehouse.domain.engine import EngineInfo, ProtocolName, Target
from enginehouse.domain.errors import EngineBroken, EngineError, ProbeFailed
from enginehouse.domain.handover import Fetch, Handover, Keep, Rendezvous
from enginehouse.domain.link import GrpcStatus, LinkError, LinkErrorKind
from enginehouse.domain.request import EngineRequest
from enginehouse.domain.stream import Embedding
from enginehouse.ports import EngineLoad, Link

_SERVICE = "/vllm.grpc.engine.VllmEngine/"


class VllmProtocol:
    """Implements EngineProtocol."""

    name: ClassVar[ProtocolName] = ProtocolName.VLLM
    service: ClassVar[str] = "vllm.grpc.engine.VllmEngine"
    generate_path: ClassVar[str] = _SERVICE + "Generate"
    generate_canary: ClassVar[bytes] = pb.GenerateRequest(stream=True).SerializeToString()
    kv_events_path: ClassVar[str | None] = _SERVICE + "SubscribeKvEvents"

    def __init__(self, link: Link, target: Target, settings: ProbeSettings) -> None:
        self._link = link
        self._settings = settings
        self._timeout = settings.call_timeout
        self._extras = Extras(link, settings.optional_call_timeout)
        self._defaults: Mapping[str, object] = {}
        self._digest: str | None = None
        self._digest_asked = False
        link.on_lost(self._forget)

    def _forget(self, _: LinkError) -> None:
        """Another process may answer from here on."""
        self._digest_asked = False

    async def recognise(self) -> bool:
        try:
            await self._server_info()
        except LinkError as error:
            if error.status is GrpcStatus.UNIMPLEMENTED:
                return False
            raise
        return True

    async def health(self) -> None:
        # The servicer's own HealthCheck says healthy while it still warms itself up; grpc.health.v1 waits for the end.
        if await require_serving(self._link, self.service, timeout=self._timeout):
            return
        answer = await ask(
            self._link,
            _SERVICE + "HealthCheck",
            pb.HealthCheckRequest(),
            pb.HealthCheckResponse,
            timeout=self._timeout,
        )
        if not answer.healthy:
            raise ProbeFailed("not healthy yet (HealthCheck of vllm.grpc.engine says healthy=false)")

    async def describe(self) -> EngineInfo:
        server = await self._server_info()
        model = await ask(
            self._link,
            _SERVICE + "GetModelInfo",
            pb.GetModelInfoRequest(),
            pb.GetModelInfoResponse,
            timeout=self._timeout,
        )
        name = model.served_model_name or model.model_path
        if not name:
            raise ProbeFailed("does not say which model it serves")
        loads = await self._extras.ask(_SERVICE + "GetLoads", pb.GetLoadsRequest(), pb.GetLoadsResponse)
        loads = loads or pb.GetLoadsResponse()
        context, longest = model.max_context_length or None, model.max_req_input_len or None
        self._defaults = _defaults(model.default_sampling_params_json)
        return EngineInfo(
            protocol=ProtocolName.VLLM,
            model=name,
            model_path=model.model_path or None,
            tokenizer_path=model.tokenizer_path or None,
            tokenizer_digest=await self._tokenizer_digest(),
            context_length=context or longest,
            max_prompt_tokens=longest if longest and context and longest < context else None,
            vocab_size=model.vocab_size or None,
            block_size=server.block_size or None,
            kv_capacity_tokens=next((load.max_total_num_tokens for load in loads.loads), 0) or None,
            max_running=server.max_num_seqs or None,
            ranks=sound_ranks(max(1, server.data_parallel_size or loads.dp_rank_count)),
            version=loads.version or None,
            eos_token_ids=tuple(model.eos_token_ids),
            default_sampling=dict(self._defaults),
            reasoning_parser=server.engine_reasoning_parser or None,
            # One that only combines others is no name of what carries the caches.
            transfer_backend=None if server.kv_connector == "MultiConnector" else server.kv_connector or None,
            kv_dtype=None if server.kv_cache_dtype == "auto" else server.kv_cache_dtype or None,
            abilities=abilities.VLLM if model.is_generation else abilities.EMBEDDING,
        )

    async def _server_info(self) -> pb.GetServerInfoResponse:
        return await ask(
            self._link,
            _SERVICE + "GetServerInfo",
            pb.GetServerInfoRequest(),
            pb.GetServerInfoResponse,
            timeout=self._timeout,
        )

    async def load(self) -> Mapping[int, EngineLoad]:
        answer = await ask(
            self._link, _SERVICE + "GetLoads", pb.GetLoadsRequest(), pb.GetLoadsResponse, timeout=self._timeout
        )
        return {
            entry.dp_rank: Load(
                entry.num_running_reqs,
                entry.num_waiting_reqs,
                entry.num_used_tokens,
                entry.max_total_num_tokens or None,
            )
            for entry in answer.loads
        }

    def encode(self, request: EngineRequest) -> bytes:
        if request.lora is not None:
            raise ValueError("this protocol of vLLM's has no field for an adapter")
        # Absent means 1.0 or off here, whatever the model's own defaults are, so those are filled in.
        asked = params.with_defaults(request.sampling, self._defaults)
        sampling = pb.SamplingParams(
            temperature=asked.temperature,
            top_p=0.0 if asked.top_p is None else params.top_p(asked.top_p),
            top_k=params.top_k_or_zero(asked.top_k),
            min_p=asked.min_p or 0.0,
            frequency_penalty=asked.frequency_penalty or 0.0,
            presence_penalty=asked.presence_penalty or 0.0,
            repetition_penalty=asked.repetition_penalty or 0.0,
            max_tokens=request.max_tokens,
            min_tokens=asked.min_tokens,
            stop_token_ids=asked.stop_token_ids,
            ignore_eos=asked.ignore_eos,
            seed=None if asked.seed is None else params.fold_seed(asked.seed, 32),
            logprobs=None if asked.logprobs is None else to_ask(asked.logprobs),
            prompt_logprobs=None if asked.prompt_logprobs is None else to_ask(asked.prompt_logprobs),
        )
        if asked.logit_bias:
            sampling.logit_bias.update(asked.logit_bias)
        if asked.constraint is not None:
            constrain(sampling, asked.constraint)
        message = pb.GenerateRequest(
            request_id=request.request_id, sampling_params=sampling, stream=True, data_parallel_rank=request.rank
        )
        if request.handover is not None:
            message.kv_transfer_params_json = _transfer(request.handover)
        message.tokenized.input_ids.extend(request.token_ids)  # in place: a third of the time of a copied message
        encoded: bytes = message.SerializeToString()
        return encoded

    def metadata(self, request: EngineRequest) -> Sequence[tuple[str, str]]:
        return ()

    def decoder(self, request: EngineRequest) -> Decoder:
        asked = request.sampling
        if asked.logprobs is None and asked.prompt_logprobs is None:
            return VllmDecoder()
        return VllmLogprobDecoder(request)

    async def embed(self, request_id: str, token_ids: Sequence[int], timeout: float) -> Embedding:
        message = pb.EmbedRequest(request_id=request_id)
        message.tokenized.input_ids.extend(token_ids)
        answer = await ask(self._link, _SERVICE + "Embed", message, pb.EmbedResponse, timeout=timeout)
        return Embedding(answer.embedding[:], answer.prompt_tokens or len(token_ids))

    def failure(self, error: LinkError) -> EngineError:
        return engine_error(error)

    async def abort(self, request_id: str) -> None:
        await ask(
            self._link,
            _SERVICE + "Abort",
            pb.AbortRequest(request_ids=[request_id]),
            pb.AbortResponse,
            timeout=self._timeout,
        )

    async def tokenizer_files(self) -> Mapping[str, bytes]:
        return await self._tokenizer_files(self._settings.tokenizer_timeout)

    async def _tokenizer_files(self, timeout: float) -> Mapping[str, bytes]:
        try:
            chunks = await gather(
                self._link,
                _SERVICE + "GetTokenizer",
                common.GetTokenizerRequest(),
                common.GetTokenizerChunk,
                timeout=timeout,
                limit=self._settings.tokenizer_limit,
            )
        except LinkError as error:
            if error.status is GrpcStatus.UNIMPLEMENTED:
                return {}
            if error.kind is LinkErrorKind.TOO_LARGE:
                raise EngineBroken("the tokenizer that the engine hands out is larger than allowed") from error
            raise
        packed = b"".join(chunk.data for chunk in chunks)
        checksum = next((chunk.sha256 for chunk in reversed(chunks) if chunk.sha256), "")
        try:
            return await asyncio.to_thread(tokenizer_zip.unpack, packed, checksum, self._settings.tokenizer_limit)
        except tokenizer_zip.BadTokenizer as error:
            raise EngineBroken(f"the tokenizer that the engine hands out cannot be used: {error}") from error

    async def _tokenizer_digest(self) -> str | None:
        """Of the files' content; read once for each process, which does not change its tokenizer."""
        if not self._digest_asked:
            try:
                files = await self._tokenizer_files(self._settings.tokenizer_check_timeout)
            except (LinkError, EngineBroken):
                files = {}  # it may well serve; who needs the files will ask again and see why
            self._digest = digest(files)
            self._digest_asked = True
        return self._digest


def _transfer(handover: Handover) -> str:
    match handover:
        case Keep():
            return KEEP_JSON
        case Fetch():
            return handover.params.decode()
        case Rendezvous():
            raise ValueError("not a hand-over of vLLM's")


def _defaults(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
