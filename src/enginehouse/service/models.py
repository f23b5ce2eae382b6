"""The served model as the edge sees it: the fleet's model card together with the tokenizer that belongs to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from enginehouse.core.membership.card import ModelCard
from enginehouse.domain.errors import EngineError, ModelNotFound, NoEngine
from enginehouse.ports import Tokenizer
from enginehouse.service.fleet import Fleet
from enginehouse.service.membership import Member

log = structlog.get_logger("enginehouse.models")

LoadTokenizer = Callable[[ModelCard, Member | None], Awaitable[Tokenizer]]
"""Finds and loads the tokenizer for a card; the member may hand out files. Raises TokenizerUnavailable."""


class TokenizerUnavailable(Exception):
    """No tokenizer for a model; the text says what was tried and what would help."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model with everything that the edge needs of it."""

    card: ModelCard
    tokenizer: Tokenizer
    created: int
    """Unix seconds."""


class Models:
    """Follows the fleet's model card and keeps the tokenizer that fits it.

    The model stays known when its last engine goes: its requests then get 503, not 404.
    """

    def __init__(self, fleet: Fleet, load: LoadTokenizer, *, name: str | None, retry_after: float = 5.0) -> None:
        self._fleet = fleet
        self._load = load
        self._name = name
        self._retry_after = retry_after
        self.current: ServedModel | None = None
        self.problem: str | None = None
        """Why the model cannot be served though engines are there."""

    def find(self, name: str) -> ServedModel:
        """The model of this name. Raises ModelNotFound, or NoEngine while it is known but cannot be served yet."""
        current = self.current
        if current is not None:
            if current.card.answers_to(name):
                return current
            raise ModelNotFound(
                f"The model {name!r} does not exist. This frontend serves {current.card.model!r}.", param="model"
            )
        if self._name is not None and name != self._name:
            raise ModelNotFound(
                f"The model {name!r} does not exist. This frontend serves {self._name!r}.", param="model"
            )
        raise NoEngine(self.problem or "no engine has joined yet", retry_after=2)

    async def run(self) -> None:
        """Until cancelled: load the tokenizer of each new card, trying again while that fails."""
        while True:
            card_version = self._fleet.card.version
            card = self._fleet.card.get()
            wait: float | None = None
            if card is not None and not self._fits(card):
                try:
                    await self._take(card)
                except (TokenizerUnavailable, EngineError) as error:
                    self.problem = f"the tokenizer of {card.model!r} cannot be loaded: {error}"
                    log.warning("tokenizer unavailable", model=card.model, reason=str(error))
                    wait = self._retry_after
            try:
                async with asyncio.timeout(wait):
                    await self._fleet.card.changed(card_version)
            except TimeoutError:
                continue

    def _fits(self, card: ModelCard) -> bool:
        return self.current is not None and self.current.card == card

    async def _take(self, card: ModelCard) -> None:
        before = self.current
        if before is not None and _serves(before, card):
            self.current = replace(before, card=card)
            return
        members = self._fleet.serving.get()
        tokenizer = await self._load(card, members[0] if members else None)
        self.current = ServedModel(card, tokenizer, int(time.time()))
        self.problem = None
        log.info("model ready", model=card.model, context_length=card.context_length, vocabulary=tokenizer.vocab_size)


def _serves(before: ServedModel, card: ModelCard) -> bool:
    """Whether the tokenizer that we have is the one of this card."""
    if card.tokenizer_digest is not None:
        return card.tokenizer_digest == before.tokenizer.digest
    old = before.card
    return (card.model, card.tokenizer_path, card.model_path) == (old.model, old.tokenizer_path, old.model_path)
