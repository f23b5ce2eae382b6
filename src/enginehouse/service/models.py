"""The served model as the edge sees it: the fleet's model card together with the tokenizer that belongs to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog

from enginehouse.core.membership.card import ModelCard
from enginehouse.core.openai.refusals import printable
from enginehouse.core.output.family import Family
from enginehouse.core.output.selection import FormatSettings, select
from enginehouse.domain.errors import EngineError, ModelNotFound, NoEngine
from enginehouse.ports import Tokenizer
from enginehouse.service.fleet import Fleet
from enginehouse.service.membership import Member
from enginehouse.service.watch import Watch

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
    formats: Family = field(default_factory=Family)
    """In which the model writes thinking and calls."""


class Models:
    """Follows the fleet's model card and keeps the tokenizer that fits it.

    The model stays known when its last engine goes: its requests then get 503, not 404. When engines of another
    generation take over, nothing is encoded for them with the old one's tokenizer.
    """

    def __init__(
        self,
        fleet: Fleet,
        load: LoadTokenizer,
        *,
        name: str | None,
        patience: float = 1.0,
        retry_after: float = 5.0,
        formats: FormatSettings | None = None,
    ) -> None:
        """patience: seconds that a request waits for a tokenizer; retry_after: between two tries to load one."""
        self._fleet = fleet
        self._load = load
        self._name = name
        self._patience = patience
        self._retry_after = retry_after
        self._formats = formats or FormatSettings()
        self._loaded: Watch[ServedModel | None] = Watch(None)
        self._problem: str | None = None
        self._tries = 0

    @property
    def current(self) -> ServedModel | None:
        """The model, if its tokenizer is the one that the engines of now need."""
        model, card = self._loaded.get(), self._fleet.card.get()
        if model is None or card is None or model.card == card:
            return model
        return replace(model, card=card) if _serves(model, card) else None

    @property
    def problem(self) -> str | None:
        """Why the model cannot be served though engines are there."""
        return None if self.current is not None else self._problem

    def fits(self, model: ServedModel) -> bool:
        """Whether what was encoded with this model's tokenizer may be sent to the engines of now."""
        card = self._fleet.card.get()
        return card is None or _serves(model, card)

    async def find(self, name: str) -> ServedModel:
        """The model of this name. Raises ModelNotFound, or NoEngine while it is known but cannot be served yet."""
        known = self._known()
        if known is None:
            raise NoEngine("no engine has joined yet", retry_after=2)
        if name != known and not (self._card() or ModelCard(known)).answers_to(name):
            raise ModelNotFound(
                f"The model {printable(name)!r} does not exist. This frontend serves {known!r}.", param="model"
            )
        try:
            async with asyncio.timeout(self._patience):
                while (model := self.current) is None:
                    await self._loaded.changed(self._loaded.version)
                return model
        except TimeoutError:
            raise NoEngine(f"the tokenizer of {known!r} is not there yet", retry_after=2) from None

    async def run(self) -> None:
        """Until cancelled: load the tokenizer of each new card, trying again while that fails."""
        while True:
            version = self._fleet.card.version
            card = self._fleet.card.get()
            wait: float | None = None
            if card is not None:
                try:
                    await self._take(card)
                except (TokenizerUnavailable, EngineError) as error:
                    self._problem = f"the tokenizer of {card.model!r} cannot be loaded: {error}"
                    log.warning("tokenizer unavailable", model=card.model, reason=str(error))
                    wait = self._retry_after
            try:
                async with asyncio.timeout(wait):
                    await self._fleet.card.changed(version)
            except TimeoutError:
                continue

    def _card(self) -> ModelCard | None:
        """That of the engines of now, else of the last there were."""
        loaded = self._loaded.get()
        return self._fleet.card.get() or (loaded.card if loaded else None)

    def _known(self) -> str | None:
        card = self._card()
        return card.model if card is not None else self._name

    async def _take(self, card: ModelCard) -> None:
        before = self._loaded.get()
        if before is not None and _serves(before, card):
            told = before.card.tool_parser, before.card.reasoning_parser
            same = told == (card.tool_parser, card.reasoning_parser)
            formats = before.formats if same else self._select(card, before.tokenizer)
            self._loaded.publish(replace(before, card=card, formats=formats))
            return
        members = self._fleet.serving.get()
        member = members[self._tries % len(members)] if members else None
        self._tries += 1  # another engine next time: this one's may be what is broken
        tokenizer = await self._load(card, member)
        if card.tokenizer_digest not in (None, tokenizer.digest):
            log.warning("tokenizer differs from the engines' own", ours=tokenizer.digest, theirs=card.tokenizer_digest)
        self._problem = None
        self._loaded.publish(ServedModel(card, tokenizer, int(time.time()), self._select(card, tokenizer)))
        log.info("model ready", model=card.model, context_length=card.context_length, vocabulary=tokenizer.vocab_size)

    def _select(self, card: ModelCard, tokenizer: Tokenizer) -> Family:
        formats, unknown = select(self._formats, card.tool_parser, card.reasoning_parser, tokenizer.chat_template)
        for sentence in unknown:
            log.warning("parser unknown, looking at the chat template", reason=sentence)
        return formats


def _serves(model: ServedModel, card: ModelCard) -> bool:
    """Whether this model's tokenizer, which was found for its card, is the one for this card."""
    old = model.card
    if card.tokenizer_digest is not None:
        return card.tokenizer_digest in (old.tokenizer_digest, model.tokenizer.digest)
    return (card.model, card.tokenizer_path, card.model_path) == (old.model, old.tokenizer_path, old.model_path)
