"""Calls as JSON objects behind a mark, in the marks of each family."""

import pytest

from enginehouse.core.output import detect
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall
from enginehouse.core.output.registry import NONE, formats
from tests.support import ROOT
from tests.unit.core.output.readings import check_cuts, read

LOOK, ADD = '{"name": "look", "arguments": {"a": 1}}', '{"name": "add", "arguments": {}}'
ONE, ADDED = ToolCall("look", '{"a": 1}'), ToolCall("add", "{}")
LONGCAT, LONGCAT_END = "<longcat_tool_call>", "</longcat_tool_call>"
BOTH = f"[{LOOK}, {ADD}]"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("granite", f"<|tool_call|>{BOTH}", [ONE, ADDED]),
        ("granite", f"<tool_call> {BOTH}", [ONE, ADDED]),
        ("granite", f"Wait.\n<|tool_call|>[{LOOK}]So.", [Content("Wait."), ONE, Content("So.")]),
        ("granite", f"<|tool_call|>{LOOK}", [ONE]),
        ("granite", "<|tool_call|>[]", [Content("<|tool_call|>[]")]),
        ("granite", "<|tool_call|>", []),
        ("granite", f"<|tool_call|>{LOOK} So.", [ONE, Content(" So.")]),
        ("longcat", f"{LONGCAT}{LOOK} So.", [ONE, Content(" So.")]),
        ("granite-20b-fc", f"<function_call> {LOOK} <function_call> {ADD}", [ONE, ADDED]),
        ("phi4_mini_json", f"functools{BOTH}", [ONE, ADDED]),
        ("phi4_mini_json", f"Wait.<|tool_call|>{BOTH}<|/tool_call|>", [Content("Wait."), ONE, ADDED]),
        ("phi4_mini_json", "import functools", [Content("import functools")]),
        ("phi4_mini_json", "functools[0]; so.", [Content("functools[0]; so.")]),
        ("nemotron_json", f"<TOOLCALL>{BOTH}</TOOLCALL>", [ONE, ADDED]),
        ("llama_nemotron_json", f"Wait. <TOOLCALL>[\n{LOOK}\n]\n</TOOLCALL>\n", [Content("Wait."), ONE]),
        ("nemotron_json", f"<TOOLCALL>[{LOOK}]", [ONE]),
        ("nemotron_json", f"<TOOLCALL>[{LOOK}] So.", [ONE, Content(" So.")]),
        ("nemotron_json", f"<TOOLCALL>[{LOOK}, 1]</TOOLCALL>", [ONE, Content(", 1]</TOOLCALL>")]),
        ("jamba", f"<tool_calls>{BOTH}</tool_calls>", [ONE, ADDED]),
        ("minimax", f"<tool_calls>\n{LOOK}\n{ADD}\n</tool_calls>", [ONE, ADDED]),
        ("minimax", f"<tool_calls>\n{LOOK}\n{{}}\n</tool_calls>", [ONE, Content("\n{}\n</tool_calls>")]),
        ("hunyuan_a13b", f"<tool_calls>[{LOOK}]</tool_calls>", [ONE]),
        ("longcat", f"{LONGCAT}{LOOK}{LONGCAT_END}\n{LONGCAT}{ADD}{LONGCAT_END}", [ONE, ADDED]),
        ("interns1", '<|action_start|><|plugin|>\n{"name": "look", "parameters": {"a": 1}}<|action_end|>\n', [ONE]),
        ("internlm", "<|action_start|><|interpreter|>1", [Content("<|action_start|><|interpreter|>1")]),
    ],
)
def test_o5_calls(name: str, text: str, expected: list[Piece]) -> None:
    assert list(read(formats(name, NONE), text)) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("granite", f"Wait.<|tool_call|>{BOTH}"),
        ("nemotron_json", f"Wait.<TOOLCALL>{BOTH}</TOOLCALL>"),
        ("longcat", f"Wait.<longcat_tool_call>{LOOK}</longcat_tool_call>"),
        ("interns1", f"Wait.<|action_start|><|plugin|>{LOOK}<|action_end|>"),
    ],
)
def test_o6_a_limit_at_any_place_leaves_no_mark_and_no_half_call(name: str, text: str) -> None:
    check_cuts(formats(name, NONE), text)


def test_thinking_before() -> None:
    family = formats("nemotron_json", "qwen3")
    text = f"Hm.\n</think>\n\n<TOOLCALL>[{LOOK}]</TOOLCALL>"
    assert read(family, text, prompt="<think>\n") == (Reasoning("Hm."), ONE)


@pytest.mark.parametrize(
    ("template", "name"),
    [("granite33", "granite"), ("phi4_mini", "phi4_mini_json"), ("nemotron", "nemotron_json")],
)
def test_templates_of_these_models_are_recognised(template: str, name: str) -> None:
    folder = ROOT / "tests/unit/adapters/tokenizer/templates"
    assert detect.tool_parser((folder / f"{template}.jinja").read_text(encoding="utf-8")) == name
