"""Whatever a model writes and however it is cut into pieces: the same comes out, calls are valid, no text is lost."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import pytest
from canitoolcall.checks import decode_arguments
from canitoolcall.fixtures import Fixture

from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, ParserInput, Piece, Reasoning, Tool, ToolCall, joined
from enginehouse.core.output.registry import NONE, REASONING, TOOLS, formats
from tests.unit.core.output.readings import pushed
from tests.unit.core.output.replay import FIXTURES, parsers_of
from tests.unit.core.output.written import CALLS

OUTPUTS = 10_000
WORDS = (
    "The ",
    "weather",
    " in Zürich",
    " 東京 ",
    "🌦️",
    "a<b",
    " x > y",
    '"',
    "'",
    "\\",
    "\n",
    "\n\n",
    " ",
    "  \t",
    "{",
    "}",
    "[",
    "]",
)
JSON = (
    '{"name": "f", "arguments": {"a": 1}}',
    '{"a": [1, "x"]}',
    "{}",
    "null",
    '"\\ud800"',
    "NaN",
    "1e999",
    '{"a": 1, "a": 2}',
)
TOOL = Tool("f", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}}})


def _names() -> Iterator[tuple[str, str]]:
    """Each format once, with the thinking that its models have, and with another's and none."""
    seen: set[tuple[int, int]] = set()
    pairs = [parsers_of(fixture.reference_model) for fixture in FIXTURES]
    pairs += [(tools, "qwen3") for tools in TOOLS] + [("hermes", thinking) for thinking in REASONING] + [(NONE, NONE)]
    for tools, thinking in pairs:
        family = formats(tools, thinking)
        key = (id(family.whole), 0) if family.whole else (id(TOOLS.get(tools)), id(REASONING.get(thinking)))
        if key not in seen:
            seen.add(key)
            yield tools, thinking


NAMES = tuple(_names())
IN_CONTENT = tuple(names for names in NAMES if formats(*names).whole is None)
"""Those whose calls stand in the content; with the others, all of an answer stands in marks."""


@lru_cache
def _samples(tools: str) -> tuple[str, ...]:
    """What models with this parser have written, and a plain call."""
    written = [fixture.raw_output for fixture in _fixtures(tools) if len(fixture.raw_output) < 600]
    calls = [call("x") for name, call in CALLS.items() if TOOLS[name] is TOOLS.get(tools)]
    return (*written, *calls, "plain")


@lru_cache
def _offered(tools: str) -> tuple[Tool, ...]:
    """Some formats have calls only of tools that were offered."""
    names = {tool["function"]["name"] for fixture in _fixtures(tools) for tool in fixture.tools}
    return TOOL, *(Tool(name, {}) for name in sorted(names))


def _fixtures(tools: str) -> list[Fixture]:
    return [fixture for fixture in FIXTURES if TOOLS.get(parsers_of(fixture.reference_model)[0]) is TOOLS.get(tools)]


@lru_cache
def _marks(tools: str, thinking: str) -> tuple[str, ...]:
    """All that has a meaning to these formats, as far as the conformance suite or they themselves say so."""
    family = formats(tools, thinking)
    found = {*family.shown, *(family.tools.marks.all if family.tools else ())}
    tags = re.compile(r"<[^<>\s]{1,30}[=>]|\[/?[A-Z_]+\]|[\[{(]\w+\(|</?[｜|][^<>]{1,30}>")
    found |= {tag for sample in _samples(tools) for tag in tags.findall(sample)}
    return tuple(sorted(found)) or ("<none>",)


def _output(rng: random.Random, tools: str, thinking: str) -> str:
    parts: list[str] = []
    marks, samples = _marks(tools, thinking), _samples(tools)
    for _ in range(rng.randint(1, 9)):
        kind = rng.random()
        if kind < 0.3:
            parts.append(rng.choice(WORDS))
        elif kind < 0.5:
            parts.append(rng.choice(marks))
        elif kind < 0.6:
            mark = rng.choice(marks)
            parts.append(
                mark[: rng.randint(1, len(mark))] if rng.random() < 0.7 else mark[rng.randint(0, len(mark) - 1) :]
            )
        elif kind < 0.7:
            parts.append(rng.choice(JSON))
        else:
            sample = rng.choice(samples)
            begin = 0 if rng.random() < 0.6 else rng.randint(0, len(sample))
            parts.append(sample[begin:] if rng.random() < 0.6 else sample[begin : rng.randint(begin, len(sample))])
    return "".join(parts)


def _cut(rng: random.Random, text: str, longest: int) -> list[str]:
    pieces, at = [], 0
    while at < len(text):
        size = rng.randint(1, longest)
        pieces.append(text[at : at + size])
        at += size
    return pieces


def read(family: Family, given: ParserInput, pieces: Sequence[str], *, cut: bool) -> tuple[Piece, ...]:
    parser = family.parser(given)
    out = [piece for text in pieces for piece in pushed(parser, text)]
    return joined([*out, *parser.finish(cut=cut)])


def _tails(thinking: str) -> tuple[str, ...]:
    found = REASONING.get(thinking)
    if found is None:
        return ("",)
    if isinstance(found, Family):
        return ("", "<|start|>assistant", "<|open|>think<|sep|>")
    return "", f"ai\n{found.open}\n", f"{found.open}\n\n{found.close}\n\n"


@pytest.mark.parametrize(("tools", "thinking"), NAMES, ids=map("-".join, NAMES))
def test_o5_pieces_of_any_output_give_what_the_whole_gives(tools: str, thinking: str) -> None:
    family = formats(tools, thinking)
    rng = random.Random(f"{tools} {thinking}")
    calls = 0
    for _ in range(OUTPUTS // len(NAMES) + 1):
        text, cut = _output(rng, tools, thinking), rng.random() < 0.4
        given = ParserInput(
            _offered(tools) if rng.random() < 0.9 else (), rng.choice(_tails(thinking)), rng.random() < 0.9
        )
        whole = read(family, given, [text], cut=cut)
        for longest in (1, rng.choice((2, 4, 20))):
            pieces = _cut(rng, text, longest)
            assert read(family, given, pieces, cut=cut) == whole, (given.prompt_tail, cut, text, pieces)
        for piece in whole:
            if isinstance(piece, ToolCall):
                calls += 1
                assert given.tools
                assert piece.name
                assert isinstance(decode_arguments(piece.arguments), dict), piece
                json.dumps([piece.name, piece.arguments], ensure_ascii=False).encode()
            else:
                assert piece.text
    assert tools == NONE or calls > 20  # or it tests nothing


@pytest.mark.parametrize(("tools", "thinking"), NAMES, ids=map("-".join, NAMES))
def test_text_without_marks_stays_as_it_is(tools: str, thinking: str) -> None:
    family = formats(tools, thinking)
    rng = random.Random(f"plain {tools} {thinking}")
    marks = _marks(tools, thinking)
    for _ in range(50):
        text = "".join(
            rng.choice(("It ", "is", " 20 °C", "\n", "in Zürich.", "🌸", " a<b ")) for _ in range(rng.randint(1, 12))
        )
        given = ParserInput((TOOL,))
        pieces = read(family, given, _cut(rng, text, 3), cut=False)
        always = REASONING.get(thinking)
        inside = always is not None and not isinstance(always, Family) and always.inside
        assert not any(mark in text for mark in marks)
        assert pieces == joined([Reasoning(text.lstrip())] if inside else [Content(text)]) or not text.strip()


def _bare(text: str, tags: Sequence[str], opening: Sequence[str]) -> str:
    """Without white space, tags of thinking, and marks at the end, which have nothing behind them to keep."""
    for tag in tags:
        text = text.replace(tag, "")
    marks = "|".join(re.escape("".join(mark.split())) for mark in opening)
    return re.sub(f"(?:{marks})+$", "", "".join(text.split()))


@pytest.mark.parametrize(("tools", "thinking"), IN_CONTENT, ids=map("-".join, IN_CONTENT))
def test_what_looks_like_a_call_and_is_none_is_not_lost(tools: str, thinking: str) -> None:
    family = formats(tools, thinking)
    rng = random.Random(f"lost {tools} {thinking}")
    opening = family.tools.marks.all if family.tools else ("<tool_call>",)
    tags = family.thinking.opens + family.thinking.closes if family.thinking and not family.thinking.kept else ()
    for _ in range(100):
        parts = [rng.choice(("It ", "is", " 20 °C", "\n", "in Zürich.", "🌸 ", rng.choice(opening))) for _ in range(9)]
        text = "".join(parts)
        thought = rng.choice(("", *(f"{mark}hm {close}" for mark, close in zip(tags, reversed(tags), strict=True))))
        pieces = read(family, ParserInput((TOOL,)), _cut(rng, thought + text, 5), cut=False)
        assert not any(isinstance(piece, ToolCall) for piece in pieces)
        said = "".join(piece.text for piece in pieces if not isinstance(piece, ToolCall))
        assert _bare(said, tags, opening) == _bare(thought + text, tags, opening), (thought + text, pieces)
