"""Decides which engines can do what a request needs, and says so where none can."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from enginehouse.core.openai.refusals import printable
from enginehouse.domain.engine import Ability, ProtocolName
from enginehouse.domain.errors import InvalidRequest, ModelNotFound
from enginehouse.service.membership import Member

GENERATES: Final = frozenset({Ability.GENERATE})
EMBEDS: Final = frozenset({Ability.EMBED})


class Needs(NamedTuple):
    """What an engine must have to be chosen for a request."""

    abilities: frozenset[Ability]
    lora: str | None = None
    """An adapter that it must have loaded."""


_MOST_NAMED: Final = 20
"""Adapters in a refusal; a fleet may have hundreds."""
_DOING: Final[Mapping[Ability, str]] = {
    Ability.LOGPROBS: "tell log probabilities",
    Ability.PROMPT_LOGPROBS: "tell log probabilities of the prompt",
    Ability.LOGIT_BIAS: "add to the logits of tokens",
    Ability.PRIORITY: "schedule by priority",
    Ability.JSON_SCHEMA: "hold an answer to a JSON schema",
    Ability.JSON_OBJECT: "hold an answer to JSON",
    Ability.REGEX: "hold an answer to a regular expression",
    Ability.GRAMMAR: "hold an answer to a grammar",
    Ability.CHOICE: "hold an answer to a choice of texts",
    Ability.STRUCTURAL_TAG: "hold parts of an answer to a structure",
    Ability.EMBED: "make embeddings",
    Ability.GENERATE: "generate text",
}


class Unable(InvalidRequest):
    """Engines are there, and none can do what the request needs: waiting for another one is not worth it."""

    default_code = "unsupported_value"


def has_adapter(member: Member, needs: Needs) -> bool:
    """Whether an engine has the adapter loaded, where one is needed."""
    return needs.lora is None or needs.lora in member.info.loras


def can_answer(member: Member, needs: Needs) -> bool:
    """Whether an engine can give the answer."""
    return needs.abilities <= member.info.abilities and has_adapter(member, needs)


def can_prefill(member: Member, needs: Needs) -> bool:
    """Whether an engine can compute the prompt for another one that gives the answer.

    SGLang's draws the first token, too: it has to do so as the request wants it.
    """
    abilities = needs.abilities
    if member.info.protocol is not ProtocolName.SGLANG:
        abilities = abilities & GENERATES
    return abilities <= member.info.abilities and has_adapter(member, needs)


def unknown_model(name: str, model: str, adapters: Iterable[str]) -> ModelNotFound:
    """The refusal of a model's name that nobody has: says which there are."""
    names = sorted(adapters)
    shown = ", ".join(map(repr, names[:_MOST_NAMED]))
    if len(names) > _MOST_NAMED:
        shown += f" and {len(names) - _MOST_NAMED} more"
    also = f" with the adapters {shown}" if names else ""
    text = f"The model {printable(name)!r} does not exist. This frontend serves {model!r}{also}."
    return ModelNotFound(text, param="model")


def unable(needs: frozenset[Ability], members: Sequence[Member], params: Mapping[Ability, str]) -> Unable:
    """The refusal: names what no engine can, or all of it where each can be done, but by no engine together."""
    done = frozenset[Ability]().union(*(member.info.abilities for member in members))
    lacking = sorted(needs - done or needs)
    first = lacking[0]
    what = " and ".join(_DOING[one] for one in lacking)
    param = params.get(first) or ("model" if first in GENERATES | EMBEDS else str(first))
    return Unable(f"'{param}' cannot be served: no engine of this model can {what}", param=param)
