"""What a request to vLLM's native frontend wishes for, and the log probabilities of its answer."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from enginehouse._proto import vllm_native_pb2 as pb
from enginehouse.domain.constraint import Constraint, Grammar, JsonObject, JsonSchema, OneOf, Regex, StructuralTag
from enginehouse.mock.engine import Engine
from enginehouse.mock.fronts.rpc import Refused
from enginehouse.mock.likely import Likely
from enginehouse.mock.wishes import MOST_LOGPROBS, Wishes


def wishes(request: pb.GenerateRequest) -> Wishes:
    """Of a whole request."""
    response = request.response
    for name in ("output_candidates", "prompt_candidates"):
        if getattr(response, name).top_n > MOST_LOGPROBS:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"{name}.top_n must be at most {MOST_LOGPROBS}")
    return Wishes(
        constraint=_constraint(request.decoding),
        logprobs=response.output_candidates.top_n if response.output_logprobs else None,
        prompt_logprobs=response.prompt_candidates.top_n if response.prompt_logprobs else None,
        logit_bias=dict(request.decoding.logit_bias),
        priority=request.priority,
    )


def _constraint(decoding: pb.Decoding) -> Constraint | None:
    match decoding.WhichOneof("structured_output"):
        case "json":
            return JsonSchema(decoding.json)
        case "json_object":
            return JsonObject()
        case "regex":
            return Regex(decoding.regex)
        case "grammar":
            return Grammar(decoding.grammar)
        case "choice":
            return OneOf(tuple(decoding.choice.choices))
        case "structural_tag":
            return StructuralTag(decoding.structural_tag)
        case _:
            return None


def add_output(engine: Engine, asked: Wishes, ids: Sequence[int], output: pb.Output) -> None:
    """The log probabilities of tokens of the answer, where they are asked for."""
    if asked.logprobs is not None:
        found = engine.likely(ids, asked.logprobs)
        output.logprobs.extend(one.logprob for one in found)
        output.ranks.extend(one.rank for one in found)
        output.candidate_tokens.extend(map(_candidates, found))


def add_prompt(engine: Engine, asked: Wishes, prompt: Sequence[int], info: pb.PromptInfo) -> None:
    """The same of the prompt; what stands for its first token is a placeholder."""
    if asked.prompt_logprobs is not None:
        found = engine.likely(prompt[1:], asked.prompt_logprobs)
        info.logprobs.extend([0.0, *(one.logprob for one in found)])
        info.ranks.extend([0, *(one.rank for one in found)])
        info.candidate_tokens.extend([pb.CandidateTokenInfo(), *map(_candidates, found)])


def _candidates(one: Likely) -> pb.CandidateTokenInfo:
    return pb.CandidateTokenInfo(
        tokens=[
            pb.CandidateToken(id=token, logprob=value, rank=rank)
            for rank, (token, value) in enumerate(one.best, start=1)
        ]
    )
