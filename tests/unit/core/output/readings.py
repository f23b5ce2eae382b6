"""Reads an answer whole, by characters and cut in two at every place: it has to come out the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, OutputParser, ParserInput, Piece, Reasoning, Tool, ToolCall, joined

TOOLS = (Tool("look", {"type": "object"}), Tool("add", {"type": "object"}))


def read(
    family: Family,
    text: str,
    *,
    prompt: str = "",
    cut: bool = False,
    tools: tuple[Tool, ...] = TOOLS,
    reasoning: bool = True,
    begun: str | None = None,
) -> tuple[Piece, ...]:
    given = ParserInput(tools=tools, prompt_tail=prompt, reasoning=reasoning, begun=begun)
    whole = _parse(family, given, [text], cut=cut)
    for pieces in (list(text), *([text[:place], text[place:]] for place in range(1, len(text)))):
        assert _parse(family, given, pieces, cut=cut) == whole, pieces
    return whole


def _parse(family: Family, given: ParserInput, pieces: Iterable[str], *, cut: bool) -> tuple[Piece, ...]:
    parser = family.parser(given)
    said = [piece for text in pieces for piece in pushed(parser, text)]
    return joined([*said, *parser.finish(cut=cut)])


def pushed(parser: OutputParser, text: str) -> Sequence[Piece]:
    """As the edge does it: what passes is not pushed."""
    kind = parser.passes(text)
    return [kind(text)] if kind is not None and text else parser.push(text)


def content(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


def thought(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))


def calls(pieces: Iterable[Piece]) -> list[ToolCall]:
    return [piece for piece in pieces if isinstance(piece, ToolCall)]


def cuts(family: Family, text: str, *, prompt: str = "") -> Iterator[tuple[int, tuple[Piece, ...]]]:
    """The answer ended by a limit at every place: (the place, what was read)."""
    given = ParserInput(tools=TOOLS, prompt_tail=prompt)
    for place in range(len(text)):
        yield place, _parse(family, given, [text[:place]], cut=True)


def check_cuts(family: Family, text: str, *, prompt: str = "") -> None:
    """However early a limit ends it: no mark comes out, and no call but those that are finished."""
    whole = read(family, text, prompt=prompt)
    for place, pieces in cuts(family, text, prompt=prompt):
        so_far = calls(pieces)
        assert so_far == calls(whole)[: len(so_far)], text[:place]
        for told, all_of_it in ((content(pieces), content(whole)), (thought(pieces), thought(whole))):
            # One sign of a mark is as likely a text's own.
            assert all_of_it.startswith((told.rstrip(), told[:-1].rstrip())), text[:place]
