"""What the answer's text must be, in SGLang's words."""

from __future__ import annotations

from typing import assert_never

from enginehouse._proto import sglang_runtime_v1_pb2 as pb
from enginehouse.domain.constraint import (
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
)

_ANY_OBJECT = '{"type": "object"}'


def constrain(sampling: pb.SamplingParams, constraint: Constraint, *, guided: bool) -> None:
    """guided: the release has `guided_decoding`. Before it there are only two fields; a newer one takes those too, but
    not both ways together.

    Raises ValueError for what the release has no words for.
    """
    if guided:
        sampling.guided_decoding.CopyFrom(_guided(constraint))
        return
    match constraint:
        case JsonSchema(schema):
            sampling.json_schema = schema
        case JsonObject():
            sampling.json_schema = _ANY_OBJECT
        case Regex(pattern):
            sampling.regex = pattern
        case _:
            raise ValueError("not a constraint of this release's")


def _guided(constraint: Constraint) -> pb.GuidedDecoding:
    match constraint:
        case JsonSchema(schema):
            return pb.GuidedDecoding(json_schema=schema)
        case JsonObject():
            return pb.GuidedDecoding(json_schema=_ANY_OBJECT)
        case Regex(pattern):
            return pb.GuidedDecoding(regex=pattern)
        case Grammar(ebnf):
            return pb.GuidedDecoding(ebnf=ebnf)
        case OneOf(choices):
            return pb.GuidedDecoding(choice=pb.ChoiceConstraint(values=choices))
        case StructuralTag(tag):
            return pb.GuidedDecoding(structural_tag=tag)
        case _:
            assert_never(constraint)
