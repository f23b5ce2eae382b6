"""Mistral's formats beyond the conformance suite's fixtures."""

import pytest

from enginehouse.core.output.families.mistral import MISTRAL, MISTRAL_THINKING
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall
from tests.unit.core.output.readings import check_cuts, read

PLAIN, MAGISTRAL = Family(tools=MISTRAL), Family(MISTRAL_THINKING, MISTRAL)
CALLS, ARGS, CALL_ID, END = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[/THINK]"
LOOK, ADD = f'{CALLS}look{ARGS}{{"a": 1}}', f"{CALLS}add{ARGS}{{}}"
OLD_LOOK, OLD_ADD = '{"name": "look", "arguments": {"a": 1}}', '{"name": "add", "arguments": {}}'
ONE, ADDED = ToolCall("look", '{"a": 1}'), ToolCall("add", "{}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (LOOK, [ONE]),
        (LOOK + ADD, [ONE, ADDED]),
        (f"Wait. {LOOK}So.{ADD}\n", [Content("Wait. "), ONE, Content("So."), ADDED, Content("\n")]),
        (f'{CALLS}look{CALL_ID}a1B2{ARGS}{{"a": 1}}', [ToolCall("look", '{"a": 1}', "a1B2")]),
        (
            f"{CALLS}look{CALL_ID}1{ARGS}{{}}{CALLS}add{CALL_ID}2{ARGS}{{}}",
            [ToolCall("look", "{}", "1"), ToolCall("add", "{}", "2")],
        ),
        (f"{CALLS}look{CALL_ID}{ARGS}{{}}", [ToolCall("look", "{}")]),
        (f'{CALLS}look{{"a": 1}}', [ONE]),
        (f'{CALLS}look{CALL_ID}1{{"a": 1}}', [ToolCall("look", '{"a": 1}', "1")]),
        (f'{CALLS} look{ARGS}\n{{"a": 1}}', [ONE]),
        (f"{CALLS}my-server.look:all/1{ARGS}{{}}", [ToolCall("my-server.look:all/1", "{}")]),
        (
            f'{CALLS}look{ARGS}{{"a": {{"b": ["日本 🌸", "}}{CALLS}add{ARGS}{{}}"]}}}}',
            [ToolCall("look", f'{{"a": {{"b": ["日本 🌸", "}}{CALLS}add{ARGS}{{}}"]}}}}')],
        ),
        # Before v11.
        (f"{CALLS}[{OLD_LOOK}]", [ONE]),
        (f"{CALLS} [{OLD_LOOK}, {OLD_ADD}]So.", [ONE, ADDED, Content("So.")]),
        (f"{CALLS}[ {OLD_LOOK}\n,\n{OLD_ADD} ]", [ONE, ADDED]),
        (f"{CALLS}[{OLD_LOOK}", [ONE]),
        # What is no call is text.
        (CALLS, []),
        (f"{CALLS}So.", [Content(f"{CALLS}So.")]),
        (f'{CALLS}{{"a": 1}}', [Content(f'{CALLS}{{"a": 1}}')]),
        (f"{CALLS}{ARGS}{{}}", [Content(f"{CALLS}{ARGS}{{}}")]),
        (f"{CALLS}look{ARGS}[1]", [Content(f"{CALLS}look{ARGS}[1]")]),
        (f'{CALLS}look{ARGS}{{"a": 1', [Content(f'{CALLS}look{ARGS}{{"a": 1')]),
        (f"{CALLS}look {ARGS}{{}}", [Content(f"{CALLS}look {ARGS}{{}}")]),
        (f"{CALLS}[]", [Content(f"{CALLS}[]")]),
        (f"{CALLS}[{OLD_LOOK}, 1]", [ONE, Content(", 1]")]),
        (f"{CALLS}no{LOOK}", [Content(f"{CALLS}no"), ONE]),
        (f"[TOOLS]{ARGS}", [Content(f"[TOOLS]{ARGS}")]),
    ],
)
def test_o5_calls(text: str, expected: list[Piece]) -> None:
    assert list(read(PLAIN, text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"[THINK]Hm.{END}{LOOK}", [Reasoning("Hm."), ONE]),
        (f"[THINK]\nHm.\n{END}\n\nSo.{LOOK}", [Reasoning("Hm."), Content("So."), ONE]),
        (f"<think>Hm.</think>{LOOK}", [Reasoning("Hm."), ONE]),
        (f"[THINK]{LOOK}{END}{ADD}", [Reasoning(LOOK), ADDED]),
        (f"[THINK]{LOOK}", [Reasoning(LOOK)]),
        (f"[THINK]{END}So.", [Content("So.")]),
        (f"So. [THINK]{ADD}", [Content("So. [THINK]"), ADDED]),
        (LOOK, [ONE]),
    ],
)
def test_o5_calls_behind_thinking(text: str, expected: list[Piece]) -> None:
    assert list(read(MAGISTRAL, text, prompt="[/INST]")) == expected


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (PLAIN, f"Wait.{CALLS}look{CALL_ID}abc{ARGS}{{}}{ADD}So."),
        (PLAIN, f"Wait.{CALLS} [{OLD_LOOK}, {OLD_ADD}]So."),
        (MAGISTRAL, f"[THINK]Hm.{END}{LOOK}"),
        (MAGISTRAL, "<think>Hm.</think>So."),
    ],
)
def test_o6_a_limit_at_any_place_leaves_no_mark_and_no_half_call(family: Family, text: str) -> None:
    check_cuts(family, text)


def test_without_tools_or_thinking() -> None:
    text = f"[THINK]Hm.{END}{LOOK}"
    assert read(MAGISTRAL, text, tools=()) == (Reasoning("Hm."), Content(LOOK))
    assert read(MAGISTRAL, text, reasoning=False) == (Content(f"[THINK]Hm.{END}"), ONE)


def test_its_marks_are_shown() -> None:
    assert {CALLS, ARGS, CALL_ID, "[THINK]", END} < MAGISTRAL.shown
