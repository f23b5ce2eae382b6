"""What a request to SGLang wishes for, and the log probabilities of its answer: JSON lists in its meta information."""

from __future__ import annotations

import json
from collections.abc import Sequence

import grpc

from enginehouse._proto import sglang_runtime_v1_pb2 as pb
from enginehouse.domain.constraint import Constraint, Grammar, JsonSchema, OneOf, Regex, StructuralTag
from enginehouse.mock.engine import Engine
from enginehouse.mock.fronts.rpc import Refused
from enginehouse.mock.simulator import Answer
from enginehouse.mock.wishes import Wishes

_Entry = tuple[float | None, int, None]


def wishes(request: pb.GenerateRequest, *, old: bool) -> Wishes:
    """Of a whole request. old: the release knows nothing of guided_decoding and priorities, and drops them."""
    tops = request.top_logprobs_num if request.return_logprob else None
    return Wishes(
        constraint=_constraint(request.sampling_params, old=old),
        logprobs=tops,
        prompt_logprobs=tops if request.HasField("logprob_start_len") and request.logprob_start_len == 0 else None,
        priority=0 if old else request.priority,
    )


def _constraint(params: pb.SamplingParams, *, old: bool) -> Constraint | None:
    before: Constraint | None = None
    if params.json_schema:
        before = JsonSchema(params.json_schema)
    elif params.regex:
        before = Regex(params.regex)
    if old or not params.HasField("guided_decoding"):
        return before
    if before is not None:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "guided_decoding cannot be combined with json_schema or regex")
    guided = params.guided_decoding
    match guided.WhichOneof("constraint"):
        case "json_schema":
            return JsonSchema(guided.json_schema)
        case "regex":
            return Regex(guided.regex)
        case "ebnf":
            return Grammar(guided.ebnf)
        case "choice" if guided.choice.values:
            return OneOf(tuple(guided.choice.values))
        case "structural_tag":
            return StructuralTag(guided.structural_tag)
        case _:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "guided_decoding must hold a constraint")


def logprobs(engine: Engine, answer: Answer, ids: Sequence[int], length: int) -> dict[str, str]:
    """For the ids of one message; the prompt's are repeated with each. length: of the whole output so far."""
    asked = answer.job.wishes
    if asked.logprobs is None:
        return {}
    start = answer.job.prompt if asked.prompt_logprobs is not None else ()
    own, first = _entries(engine, ids, asked.logprobs), _entries(engine, start, asked.logprobs)
    if own and len(ids) == length and answer.drawn is not None and _less(answer.drawn.logprobs, asked.logprobs):
        own[0] = (0.0, 0, None), []  # the engine that drew the token was not asked, and what stands there is empty
    found: dict[str, object] = {
        "input_token_logprobs": [(None, *entry[1:]) if not at else entry for at, (entry, _) in enumerate(first)],
        "output_token_logprobs": [entry for entry, _ in own],
        "output_token_logprobs_length": length,
    }
    if asked.logprobs:
        found["input_top_logprobs"] = [top if at else None for at, (_, top) in enumerate(first)]
        found["output_top_logprobs"] = [top for _, top in own]
    return {name: json.dumps(value) for name, value in found.items()}


def _less(told: int | None, wanted: int) -> bool:
    return told is None or told < wanted


def _entries(engine: Engine, ids: Sequence[int], most: int) -> list[tuple[_Entry, list[_Entry]]]:
    return [
        ((one.logprob, one.token, None), [(value, token, None) for token, value in one.best])
        for one in engine.likely(ids, most)
    ]
