"""What requests may ask of an engine, by what its protocol carries, its release, its settings and its kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from enginehouse.domain.engine import Ability, Role

EMBEDDING: Final = frozenset({Ability.EMBED})
"""A model that gives vectors gives nothing else."""

VLLM: Final = frozenset(Ability) - {Ability.EMBED, Ability.PRIORITY}
"""The servicer has no field for a priority."""

VLLM_NATIVE: Final = frozenset(Ability) - {Ability.EMBED}
"""It has no call for embeddings. Whether the engine heeds priorities it does not tell."""

_SGLANG: Final = frozenset({Ability.GENERATE, Ability.LOGPROBS, Ability.PROMPT_LOGPROBS})
_FIRST_CONSTRAINTS: Final = frozenset({Ability.JSON_SCHEMA, Ability.JSON_OBJECT, Ability.REGEX})
_GUIDED: Final = frozenset({*_FIRST_CONSTRAINTS, Ability.CHOICE, Ability.GRAMMAR, Ability.STRUCTURAL_TAG})
_BY_BACKEND: Final[Mapping[object, frozenset[Ability]]] = {
    "none": frozenset(),
    "outlines": frozenset({*_FIRST_CONSTRAINTS, Ability.CHOICE}),
}
"""`--grammar-backend`, where it cannot do all of it."""


def sglang(server: Mapping[str, Any], *, guided: bool, role: Role | None) -> frozenset[Ability]:
    """Of a model that generates. server: what the engine tells of its settings; guided: its release takes
    `guided_decoding` and priorities.

    The two engines of a hand-over have no log probabilities of the prompt: one computes it, the other answers.
    """
    found = _SGLANG | (_GUIDED if guided else _FIRST_CONSTRAINTS) & _BY_BACKEND.get(
        server.get("grammar_backend"), _GUIDED
    )
    if role in (Role.PREFILL, Role.DECODE):
        found -= {Ability.PROMPT_LOGPROBS}
    if guided and server.get("enable_priority_scheduling") is True:
        found |= {Ability.PRIORITY}
    return found
