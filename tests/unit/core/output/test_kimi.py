"""Kimi's formats beyond the conformance suite's fixtures."""

import pytest

from enginehouse.core.output.families.kimi import KIMI_K2
from enginehouse.core.output.families.kimi_k3 import KIMI_K3
from enginehouse.core.output.families.thinking import THINK
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall
from tests.unit.core.output.readings import check_cuts, read

K2 = Family(THINK, KIMI_K2)
BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END, ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"

ONE = ToolCall("look", '{"a": 1}', "functions.look:0")


def k2(call_id: str, arguments: str) -> str:
    return f"{CALL}{call_id}{ARGUMENTS}{arguments}{CALL_END}"


LOOK, ADD = k2("functions.look:0", '{"a": 1}'), k2("functions.add:1", "{}")
ADDED = ToolCall("add", "{}", "functions.add:1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BEGIN + LOOK + END, [ONE]),
        (BEGIN + LOOK + ADD + END, [ONE, ADDED]),
        (f"Wait. {BEGIN}\n{LOOK}\n{ADD}\n{END}Done.", [Content("Wait. "), ONE, ADDED, Content("Done.")]),
        (f"<|tool_call_section_begin|>{LOOK}<|tool_call_section_end|>!", [ONE, Content("!")]),
        (f"{BEGIN}noise{LOOK}noise{END}", [ONE]),
        (BEGIN + END, []),
        (BEGIN + k2("functions.look:0", "") + END, [ToolCall("look", "{}", "functions.look:0")]),
        (BEGIN + k2(" look:12\n", '\n{"a": "日本 🌸"}\n') + END, [ToolCall("look", '{"a": "日本 🌸"}', "look:12")]),
        (BEGIN + k2("functions.my.look:0", "{}") + END, [ToolCall("my.look", "{}", "functions.my.look:0")]),
        (BEGIN + k2("functions.a:b:3", "{}") + END, [ToolCall("a:b", "{}", "functions.a:b:3")]),
        (BEGIN + k2(" look\n", "{}") + END, [ToolCall("look", "{}")]),  # that is no id
        (
            BEGIN + k2("look:0", f'{{"a": {{"b": "{CALL_END}{END}}}"}}}}') + END,
            [ToolCall("look", f'{{"a": {{"b": "{CALL_END}{END}}}"}}}}', "look:0")],
        ),
        (BEGIN + LOOK, [ONE]),
        # Models forget the mark of the section.
        (f"Wait.{LOOK}", [Content("Wait."), ONE]),
        (f"{LOOK}\n{ADD}\n{END}So.", [ONE, ADDED, Content("So.")]),
        (f"{LOOK}\nSo.{ADD}\n", [ONE, Content("\nSo."), ADDED, Content("\n")]),
        (f"{CALL}So.", [Content(f"{CALL}So.")]),
        (CALL, []),
        (BEGIN + LOOK.removesuffix(CALL_END) + END, [ONE]),
        (BEGIN + k2("look:0", "{a}") + END, [Content(BEGIN + k2("look:0", "{a}") + END)]),
        (BEGIN + k2("look:0", "{a}") + ADD + END, [Content(BEGIN + k2("look:0", "{a}")), ADDED]),
        (f"Hm.\n</think>\n{BEGIN}{LOOK}{END}", [Reasoning("Hm."), ONE]),
        (f"Hm.{BEGIN}{LOOK}{END}", [Reasoning("Hm."), ONE]),
        (f"Hm.{BEGIN}{LOOK}{END}</think>So.", [Reasoning("Hm."), ONE, Content("So.")]),
    ],
)
def test_o5_k2(text: str, expected: list[Piece]) -> None:
    prompt = "<think>" if text.startswith("Hm.") else "<|im_middle|>"
    assert list(read(K2, text, prompt=prompt)) == expected


def opened(name: str) -> str:
    return f"<|open|>{name}<|sep|>"


def closed(name: str) -> str:
    return f"<|close|>{name}<|sep|>"


def argument(key: str, kind: str, value: str) -> str:
    return opened(f'argument key="{key}" type="{kind}"') + value + closed("argument")


def k3(name: str, *arguments: str) -> str:
    return opened(f'call tool="{name}" index="1"') + "".join(arguments) + closed("call")


def tools(*calls: str) -> str:
    return opened("tools") + "".join(calls) + closed("tools")


THINKS, ANSWERS = opened('message role="assistant"') + opened("think"), opened("response")
DONE = closed("message")
A = argument("a", "string", "x")
AX = ToolCall("look", '{"a": "x"}')
BOTH = tools(k3("look", A), k3("add"))
ENDS = closed("argument")
NAMELESS = opened("argument x") + ENDS


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        (THINKS, f"Hm.{closed('think')}{ANSWERS}So.{closed('response')}{DONE}", [Reasoning("Hm."), Content("So.")]),
        (THINKS, "Hm.", [Reasoning("Hm.")]),
        (THINKS, f"{ANSWERS}So.{closed('response')}", [Content("So.")]),
        (THINKS, f"Hm.{ANSWERS}So.", [Reasoning("Hm."), Content("So.")]),
        (THINKS, f"Hm.{tools(k3('look', A))}", [Reasoning("Hm."), AX]),
        (THINKS, f"Hm.{closed('think')}So.", [Reasoning("Hm."), Content("So.")]),
        (ANSWERS, f" So. {closed('response')}{DONE}", [Content(" So. ")]),
        (ANSWERS, f"So.{closed('response')}{BOTH}{DONE}", [Content("So."), AX, ToolCall("add", "{}")]),
        ("", f"{opened('think')}Hm.{closed('think')}{ANSWERS}So.", [Reasoning("Hm."), Content("So.")]),
        # It thinks again.
        (
            THINKS,
            f"1{closed('think')}{ANSWERS}2{closed('response')}{opened('think')}3{closed('think')}{ANSWERS}4",
            [Reasoning("1"), Content("2"), Reasoning("3"), Content("4")],
        ),
        (ANSWERS, tools(), []),
        (ANSWERS, "<|open|>nothing<|sep|>", [Content("<|open|>nothing<|sep|>")]),
        # What is no call is text.
        (ANSWERS, tools("look"), [Content(tools("look"))]),
        (ANSWERS, tools(k3("look", "x")), [Content(tools(k3("look", "x")))]),
        (ANSWERS, tools(k3("look", NAMELESS)), [Content(tools(k3("look", NAMELESS)))]),
        (ANSWERS, tools(opened("call x") + closed("call")), [Content(tools(opened("call x") + closed("call")))]),
        (ANSWERS, tools(k3("look", A), k3("add", "x")), [AX, Content(k3("add", "x") + closed("tools"))]),
        (ANSWERS, tools(k3("add", "x"), k3("look", A)), [Content(opened("tools") + k3("add", "x")), AX]),
        (ANSWERS, tools(k3("look", A) + "x"), [AX, Content("x" + closed("tools"))]),
    ],
)
def test_o5_k3_channels(prompt: str, text: str, expected: list[Piece]) -> None:
    assert list(read(KIMI_K3, text, prompt=prompt)) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (argument("a", "string", ""), '{"a": ""}'),
        (argument("a", "string", " 007\n"), '{"a": " 007\\n"}'),
        (argument("a", "string", "12"), '{"a": "12"}'),
        (argument("a", "string", "null"), '{"a": "null"}'),
        (argument("a", "number", "1.50"), '{"a": 1.50}'),
        (argument("a", "boolean", "false"), '{"a": false}'),
        (argument("a", "null", "null"), '{"a": null}'),
        (argument("a", "array", '[1, "b"]'), '{"a": [1, "b"]}'),
        (argument("a", "object", '{"b": {}}'), '{"a": {"b": {}}}'),
        (argument("a", "object", "no"), '{"a": "no"}'),
        (argument("a", "number", "1") + "\n" + argument("b", "string", "ü"), '{"a": 1, "b": "ü"}'),
        (argument("a&amp;b &quot;c&quot;", "string", "&amp;"), '{"a&b \\"c\\"": "&amp;"}'),
        (argument("&amp;quot;", "string", ""), '{"&quot;": ""}'),
        (opened('argument key="a"') + "2" + closed("argument"), '{"a": 2}'),
        (argument("a", "string", f"{ENDS} {ENDS}x"), f'{{"a": "{ENDS} {ENDS}x"}}'),
    ],
)
def test_o5_k3_arguments(arguments: str, expected: str) -> None:
    assert list(read(KIMI_K3, tools(k3("look", arguments)), prompt=ANSWERS)) == [ToolCall("look", expected)]


@pytest.mark.parametrize(
    ("family", "text", "prompt"),
    [
        (K2, f"Hm.</think>Wait.{BEGIN}{LOOK}{ADD}{END}", "<think>"),
        (K2, f"Wait.{BEGIN}{LOOK}{ADD}{END}Done.", "</think>"),
        (KIMI_K3, f"Hm.{closed('think')}{ANSWERS}So.{closed('response')}{BOTH}{DONE}", THINKS),
        (KIMI_K3, f"So.{closed('response')}{DONE}", ANSWERS),
    ],
)
def test_o6_a_limit_at_any_place_leaves_no_mark_and_no_half_call(family: Family, text: str, prompt: str) -> None:
    check_cuts(family, text, prompt=prompt)


def test_k3_without_tools_or_thinking() -> None:
    text = f"Hm.{closed('think')}{ANSWERS}So.{closed('response')}{tools(k3('look', A))}"
    assert read(KIMI_K3, text, prompt=THINKS, tools=()) == (Reasoning("Hm."), Content("So." + tools(k3("look", A))))
    assert read(KIMI_K3, text, prompt=THINKS, reasoning=False) == (Content("Hm.So."), AX)


def test_the_marks_are_shown() -> None:
    assert {BEGIN, END, CALL, CALL_END, ARGUMENTS} < K2.shown
    assert {"<|open|>", "<|close|>", "<|sep|>"} == KIMI_K3.shown
