"""Decides which engines can do what a request needs, and says so where none can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from enginehouse.domain.engine import Ability, ProtocolName
from enginehouse.domain.errors import InvalidRequest
from enginehouse.service.membership import Member

GENERATES: Final = frozenset({Ability.GENERATE})
EMBEDS: Final = frozenset({Ability.EMBED})

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


def can_answer(member: Member, needs: frozenset[Ability]) -> bool:
    """Whether an engine can give the answer."""
    return needs <= member.info.abilities


def can_prefill(member: Member, needs: frozenset[Ability]) -> bool:
    """Whether an engine can compute the prompt for another one that gives the answer.

    SGLang's draws the first token, too: it has to do so as the request wants it.
    """
    if member.info.protocol is not ProtocolName.SGLANG:
        needs = needs & GENERATES
    return needs <= member.info.abilities


def unable(needs: frozenset[Ability], members: Sequence[Member], params: Mapping[Ability, str]) -> Unable:
    """The refusal: names what no engine can, or all of it where each can be done, but by no engine together."""
    done = frozenset[Ability]().union(*(member.info.abilities for member in members))
    lacking = sorted(needs - done or needs)
    first = lacking[0]
    what = " and ".join(_DOING[one] for one in lacking)
    param = params.get(first) or ("model" if first in GENERATES | EMBEDS else str(first))
    return Unable(f"'{param}' cannot be served: no engine of this model can {what}", param=param)
