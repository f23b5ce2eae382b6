"""What a request needs of an engine that not every engine can, and which of its parameters asks for that."""

from __future__ import annotations

from typing import Final, assert_never

from enginehouse.core.openai.requests import CompletionRequest, Request
from enginehouse.domain.constraint import (
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
    StructuralTag,
)
from enginehouse.domain.engine import Ability

_PLAIN: Final = frozenset({Ability.GENERATE})
_CONSTRAINED: Final = frozenset(
    {
        Ability.JSON_SCHEMA,
        Ability.JSON_OBJECT,
        Ability.REGEX,
        Ability.GRAMMAR,
        Ability.CHOICE,
        Ability.STRUCTURAL_TAG,
    }
)


def needs(request: Request) -> frozenset[Ability]:
    """Abilities without any of which an engine cannot answer this request as it stands."""
    sampling = request.sampling
    wanted: set[Ability] = set()
    if sampling.logprobs is not None:
        wanted.add(Ability.LOGPROBS)
    if sampling.prompt_logprobs is not None:
        wanted.add(Ability.PROMPT_LOGPROBS)
    if sampling.logit_bias:
        wanted.add(Ability.LOGIT_BIAS)
    if sampling.priority:
        wanted.add(Ability.PRIORITY)
    if sampling.constraint is not None:
        wanted.add(ability_of(sampling.constraint))
    return _PLAIN | wanted if wanted else _PLAIN


def asks_for(request: Request, ability: Ability) -> str:
    """The parameter that makes an ability needed, to name in an error."""
    if ability in _CONSTRAINED:
        return request.constraint_param
    if ability is Ability.PROMPT_LOGPROBS and isinstance(request, CompletionRequest) and request.echo:
        return "echo"
    return "model" if ability is Ability.GENERATE else ability.value


def ability_of(constraint: Constraint) -> Ability:
    """What an engine must be able to, to hold an answer to it."""
    match constraint:
        case JsonSchema():
            return Ability.JSON_SCHEMA
        case JsonObject():
            return Ability.JSON_OBJECT
        case Regex():
            return Ability.REGEX
        case Grammar():
            return Ability.GRAMMAR
        case OneOf():
            return Ability.CHOICE
        case StructuralTag():
            return Ability.STRUCTURAL_TAG
    assert_never(constraint)
