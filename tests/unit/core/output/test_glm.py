"""GLM's calls beyond the conformance suite's fixtures."""

import pytest

from enginehouse.core.output.families.glm import GLM
from enginehouse.core.output.families.thinking import THINK
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, Piece, Reasoning, Tool, ToolCall
from tests.unit.core.output.readings import check_cuts, read

FAMILY = Family(THINK, GLM)
TOOLS = (Tool("look", {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}), Tool("add", {}))
LOOK = "<tool_call>look<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
ADD = "<tool_call>add\n</tool_call>"
ONE, TWO = ToolCall("look", '{"a": 1}'), ToolCall("add", "{}")


def valued(value: str) -> str:
    return f"<tool_call>look\n<arg_key>b</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{LOOK}\n{ADD}\n", [ONE, TWO]),
        (f"First.\n{LOOK}Then.", [Content("First."), ONE, Content("Then.")]),
        (f"<think>Hm.\n{LOOK}", [Reasoning("Hm."), ONE]),
        (valued(""), [ToolCall("look", '{"b": ""}')]),
        (valued("\n x "), [ToolCall("look", '{"b": "\\n x "}')]),
        # Tags in a value end it only where the call goes on.
        (valued("</arg_value> x"), [ToolCall("look", '{"b": "</arg_value> x"}')]),
        (valued("</tool_call> x"), [ToolCall("look", '{"b": "</tool_call> x"}')]),
        (valued("</tool_call>"), [ToolCall("look", '{"b": "</tool_call>"}')]),
        (f"<tool_call>look<arg_key>a</arg_key><arg_value>1</tool_call>\n{ADD}", [ONE, TWO]),
        ("<tool_call>look<arg_key> a </arg_key>\n<arg_value> 1 </arg_value>\n</tool_call>", [ONE]),
        # What is no call stays text.
        ("Say <tool_call> now.", [Content("Say <tool_call> now.")]),
        ("<tool_call></tool_call>", [Content("<tool_call></tool_call>")]),
        ('<tool_call>{"name": "look"}</tool_call>', [Content('<tool_call>{"name": "look"}</tool_call>')]),
        ("<tool_call>look", [Content("<tool_call>look")]),
        ("<tool_call>look<arg_key>a</arg_value>", [Content("<tool_call>look<arg_key>a</arg_value>")]),
        ("<tool_call>look<arg_key>a</arg_key>x", [Content("<tool_call>look<arg_key>a</arg_key>x")]),
        (f"<tool_call>look now\n{LOOK}", [Content("<tool_call>look now"), ONE]),
    ],
)
def test_calls(text: str, expected: list[Piece]) -> None:
    assert list(read(FAMILY, text, tools=TOOLS)) == expected


def test_o6_a_limit_leaves_no_half_of_a_call() -> None:
    check_cuts(FAMILY, f"<think>Hm.</think>First.\n{LOOK}\n{ADD}")
    check_cuts(FAMILY, valued("</tool_call>"))
