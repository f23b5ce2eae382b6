"""What a request to vLLM's servicer wishes for, and the log probabilities of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from enginehouse.domain.constraint import Constraint, Grammar, JsonObject, JsonSchema, OneOf, Regex, StructuralTag
from enginehouse.mock.engine import Engine
from enginehouse.mock.fronts.rpc import Refused
from enginehouse.mock.likely import Likely
from enginehouse.mock.wishes import MOST_LOGPROBS, Wishes


def wishes(params: Any) -> Wishes:
    """Of SamplingParams."""
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) > MOST_LOGPROBS:
            raise Refused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"Requested {name} of {getattr(params, name)}, which is greater than max allowed: {MOST_LOGPROBS}",
            )
    return Wishes(
        constraint=_constraint(params),
        logprobs=params.logprobs if params.HasField("logprobs") else None,
        prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
        logit_bias=dict(params.logit_bias),
    )


def _constraint(params: Any) -> Constraint | None:
    match params.WhichOneof("constraint"):
        case "json_schema":
            return JsonSchema(params.json_schema)
        case "json_object":
            return JsonObject()
        case "regex":
            return Regex(params.regex)
        case "grammar":
            return Grammar(params.grammar)
        case "choice":
            return OneOf(tuple(params.choice.choices))
        case "structural_tag":
            return StructuralTag(params.structural_tag)
        case _:
            return None


def output_logprobs(engine: Engine, asked: Wishes, ids: Sequence[int]) -> Any:
    """Of tokens of the answer; None where they are not asked for."""
    if asked.logprobs is None or not ids:
        return None
    found = engine.likely(ids, asked.logprobs)
    return pb.OutputLogProbs(
        token_logprobs=[one.logprob for one in found],
        token_ids=ids,
        top_logprobs=[_top(one) for one in found] if asked.logprobs else (),
    )


def input_logprobs(engine: Engine, asked: Wishes, prompt: Sequence[int]) -> Any:
    """Of the prompt, whose first token nothing foretells."""
    if asked.prompt_logprobs is None:
        return None
    found = engine.likely(prompt[1:], asked.prompt_logprobs)
    return pb.InputLogProbs(
        token_logprobs=[pb.InputTokenLogProb(), *(pb.InputTokenLogProb(value=one.logprob) for one in found)],
        token_ids=prompt,
        top_logprobs=[pb.TopLogProbs(), *map(_top, found)] if asked.prompt_logprobs else (),
    )


def _top(one: Likely) -> Any:
    """As many as were asked for. One that is not among the best stands before them, in the place of the last."""
    best = one.best
    if one.rank > len(best):
        best = ((one.token, one.logprob), *best[:-1])
    return pb.TopLogProbs(values=[value for _, value in best], token_ids=[token for token, _ in best])
