"""gpt-oss beyond the conformance suite's fixtures."""

import pytest

from enginehouse.core.output.families.harmony import ENDS, HARMONY
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall
from tests.unit.core.output.readings import check_cuts, read

ASSISTANT = "<|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
PREAMBLE = "<|channel|>commentary<|message|>"
LOOK = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
ONE = ToolCall("look", '{"a": 1}')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (FINAL, []),
        (f"{FINAL}So.", [Content("So.")]),
        (f"{FINAL}So.<|return|>", [Content("So.")]),
        (f"{ANALYSIS}Hm.<|end|>{ASSISTANT}{FINAL}So.", [Reasoning("Hm."), Content("So.")]),
        (f"{ANALYSIS}1<|end|>{ASSISTANT}{ANALYSIS}2<|end|>", [Reasoning("12")]),
        (f"{ANALYSIS} \n日本 🌸\n<|end|>", [Reasoning(" \n日本 🌸\n")]),
        (f'{LOOK}{{"a": 1}}<|call|>', [ONE]),
        (f'{LOOK}{{"a": 1}}', [ONE]),
        (f'{LOOK}\n {{"a": 1}} \n<|call|>', [ONE]),
        (f"{LOOK}{{}}<|call|>", [ToolCall("look", "{}")]),
        (f"{LOOK}<|call|>", [ToolCall("look", "{}")]),
        (f"{LOOK} ", [ToolCall("look", "{}")]),
        (f'{LOOK}"{{\\"a\\": 1}}"', [ONE]),
        (f'{LOOK}{{"a": {{"b": ["ü", {{}}]}}}}', [ToolCall("look", '{"a": {"b": ["ü", {}]}}')]),
        (
            f'{ANALYSIS}Hm.<|end|>{ASSISTANT}{PREAMBLE}Wait.<|end|>{ASSISTANT}{LOOK}{{"a": 1}}<|call|>'
            f"{ASSISTANT} to=functions.add<|channel|>commentary json<|message|>{{}}<|call|>{ASSISTANT}{FINAL}So.",
            [Reasoning("Hm."), Content("Wait."), ONE, ToolCall("add", "{}"), Content("So.")],
        ),
        # Whom a message is for.
        (' to=functions.look<|channel|>analysis<|message|>{"a": 1}', [ONE]),
        ('to=functions.look<|channel|>commentary<|message|>{"a": 1}', [ONE]),
        (f'<|start|>functions.look{LOOK}{{"a": 1}}', [ONE]),
        ('<|channel|>commentary to=look<|message|>{"a": 1}', [ONE]),
        ("<|channel|>commentary to=functions.other<|message|>{}", [ToolCall("other", "{}")]),
        ("<|channel|>commentary to=functions.a-b.c<|message|>{}", [ToolCall("a-b.c", "{}")]),
        ("<|channel|>final to=user<|message|>So.", [Content("So.")]),
        ("<|channel|>commentary to=all<|message|>So.", [Content("So.")]),
        ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", []),
        (f"<|channel|>analysis to=python<|message|>1 <|end|> 1<|end|>{ASSISTANT}{FINAL}2", [Content("2")]),
        ("<|channel|>commentary to=functions.<|message|>{}", []),
        # What is no call is text: of the message, not of those behind it.
        (f'{LOOK}{{"a": 1<|call|>', [Content('{"a": 1')]),
        (f"{LOOK}look!<|call|>", [Content("look!")]),
        (f"{LOOK}[1]<|call|>", [Content("[1]")]),
        (f'{LOOK}{{"a<|call|>', [Content('{"a')]),
        (f"{LOOK}no<|end|>{ASSISTANT}{FINAL}So.", [Content("noSo.")]),
        # Marks that a message mentions.
        (
            f'{LOOK}{{"a": "<|end|>{ASSISTANT}{FINAL}"}}<|call|>',
            [ToolCall("look", f'{{"a": "<|end|>{ASSISTANT}{FINAL}"}}')],
        ),
        (
            f"{FINAL}It ends with <|return|>, or <|end|><|message|>.",
            [Content("It ends with <|return|>, or <|end|><|message|>.")],
        ),
        (f"{FINAL}<|end|><|end|>", [Content("<|end|>")]),
        (f"{FINAL}So.<|end|><|sta", [Content("So.")]),
        (f"{FINAL}<|start|>assistant", [Content("<|start|>assistant")]),
        # Headers that went wrong.
        (f"<|channel|>?<|end|>{ASSISTANT}{FINAL}So.", [Content("So.")]),
        (f"<|channel|>commentary{ASSISTANT}{FINAL}So.", [Content("So.")]),
        (f"<|channel|>commentary to=assistant{FINAL}So.", [Content("So.")]),
        (f"{ASSISTANT}{FINAL}So.", [Content("So.")]),
        ("<|message|>Hm.", [Reasoning("Hm.")]),
        ("<|channel|>other<|message|>Hm.", [Reasoning("Hm.")]),
        ("<|channel|> final <|message|>So.", [Content("So.")]),
        ("<|constrain|>json<|channel|>final<|message|>{}", [Content("{}")]),
        ('<|channel|>final {"a": 1}', [Content('{"a": 1}')]),
        ("<|channel|>analysis Hm.", []),
        ("<|channel|>final", []),
        # No header at all: more of a text in the prompt.
        (" So.", [Content(" So.")]),
        ("<|chan", [Content("<|chan")]),
    ],
)
def test_o5_messages(text: str, expected: list[Piece]) -> None:
    assert list(read(HARMONY, text, prompt=ASSISTANT)) == expected


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("", f"{ANALYSIS}Hm.", [Reasoning("Hm.")]),
        (f"<|end|>{ASSISTANT}{ANALYSIS}", f"Hm.<|end|>{ASSISTANT}{FINAL}So.", [Reasoning("Hm."), Content("So.")]),
        (f"<|end|>{ASSISTANT}{FINAL}It i", "s. <|return|>", [Content("s. ")]),
        (f"{FINAL}It i", "s.", [Content("s.")]),
        ("the end of a long text", " so", [Content(" so")]),
        (f"{ASSISTANT} to=functions.look", '<|channel|>commentary<|message|>{"a": 1}', [ONE]),
        (f"{ASSISTANT} to=functions.look<|channel|>commentary json<|message|>", '{"a": 1}', [ONE]),
        ("<|start|>user to=functions.look<|message|>Hi<|end|>", f"{ASSISTANT}{FINAL}So.", [Content("So.")]),
        ("<|start|>user to=functions.look<|message|>Hi<|end|>", f"{FINAL}{{}}", [Content("{}")]),
        ("the end of a text to=functions.look", f"{FINAL}{{}}", [Content("{}")]),
    ],
)
def test_o5_an_answer_goes_on_where_the_prompt_ends(prompt: str, text: str, expected: list[Piece]) -> None:
    assert list(read(HARMONY, text, prompt=prompt)) == expected


@pytest.mark.parametrize(
    "text",
    [
        f'{ANALYSIS}Hm.<|end|>{ASSISTANT}{PREAMBLE}Wait.<|end|>{ASSISTANT}{LOOK}{{"a": {{"b": "c"}}}}<|call|>',
        f'{LOOK}{{"a": 1}}<|call|>{ASSISTANT}{LOOK}{{"a": 2}}<|call|>{ASSISTANT}{FINAL}So.<|return|>',
    ],
)
def test_o6_a_limit_at_any_place_leaves_no_mark_and_no_half_call(text: str) -> None:
    check_cuts(HARMONY, text, prompt=ASSISTANT)


def test_o6_a_limit_in_a_header_leaves_nothing() -> None:
    assert read(HARMONY, "<|channel|>final json", prompt=ASSISTANT, cut=True) == ()


def test_without_tools_or_thinking() -> None:
    text = f"{ANALYSIS}Hm.<|end|>{ASSISTANT}{LOOK}{{}}<|call|>{ASSISTANT}{FINAL}So."
    assert read(HARMONY, text, prompt=ASSISTANT, tools=()) == (Reasoning("Hm."), Content("{}So."))
    assert read(HARMONY, text, prompt=ASSISTANT, reasoning=False) == (
        Content("Hm."),
        ToolCall("look", "{}"),
        Content("So."),
    )


def test_its_marks_are_shown() -> None:
    assert {*ENDS, "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"} == HARMONY.shown
