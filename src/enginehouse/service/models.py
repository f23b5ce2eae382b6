"""The served model as the edge sees it: the fleet's model card together with the tokenizer that belongs to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog

from enginehouse.core.membership.card import ModelCard
from enginehouse.core.output.family import Family
from enginehouse.core.output.selection import FormatSettings, Selection, select
from enginehouse.domain.engine import Role
from enginehouse.domain.errors import EngineError, NoEngine
from enginehouse.ports import Tokenizer
from enginehouse.service.able import unknown_model
from enginehouse.service.fleet import Fleet
from enginehouse.service.membership import Member, RuntimeConfig
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
    selected: Selection = field(default_factory=Selection)
    """The formats in which the model writes thinking and calls, and who has named them."""
    lora: str | None = None
    """The adapter that was asked for; None: the model itself."""

    @property
    def formats(self) -> Family:
        """In which the model writes thinking and calls."""
        return self.selected.formats

    @property
    def name(self) -> str:
        """What answers are said to be of."""
        return self.lora or self.card.model


class Models:
    """Follows the fleet's model card and keeps the tokenizer that fits it.

    The model stays known when its last engine goes: its requests then get 503, not 404. When engines of another
    generation take over, nothing is encoded for them with the old one's tokenizer. Its adapters are those that its
    engines have loaded, and while there is no engine those of the last there were.
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
        self._adapters: frozenset[str] = frozenset()
        fleet.runtime_configs.listen(self._engines_changed)

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

    @property
    def adapters(self) -> list[str]:
        """Names of the adapters that may be asked for in place of the model, in order."""
        card = self._card()
        return sorted(name for name in self._adapters if card is None or not card.answers_to(name))

    def fits(self, model: ServedModel) -> bool:
        """Whether what was encoded with this model's tokenizer may be sent to the engines of now."""
        card = self._fleet.card.get()
        return card is None or _serves(model, card)

    async def find(self, name: str) -> ServedModel:
        """The model of this name, or that with the adapter of this name.

        Raises ModelNotFound, or NoEngine while it is known but cannot be served yet.
        """
        known = self._known()
        if known is None:
            raise NoEngine("no engine has joined yet", retry_after=2)
        is_base = name == known or (self._card() or ModelCard(known)).answers_to(name)
        if not is_base and name not in self._adapters:
            raise unknown_model(name, known, self.adapters)
        try:
            async with asyncio.timeout(self._patience):
                while (model := self.current) is None:
                    await self._loaded.changed(self._loaded.version)
                return model if is_base else replace(model, lora=name)
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

    def _engines_changed(self, configs: tuple[RuntimeConfig, ...]) -> None:
        if configs:
            answering = [config for config in configs if config.role is not Role.PREFILL]
            self._adapters = frozenset(name for config in answering for name in config.loras)

    async def _take(self, card: ModelCard) -> None:
        before = self._loaded.get()
        if before is not None and _serves(before, card):
            told = before.card.tool_parser, before.card.reasoning_parser
            same = told == (card.tool_parser, card.reasoning_parser)
            selected = before.selected if same else self._select(card, before.tokenizer)
            self._loaded.publish(replace(before, card=card, selected=selected))
            if selected != before.selected:
                log.info("parsers changed", model=card.model, **_parsers(selected))
            return
        members = self._fleet.serving.get()
        member = members[self._tries % len(members)] if members else None
        self._tries += 1  # another engine next time: this one's may be what is broken
        tokenizer = await self._load(card, member)
        if card.tokenizer_digest not in (None, tokenizer.digest):
            log.warning("tokenizer differs from the engines' own", ours=tokenizer.digest, theirs=card.tokenizer_digest)
        self._problem = None
        selected = self._select(card, tokenizer)
        self._loaded.publish(ServedModel(card, tokenizer, int(time.time()), selected))
        log.info(
            "model ready",
            model=card.model,
            context_length=card.context_length,
            vocabulary=tokenizer.vocab_size,
            **_parsers(selected),
        )

    def _select(self, card: ModelCard, tokenizer: Tokenizer) -> Selection:
        selected = select(self._formats, card.tool_parser, card.reasoning_parser, tokenizer.chat_template)
        for sentence in selected.unknown:
            log.warning("parser unknown, looking at the chat template", reason=sentence)
        return selected


def _parsers(selected: Selection) -> dict[str, str]:
    """For the log: what was chosen is seen nowhere else until a call is in the content."""
    return {"tool_parser": str(selected.tools), "reasoning_parser": str(selected.reasoning)}


def _serves(model: ServedModel, card: ModelCard) -> bool:
    """Whether this model's tokenizer, which was found for its card, is the one for this card."""
    old = model.card
    if card.tokenizer_digest is not None:
        return card.tokenizer_digest in (old.tokenizer_digest, model.tokenizer.digest)
    return (card.model, card.tokenizer_path, card.model_path) == (old.model, old.tokenizer_path, old.model_path)
