"""Gemma 4 beyond the conformance suite's fixtures."""

import json

import pytest

from enginehouse.core.output.families.gemma4 import CHANNEL, CLOSE, GEMMA4, GEMMA4_THINKING, OPEN, QUOTE
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, ParserInput, Piece, Reasoning, ToolCall, joined
from tests.unit.core.output.readings import TOOLS, check_cuts, read

GEMMA = Family(GEMMA4_THINKING, GEMMA4)
END = "<channel|>"
LOOK, ADD = f"{OPEN}call:look{{a:1}}{CLOSE}", f"{OPEN}call:add{{}}{CLOSE}"
ONE, ADDED = ToolCall("look", '{"a":1}'), ToolCall("add", "{}")


def quoted(text: str) -> str:
    return f"{QUOTE}{text}{QUOTE}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (LOOK, [ONE]),
        (LOOK + ADD, [ONE, ADDED]),
        (f"Wait. {LOOK} So.{ADD}", [Content("Wait. "), ONE, Content(" So."), ADDED]),
        (f"{OPEN}call:look{{ a : 1 }} {CLOSE}", [ONE]),
        (f"{OPEN}call:my-server.look{{}}{CLOSE}", [ToolCall("my-server.look", "{}")]),
        (f"{OPEN}call:look{{a:1}}", [ONE]),  # that mark may be what ended it
        (f"{CHANNEL}thought\nHm.\n{END}So.{LOOK}", [Reasoning("Hm."), Content("So."), ONE]),
        (f"{CHANNEL}thought\n{END}So.", [Content("So.")]),
        (f"{CHANNEL}thought\nHm.{LOOK}", [Reasoning("Hm."), ONE]),
        (f"\n{LOOK}", [Content("\n"), ONE]),
        # What is no call is text.
        (OPEN, []),
        (f"{OPEN}look{{a:1}}{CLOSE}", [Content(f"{OPEN}look{{a:1}}{CLOSE}")]),
        (f"{OPEN}call:{{a:1}}{CLOSE}", [Content(f"{OPEN}call:{{a:1}}{CLOSE}")]),
        (f"{OPEN}call:look{CLOSE}", [Content(f"{OPEN}call:look{CLOSE}")]),
        (f"{OPEN}call:look{{a:1{CLOSE}So.", [Content(f"{OPEN}call:look{{a:1{CLOSE}So.")]),
        (f"{OPEN}call:look{{a:1{CLOSE}{ADD}", [Content(f"{OPEN}call:look{{a:1{CLOSE}"), ADDED]),
        (f"{OPEN}call:look{{a:1{ADD}", [Content(f"{OPEN}call:look{{a:1{ADD}")]),
        (f"{OPEN}call:look{{a:1}}So.{CLOSE}", [Content(f"{OPEN}call:look{{a:1}}So.{CLOSE}")]),
        (f"{OPEN}call:look{{a:{QUOTE}b{CLOSE}", [Content(f"{OPEN}call:look{{a:{QUOTE}b{CLOSE}")]),
        (f"{OPEN}call:look{{a}}{CLOSE}", [Content(f"{OPEN}call:look{{a}}{CLOSE}")]),
        (f"{OPEN}call:look{{a:1]{CLOSE}", [Content(f"{OPEN}call:look{{a:1]{CLOSE}")]),
        (f"{OPEN}call:look{{a:b{quoted('c')}}}{CLOSE}", [Content(f"{OPEN}call:look{{a:b{quoted('c')}}}{CLOSE}")]),
        (f"{OPEN}call:look{{a:1", [Content(f"{OPEN}call:look{{a:1")]),
    ],
)
def test_o5_calls(text: str, expected: list[Piece]) -> None:
    assert list(read(GEMMA, text)) == expected


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("", {}),
        ("a:true,b:false,c:null", {"a": True, "b": False, "c": None}),
        ("a:-1.5e-05,b:007,c:1e999", {"a": -1.5e-05, "b": 7, "c": "1e999"}),
        ("a:word", {"a": "word"}),
        ("a:None,b:True,c:False", {"a": None, "b": True, "c": False}),
        ("1:2,true:3", {"1": 2, "true": 3}),
        (f"a:{quoted('')}", {"a": ""}),
        (f"a:{quoted('true')},b:{quoted(' 1 ')}", {"a": "true", "b": " 1 "}),
        (f"a:{quoted('日本 🌸')}", {"a": "日本 🌸"}),
        (f"a:{quoted(f'{OPEN}{CLOSE}}},{END}')}", {"a": f"{OPEN}{CLOSE}}},{END}"}),
        (f"a:{quoted(chr(34) + chr(92) + chr(10))}", {"a": '"\\\n'}),
        ("a:{b:{c:{}}},d:[]", {"a": {"b": {"c": {}}}, "d": []}),
        (f"a:[[1, {quoted('b')}], {{c:null}}]", {"a": [[1, "b"], {"c": None}]}),
        (f"{quoted('a:b')}:1", {"a:b": 1}),
        (f"two words:{quoted('x')},\n ü:2", {"two words": "x", "ü": 2}),
        ('a"b:1', {'a"b': 1}),
    ],
)
def test_o5_arguments(written: str, value: object) -> None:
    (call,) = read(GEMMA, f"{OPEN}call:look{{{written}}}{CLOSE}")
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == value


def test_deep_nesting_is_text_and_no_error() -> None:
    text = f"{OPEN}call:look{{a:{'[' * 100_000}{']' * 100_000}}}{CLOSE}"
    parser = GEMMA.parser(ParserInput(TOOLS))
    assert joined([*parser.push(text), *parser.finish()]) == (Content(text),)


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        (f"<|turn>model\n{CHANNEL}thought\n{END}", "So.", [Content("So.")]),
        (f"<|turn>model\n{CHANNEL}thought\n", f"Hm.{END}So.", [Reasoning("Hm."), Content("So.")]),
        ("<|turn>model\n", f"{CHANNEL}thought\nHm.{END}So.", [Reasoning("Hm."), Content("So.")]),
    ],
)
def test_thinking_may_begin_in_the_prompt(prompt: str, text: str, expected: list[Piece]) -> None:
    assert list(read(GEMMA, text, prompt=prompt)) == expected


@pytest.mark.parametrize(
    "text", [f"{CHANNEL}thought\nHm.\n{END}So.{LOOK}{ADD}", f"So.{OPEN}call:look{{a:{{b:{quoted('c')}}}}}{CLOSE}"]
)
def test_o6_a_limit_at_any_place_leaves_no_mark_and_no_half_call(text: str) -> None:
    check_cuts(GEMMA, text)


def test_o6_a_limit_before_the_closing_mark_takes_the_call_with_it() -> None:
    assert read(GEMMA, f"{OPEN}call:look{{a:1}}", cut=True) == ()


def test_without_tools_or_thinking() -> None:
    text = f"{CHANNEL}thought\nHm.{END}{LOOK}"
    assert read(GEMMA, text, tools=()) == (Reasoning("Hm."), Content(LOOK))
    assert read(GEMMA, text, reasoning=False) == (Content(f"{CHANNEL}thought\nHm.{END}"), ONE)


def test_its_marks_are_shown() -> None:
    assert {OPEN, CLOSE, QUOTE, CHANNEL, END} < GEMMA.shown
