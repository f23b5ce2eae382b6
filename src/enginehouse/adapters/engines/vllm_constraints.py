"""What the answer's text must be, in the words of vLLM's two protocols.

Either way from the first token on: an engine with a reasoning parser would else leave the thinking free, and only the
operator knows whether it has one.
"""

from __future__ import annotations

from typing import Any, assert_never

from smg_grpc_proto.generated import vllm_engine_pb2 as servicer

from enginehouse._proto import vllm_native_pb2 as native
from enginehouse.domain.constraint import (
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
)


def constrain(sampling: Any, constraint: Constraint) -> None:
    """sampling: SamplingParams of the servicer, whose messages have no types."""
    sampling.grammar_from_first_token = True
    match constraint:
        case JsonSchema(schema):
            sampling.json_schema = schema
        case JsonObject():
            sampling.json_object = True
        case Regex(pattern):
            sampling.regex = pattern
        case Grammar(ebnf):
            sampling.grammar = ebnf
        case OneOf(choices):
            sampling.choice.CopyFrom(servicer.ChoiceConstraint(choices=choices))
        case StructuralTag(tag):
            sampling.structural_tag = tag
        case _:
            assert_never(constraint)


def constrain_native(message: native.GenerateRequest, constraint: Constraint) -> None:
    """The same for the native protocol."""
    message.reasoning.reasoning_ended = True
    decoding = message.decoding
    match constraint:
        case JsonSchema(schema):
            decoding.json = schema
        case JsonObject():
            decoding.json_object = True
        case Regex(pattern):
            decoding.regex = pattern
        case Grammar(ebnf):
            decoding.grammar = ebnf
        case OneOf(choices):
            decoding.choice.CopyFrom(native.Choices(choices=choices))
        case StructuralTag(tag):
            decoding.structural_tag = tag
        case _:
            assert_never(constraint)
