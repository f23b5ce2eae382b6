"""How one family of models writes its answers, and the driver that reads any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import Content, OutputParser, ParserInput, Reasoning
from enginehouse.core.output.reader import GeneratorParser, Reader, Reading


@dataclass(frozen=True)
class Thinking:
    """Reasoning between two marks, at the beginning of an answer. White space around the marks belongs to them."""

    open: str
    close: str
    inside: bool = False
    """The answer starts inside of it, until the closing mark, unless the prompt ends with that."""
    alone: bool = False
    """Only the closing mark ends it: what looks like a call before that is thought, and none."""
    kept: bool = False
    """It stays in the content, marks and all: also the opening one that the prompt may have taken."""
    other: Thinking | None = None
    """Another pair of marks that answers may have in place of these."""
    special: frozenset[str] = frozenset()
    """Tokens with a meaning in it, where the marks are not tokens themselves."""

    @cached_property
    def opens(self) -> tuple[str, ...]:
        return self.open, *(self.other.opens if self.other else ())

    @cached_property
    def closes(self) -> tuple[str, ...]:
        return self.close, *(self.other.closes if self.other else ())


@dataclass(frozen=True)
class ToolFormat:
    """Calls that an opening mark announces."""

    marks: Marks
    read: Callable[[Reader, str, ParserInput], Reading[bool]]
    """Reads on from behind the mark (which it is given) to the end of the call or calls, and says them with
    `reader.call`. False: what it read since the last call is none. That passes as text, or goes with a cut answer."""
    special: frozenset[str] = frozenset()
    """Tokens with a meaning in it: a tokenizer that hides special tokens has to show these."""
    spaced: bool = False
    """White space before a call, and after the last one, belongs to the format."""
    bare: Callable[[Reader, ParserInput], Reading[bool]] | None = None
    """As `read`, without a mark: a call may stand where the content begins."""
    id_length: int | None = None
    """Its templates take ids of so many letters and digits, and no others. None: any."""


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
        thinking = {*self.thinking.opens, *self.thinking.closes, *self.thinking.special} if self.thinking else set()
        return self.special | thinking | (self.tools.special if self.tools else frozenset())

    def parser(self, given: ParserInput) -> OutputParser:
        """For one answer."""
        read = self.whole or self._read
        return GeneratorParser(lambda reader: read(reader, given))

    def without(self, *, tools: bool = False, reasoning: bool = False) -> Family:
        """The same where calls, or thinking, are not to be told apart: for a `whole`, which reads both."""
        whole = self.whole
        if whole is None or not (tools or reasoning):
            return self

        def read(reader: Reader, given: ParserInput) -> Reading[None]:
            tools_left, reasoning_left = () if tools else given.tools, given.reasoning and not reasoning
            return whole(reader, replace(given, tools=tools_left, reasoning=reasoning_left))

        return replace(self, whole=read)

    @cached_property
    def _closing(self) -> tuple[Marks, Marks]:
        """What thinking may end with where tools were not, and were, offered: a call does it too."""
        close = Marks(*self.thinking.closes) if self.thinking else Marks()
        alone = self.thinking is not None and self.thinking.alone
        return close, close | self.tools.marks if self.tools and not alone else close

    def _read(self, reader: Reader, given: ParserInput) -> Reading[None]:
        tools = self.tools if given.tools else None
        calls, spaced = (tools.marks, tools.spaced) if tools is not None else (_NONE, False)
        inside, lead = False, ""
        if self.thinking is not None and given.reasoning:
            if self.thinking.kept:
                reader.say(_opened(self.thinking, given.prompt_tail))
            else:
                inside, lead = yield from _begin(self.thinking, reader, given)
        reader.kind = Reasoning if inside else Content
        ends = self._closing[tools is not None] if inside else calls
        if tools is not None and not inside:
            lead = yield from _bare(tools, lead, reader, given)
        while (mark := (yield from reader.until(ends, trim=inside or spaced, lead=lead))) is not None:
            lead = ""
            if tools is not None and mark in calls.all:
                if (yield from read_calls(tools, mark, reader, given)) and spaced:
                    lead = yield from reader.space()
                    if reader.done:
                        return
            else:
                yield from reader.space()
                reader.kind, inside, ends = Content, False, calls
                if tools is not None:
                    lead = yield from _bare(tools, "", reader, given)


_NONE = Marks()


def _begin(thinking: Thinking, reader: Reader, given: ParserInput) -> Reading[tuple[bool, str]]:
    """(whether the answer begins inside of thinking, white space that comes before content)."""
    tail = given.prompt_tail.rstrip()
    space = yield from reader.space()
    mark = yield from reader.next_is(*thinking.opens, *thinking.closes)
    if mark is not None:
        yield from reader.space()
        return mark in thinking.opens, ""
    if given.begun is not None:
        return _unclosed(thinking, given.begun), space
    if tail.endswith(thinking.closes):
        return False, ""
    inside = thinking.inside or tail.endswith(thinking.opens)
    return inside, "" if inside else space


def _unclosed(thinking: Thinking, text: str) -> bool:
    """The text ends in the middle of a thought."""
    opened, closed = (max(map(text.rfind, marks)) for marks in (thinking.opens, thinking.closes))
    return opened > closed


def _opened(thinking: Thinking, prompt: str) -> str:
    """The opening mark at the end of the prompt, with the white space that the template put behind it."""
    bare = prompt.rstrip()
    return prompt[len(bare) - len(thinking.open) :] if bare.endswith(thinking.open) else ""


def _bare(tools: ToolFormat, lead: str, reader: Reader, given: ParserInput) -> Reading[str]:
    """A call without a mark, where the content begins. What there is of it before the text that is left."""
    if tools.bare is None:
        return lead
    reader.record(lead)
    called = yield from tools.bare(reader, given)
    text = reader.recorded()
    return "" if called or reader.cut else text


def read_calls(tools: ToolFormat, mark: str, reader: Reader, given: ParserInput) -> Reading[bool]:
    """Whether there were any. What looked like one is text; cut in the middle, it is nothing, as is a mark alone."""
    reader.record(reader.trimmed + mark)
    called = yield from tools.read(reader, mark, given)
    text = reader.recorded()
    if not (called or reader.cut or (reader.done and text.strip() == mark)):
        reader.say(text)
    return called
