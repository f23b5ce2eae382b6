"""Decides what the engines of one fleet must agree on, and says in words where an engine does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from enginehouse.domain.engine import EngineInfo

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The one model that a fleet serves. None where no member says."""

    model: str
    """The name that clients call it by."""
    aliases: tuple[str, ...] = ()
    context_length: int | None = None
    max_prompt_tokens: int | None = None
    """The least of what the members say."""
    block_size: int | None = None
    vocab_size: int | None = None
    tokenizer_digest: str | None = None
    tokenizer_path: str | None = None
    model_path: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None

    def answers_to(self, name: str) -> bool:
        """Whether a client may call the model by this name."""
        return name == self.model or name in self.aliases


def disagreement(card: ModelCard, info: EngineInfo) -> str | None:
    """Why an engine does not fit the card, with both values; None if it does.

    A value that one side does not know is no disagreement. Paths are never compared: the same model lies at different
    places on different machines, and its content is what the tokenizer digest stands for.
    """
    if card.model not in (info.model, *info.aliases):
        return f"serves model {info.model!r}, but this fleet serves {card.model!r}"
    for what, theirs, ours in (
        ("tokenizer", _short(info.tokenizer_digest), _short(card.tokenizer_digest)),
        ("context length", info.context_length, card.context_length),
        ("KV block size", info.block_size, card.block_size),
    ):
        if theirs is not None and ours is not None and theirs != ours:
            return f"{what} {theirs} differs from the fleet's {ours}"
    return None


def card_of(name: str, infos: Sequence[EngineInfo], before: ModelCard | None = None) -> ModelCard:
    """The card of these members, oldest first: each value is that of the first member that says one.

    before: the card so far, if members outlive it. What engines are never refused for stays as it was, so that a
    member's leaving does not make another card.
    """
    card = before or ModelCard(name, tuple(alias for alias in (infos[0].model, *infos[0].aliases) if alias != name))
    card = replace(card, context_length=None, max_prompt_tokens=None, block_size=None, tokenizer_digest=None)
    for info in infos:
        card = joined(card, info)
    return card


def joined(card: ModelCard, info: EngineInfo) -> ModelCard:
    """The card with one more member, the youngest, that agrees with it."""
    limits = [limit for limit in (card.max_prompt_tokens, info.max_prompt_tokens) if limit is not None]
    return replace(
        card,
        context_length=_first((card.context_length, info.context_length)),
        max_prompt_tokens=min(limits, default=None),
        block_size=_first((card.block_size, info.block_size)),
        tokenizer_digest=_first((card.tokenizer_digest, info.tokenizer_digest)),
        vocab_size=card.vocab_size or info.vocab_size,
        tokenizer_path=card.tokenizer_path or info.tokenizer_path,
        model_path=card.model_path or info.model_path,
        eos_token_ids=card.eos_token_ids or info.eos_token_ids,
        tool_parser=card.tool_parser or info.tool_parser,
        reasoning_parser=card.reasoning_parser or info.reasoning_parser,
    )


def choose_seed(name: str | None, infos: Sequence[EngineInfo]) -> int | None:
    """Which of several waiting engines (oldest first) gives an empty fleet its card; None if none may.

    The one that most others agree with, then the oldest. name: what the operator said the model is called; an engine
    that does not answer to it never seeds.
    """
    best: tuple[int, int] | None = None
    for index, info in enumerate(infos):
        card = card_of(name or info.model, [info])
        if disagreement(card, info) is not None:
            continue
        friends = sum(disagreement(card, other) is None for other in infos)
        if best is None or friends > best[0]:
            best = (friends, index)
    return None if best is None else best[1]


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


def _short(digest: str | None) -> str | None:
    return None if digest is None else digest[:12]
