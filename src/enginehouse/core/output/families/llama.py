"""`{"name": "get_weather", "parameters": {"city": "Paris"}}`: Llama 3.1, 3.2, 3.3 with JSON calls.

Several stand one behind the other with `;` between them. `<|python_tag|>` may come first, with text before it; behind
it also `brave_search.call(query="Paris")`, as Llama calls tools of its training, if they are offered. Without that mark
an object is a call only where the content begins, and only if an offered tool is named in it: else it is an answer in
JSON. Its beginning tells which one it is, so that such an answer is not held up.
"""

from __future__ import annotations

from typing import Final

from enginehouse.core.output.families.pythonic import python_arguments
from enginehouse.core.output.family import ToolFormat
from enginehouse.core.output.marks import Marks
from enginehouse.core.output.pieces import ParserInput
from enginehouse.core.output.reader import Reader, Reading
from enginehouse.core.output.values import arguments, decode, encode, named_call

TAG: Final = "<|python_tag|>"
_ARGUMENTS: Final = ("parameters", "arguments")


def _read(reader: Reader, mark: str, given: ParserInput) -> Reading[bool]:
    yield from reader.space()
    heads = {f"{tool.name}.call(": tool.name for tool in given.tools}
    head = yield from reader.next_is(*heads)
    if head is not None:
        return (yield from _trained(reader, heads[head]))
    text, whole = yield from reader.json()
    call = named_call(text) if whole else None
    if call is None:
        return False
    reader.call(*call)
    return (yield from _more(reader, given))


def _trained(reader: Reader, name: str) -> Reading[bool]:
    text = yield from python_arguments(reader)
    written = arguments(text) if text is not None else None
    if written is None:
        return False
    reader.call(name, written)
    return True


def _bare(reader: Reader, given: ParserInput) -> Reading[bool]:
    return (yield from _object(reader, given)) and (yield from _more(reader, given))


def _more(reader: Reader, given: ParserInput) -> Reading[bool]:
    """Calls behind a call."""
    while True:
        yield from reader.space()
        yield from reader.next_is(";")
        yield from reader.space()
        if reader.done:
            return True
        if not (yield from _object(reader, given)):
            return False


def _object(reader: Reader, given: ParserInput) -> Reading[bool]:
    """Whether an object comes next that is a call of an offered tool."""
    begun = yield from _opening(reader, given)
    text, whole = ("", False) if begun is None else (yield from reader.json(begun))
    call = named_call(text) if whole else None
    if call is None or call[0] not in [tool.name for tool in given.tools]:
        return False
    members = decode(text)
    if not isinstance(members, dict) or members.keys().isdisjoint(_ARGUMENTS):
        return False
    reader.call(*call)
    return True


def _opening(reader: Reader, given: ParserInput) -> Reading[str | None]:
    """How an object begins that may be a call; None: what comes next is none."""
    firsts = {
        '"name"': [encode(tool.name) for tool in given.tools],
        '"type"': ['"function"'],
        **{f'"{name}"': ["{"] for name in _ARGUMENTS},
    }
    yield from reader.space()
    begun, member = "", ""
    for choices in (["{"], [*firsts], [":"], None):
        begun += yield from reader.space()
        found = yield from reader.next_is(*(firsts[member] if choices is None else choices))
        if found is None:
            return None
        begun += found
        member = found if found in firsts else member
    return begun


LLAMA3: Final = ToolFormat(Marks(TAG), _read, special=frozenset({TAG}), bare=_bare)
