"""Hermes' and Qwen's JSON calls beyond the conformance suite's fixtures."""

import pytest

from enginehouse.core.output.families.hermes import HERMES
from enginehouse.core.output.families.thinking import THINK
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall
from tests.unit.core.output.readings import check_cuts, read

FAMILY = Family(THINK, HERMES)
LOOK = '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>'
ADD = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
ONE, TWO = ToolCall("look", '{"a": 1}'), ToolCall("add", "{}")


def calling(value: str) -> str:
    return f"<tool_call>{value}</tool_call>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOOK, [ONE]),
        (f"{LOOK}\n{ADD}\n", [ONE, TWO]),
        (f"First.\n\n{LOOK}\nThen.\n{ADD}", [Content("First."), ONE, Content("\nThen."), TWO]),
        # A closing mark within a string ends nothing.
        (calling('{"name": "look", "arguments": {"a": "</tool_call>"}}'), [ToolCall("look", '{"a": "</tool_call>"}')]),
        (
            calling('{"name": "look", "arguments": {"a": "\\"</tool_call>"}}'),
            [ToolCall("look", '{"a": "\\"</tool_call>"}')],
        ),
        # What is not quite JSON, and can only mean one thing.
        (calling('{"name": "look", "arguments": {"a": "x\ny"}}'), [ToolCall("look", '{"a": "x\\ny"}')]),
        (calling('{"name": "look", "arguments": "{\\"a\\": 1}"}'), [ONE]),
        (calling('{"name": "look", "parameters": {"a": 1}}'), [ONE]),
        (calling('{"name": "add"}'), [TWO]),
        ('<tool_call>{"name": "add"}', [TWO]),
        # What is no call stays text, and a call behind it is one.
        (calling("not JSON"), [Content(calling("not JSON"))]),
        (
            calling('{"name": "look", "arguments": {"a": 1}'),
            [Content(calling('{"name": "look", "arguments": {"a": 1}'))],
        ),
        (f"Write <tool_call> first.\n{LOOK}", [Content("Write <tool_call> first."), ONE]),
        (f"{calling('[1]')}\n{LOOK}", [Content(calling("[1]")), ONE]),
        (f"<tool_call> {LOOK}", [Content("<tool_call> "), ONE]),
        ("Use <tool_cal", [Content("Use <tool_cal")]),
        # A model that calls has thought enough, closing tag or not.
        (f"<think>Hm.\n{LOOK}\nSo.", [Reasoning("Hm."), ONE, Content("\nSo.")]),
        # A mark with nothing behind it says nothing.
        ("First.\n<tool_call>", [Content("First.")]),
        ("<tool_call>\n", []),
        ("Hm.</tool_call>", [Content("Hm.</tool_call>")]),
        (" a\n", [Content(" a\n")]),
    ],
)
def test_calls(text: str, expected: list[Piece]) -> None:
    assert list(read(FAMILY, text)) == expected


def test_o6_a_limit_leaves_no_half_of_a_call() -> None:
    check_cuts(FAMILY, f"<think>\nHm.\n</think>\n\nFirst.\n{LOOK}\n{ADD}\nThen.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('First. <tool_call>{"name": "add"}', [Content("First.")]),
        ("First. <tool_ca", [Content("First. ")]),
        ("1 <", [Content("1 <")]),
    ],
)
def test_o6_at_a_limit(text: str, expected: list[Piece]) -> None:
    assert list(read(FAMILY, text, cut=True)) == expected


def test_without_tools_a_call_is_text() -> None:
    assert read(FAMILY, LOOK, tools=()) == (Content(LOOK),)


def test_what_a_tokenizer_has_to_show() -> None:
    assert FAMILY.shown == {"<tool_call>", "</tool_call>", "<think>", "</think>"}
