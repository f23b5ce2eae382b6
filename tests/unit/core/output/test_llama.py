"""Llama's JSON calls beyond the conformance suite's fixtures."""

import pytest

from enginehouse.core.output.families.llama import LLAMA3, TAG
from enginehouse.core.output.families.thinking import THINK
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, ParserInput, Piece, Reasoning, Tool, ToolCall
from tests.unit.core.output.readings import TOOLS, check_cuts, read

JSON = Family(tools=LLAMA3)
LOOK = '{"name": "look", "parameters": {"a": 1}}'
ADD = '{"name": "add", "parameters": {}}'
ONE, ADDED = ToolCall("look", '{"a": 1}'), ToolCall("add", "{}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (LOOK, [ONE]),
        (f"\n\n{LOOK}\n", [ONE]),
        (f"{LOOK}; {ADD}", [ONE, ADDED]),
        (f"{LOOK}\n{ADD};{LOOK};", [ONE, ADDED, ONE]),
        (f"{LOOK} ; {ADD}", [ONE, ADDED]),
        (f"; {LOOK}", [Content(f"; {LOOK}")]),
        (f"{LOOK} So.", [ONE, Content(" So.")]),
        (f"{LOOK}; So.", [ONE, Content("; So.")]),
        (f"{TAG}{LOOK}", [ONE]),
        (f"{TAG} {LOOK};{ADD}", [ONE, ADDED]),
        (f"{TAG}{LOOK}{TAG}{ADD}", [ONE, ADDED]),
        (f"Wait.\n{TAG}{LOOK}So.", [Content("Wait.\n"), ONE, Content("So.")]),
        ('{"arguments": {"a": 1}, "name": "look"}', [ONE]),
        ('{ "type" : "function", "name": "look", "parameters": {"a": 1}}', [ONE]),
        ('{"name": "look", "parameters": null}', [ToolCall("look", "{}")]),
        ('{"name": "look", "parameters": "{\\"a\\": 1}"}', [ONE]),
        (
            f'{{"name": "look", "parameters": {{"a": {{"b": ["日本 🌸", "}}; {TAG}"]}}}}}}',
            [ToolCall("look", f'{{"a": {{"b": ["日本 🌸", "}}; {TAG}"]}}}}')],
        ),
        (f'{TAG}{{"name": "other"}}', [ToolCall("other", "{}")]),
        (f'{TAG}look.call(a=1, b="(x) \\n")', [ToolCall("look", '{"a":1,"b":"(x) \\n"}')]),
        (f"{TAG} add.call()\n{TAG}{LOOK}", [ADDED, Content("\n"), ONE]),
        (f'{TAG}brave_search.call(query="x")', [Content(f'{TAG}brave_search.call(query="x")')]),
        (f"{TAG}look.call(1)", [Content(f"{TAG}look.call(1)")]),
        # Answers in JSON, and other text.
        (f"So: {LOOK}", [Content(f"So: {LOOK}")]),
        ("{", [Content("{")]),
        ("{}", [Content("{}")]),
        (' {"a": 1}\n', [Content(' {"a": 1}\n')]),
        ('{"name": "Ann", "parameters": {}}', [Content('{"name": "Ann", "parameters": {}}')]),
        ('{"name": ["look"]}', [Content('{"name": ["look"]}')]),
        ('{"name": "look", "about": 1}', [Content('{"name": "look", "about": 1}')]),
        ('{"name": "look", "parameters": [1]}', [Content('{"name": "look", "parameters": [1]}')]),
        ('{"parameters": {"name": "look"}}', [Content('{"parameters": {"name": "look"}}')]),
        (
            '{"type": "function", "name": "Ann", "parameters": {}}',
            [Content('{"type": "function", "name": "Ann", "parameters": {}}')],
        ),
        ('{"type": "person"}', [Content('{"type": "person"}')]),
        (f'{LOOK}; {{"a": 1}}', [ONE, Content('; {"a": 1}')]),
        (f'{LOOK}; {{"name": "add", "param', [ONE, Content('; {"name": "add", "param')]),
        ('{"name": "look", "parameters": {"a": 1}', [Content('{"name": "look", "parameters": {"a": 1}')]),
        (f"{TAG}print(1)", [Content(f"{TAG}print(1)")]),
        (f"{TAG}[{LOOK}]", [Content(f"{TAG}[{LOOK}]")]),
        (TAG, []),
    ],
)
def test_o5_calls(text: str, expected: list[Piece]) -> None:
    assert list(read(JSON, text)) == expected


@pytest.mark.parametrize(
    "text", [f"Wait. {TAG}{LOOK}; {ADD}", f"{TAG}look.call(a='b')", f"{LOOK};{ADD}", '{"a": {"name": "look"}}']
)
def test_o6_a_limit_at_any_place_leaves_no_mark_and_no_half_call(text: str) -> None:
    check_cuts(JSON, text)


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ('{"b', '{"b'),
        ('{ "name": "An', '{ "name": "An'),
        ('{"name": "look"', ""),
        ('{"type": "p', '{"type": "p'),
        ("[", "["),
        (f"{LOOK} S", " S"),
    ],
)
def test_an_answer_in_json_is_not_held_up(begun: str, said: str) -> None:
    pieces = JSON.parser(ParserInput(TOOLS)).push(begun)
    assert "".join(piece.text for piece in pieces if isinstance(piece, Content)) == said


def test_a_call_may_stand_behind_thinking() -> None:
    family = Family(THINK, LLAMA3)
    assert read(family, f"<think>{LOOK}</think>\n\n{LOOK}") == (Reasoning(LOOK), ONE)
    assert read(family, f"<think>Hm.</think>So. {LOOK}") == (Reasoning("Hm."), Content(f"So. {LOOK}"))


def test_without_tools_nothing_is_a_call() -> None:
    assert read(JSON, f"{TAG}{LOOK}", tools=()) == (Content(f"{TAG}{LOOK}"),)
    assert read(JSON, LOOK, tools=()) == (Content(LOOK),)


def test_a_tool_with_a_name_that_needs_escapes() -> None:
    call = '{"name": "say \\"hi\\"", "parameters": {}}'
    assert read(JSON, call, tools=(Tool('say "hi"', {}),)) == (ToolCall('say "hi"', "{}"),)
