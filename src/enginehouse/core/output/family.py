"""How one family of models writes its answers, and the driver that reads any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import Content, OutputParser, ParserInput, Reasoning
from enginehouse.core.output.reader import GeneratorParser, Reader, Reading


@dataclass(frozen=True)
class Thinking:
    """Reasoning between two marks, at the beginning of an answer."""

    open: str
    close: str
    inside: bool = False
    """The answer starts inside of it whatever the prompt ends with, until the closing mark."""


@dataclass(frozen=True)
class ToolFormat:
    """Calls that an opening mark announces."""

    marks: Marks
    read: Callable[[Reader, str, ParserInput], Reading[None]]
    """Reads on from behind the mark (which it is given) to the end of the call or calls; says what it found."""
    special: frozenset[str] = frozenset()
    """Tokens with a meaning in it: a tokenizer that hides special tokens has to show these."""


@dataclass(frozen=True)
class Family:
    """What `--tool-parser` and `--reasoning-parser` stand for. Either may be None: that part passes as content."""

    thinking: Thinking | None = None
    tools: ToolFormat | None = None
    whole: Callable[[Reader, ParserInput], Reading[None]] | None = None
    """Reads all of an answer, where its form is no thinking followed by content with calls in it."""
    special: frozenset[str] = field(default_factory=frozenset)
    """Tokens with a meaning in `whole`."""

    @property
    def shown(self) -> frozenset[str]:
        """Special tokens that have to come through as text."""
        thinking = {self.thinking.open, self.thinking.close} if self.thinking else set()
        return self.special | thinking | (self.tools.special if self.tools else frozenset())

    def parser(self, given: ParserInput) -> OutputParser:
        """For one answer."""
        read = self.whole or partial(_read, self)
        return GeneratorParser(lambda reader: read(reader, given))


def _read(family: Family, reader: Reader, given: ParserInput) -> Reading[None]:
    thinking = family.thinking if given.reasoning else None
    tools = family.tools if given.tools else None
    calls = tools.marks if tools is not None else Marks()
    if thinking is not None:
        inside = thinking.inside or given.prompt_tail.rstrip().endswith(thinking.open)
        if not inside:
            space = yield from reader.space()
            inside = (yield from reader.next_is(thinking.open)) is not None
            if not inside:
                reader.say(space)
        if inside:
            mark = yield from reader.until(Marks(thinking.close) | calls, Reasoning)
            if tools is not None and mark is not None and mark != thinking.close:
                yield from tools.read(reader, mark, given)
    while (mark := (yield from reader.until(calls, Content))) is not None:
        assert tools is not None
        yield from tools.read(reader, mark, given)
