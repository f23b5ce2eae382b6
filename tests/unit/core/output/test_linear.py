"""Work is linear in the text, however small its pieces: counted in characters that are copied, not in seconds."""

import json

import pytest

from enginehouse.core.output.pieces import ParserInput, Tool, ToolCall
from enginehouse.core.output.reader import Reader
from enginehouse.core.output.registry import TOOLS, formats
from tests.unit.core.output.test_random_outputs import NAMES
from tests.unit.core.output.written import CALLS

SIZE = 100_000
GIVEN = ParserInput((Tool("f", {"type": "object", "properties": {"a": {"type": "string"}}}),))
AWKWARD = ("<", " ", "\n", "[", "{", '"', "<tool_call>", "<tool_cal", "</parameter>", "<|channel|>", "]\n", "<｜", "f(")


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all that a reader puts into its buffer or takes out of it."""
    sizes: list[int] = []
    feed, advance = Reader.feed, Reader._advance

    def counted_feed(self: Reader, text: str) -> None:
        feed(self, text)
        sizes.append(len(self._text))

    def counted_advance(self: Reader, end: int) -> str:
        taken = advance(self, end)
        sizes.append(len(taken))
        return taken

    monkeypatch.setattr(Reader, "feed", counted_feed)
    monkeypatch.setattr(Reader, "_advance", counted_advance)
    return sizes


def test_every_format_has_a_call_here() -> None:
    assert {id(TOOLS[name]) for name in CALLS} == {id(found) for found in TOOLS.values()}


@pytest.mark.parametrize("tools", CALLS)
def test_a_long_argument_in_small_pieces(tools: str, copied: list[int]) -> None:
    value = "word " * (SIZE // 5)
    text = CALLS[tools](value)
    parser = formats(tools, "none").parser(GIVEN)
    pieces = [piece for at in range(0, len(text), 4) for piece in parser.push(text[at : at + 4])]
    pieces += parser.finish()
    assert len(pieces) == 1
    assert isinstance(pieces[0], ToolCall)
    assert json.loads(pieces[0].arguments) == {"a": value}
    assert sum(copied) < 4 * len(text)


@pytest.mark.parametrize("tools", CALLS)
def test_many_calls_at_once(tools: str, copied: list[int]) -> None:
    text = "\n".join([CALLS[tools]("x")] * 300)
    parser = formats(tools, "none").parser(GIVEN)
    pieces = [*parser.push(text), *parser.finish()]
    assert sum(isinstance(piece, ToolCall) for piece in pieces) in (1, 300)  # some formats have one call an answer
    assert sum(copied) < 4 * len(text)


@pytest.mark.parametrize("part", AWKWARD)
@pytest.mark.parametrize(("tools", "thinking"), NAMES, ids=map("-".join, NAMES))
def test_awkward_text_in_small_pieces(tools: str, thinking: str, part: str, copied: list[int]) -> None:
    text = CALLS.get(tools, str)("\0").partition("\0")[0] + part * (4000 // len(part))
    parser = formats(tools, thinking).parser(GIVEN)
    for at in range(0, len(text), 2):
        parser.push(text[at : at + 2])
    parser.finish()
    assert sum(copied) < 8 * len(text)
