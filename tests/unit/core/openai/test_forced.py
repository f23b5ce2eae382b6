import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.openai.forced import forced_family
from enginehouse.core.openai.requests import ChatRequest, ToolChoice, ToolChoiceMode
from enginehouse.core.output.families.harmony import HARMONY
from enginehouse.core.output.family import Family, Thinking
from enginehouse.core.output.pieces import Content, ParserInput, Piece, Reasoning, Tool, ToolCall, joined

THINKS = Family(Thinking("<think>", "</think>"))
REQUIRED = ToolChoice(ToolChoiceMode.REQUIRED)
NAMED = ToolChoice(ToolChoiceMode.NAMED, "f")
F = '{"name": "f", "parameters": {"a": [1, "]}"]}}'
G = '{"name":"g","parameters":{}}'
CALL_F = ToolCall("f", '{"a": [1, "]}"]}')
CALL_G = ToolCall("g", "{}")


def read(
    choice: ToolChoice,
    text: str,
    *cuts: int,
    usual: Family | None = THINKS,
    tail: str = "",
    cut: bool = False,
    reasoning: bool = True,
) -> tuple[Piece, ...]:
    request = ChatRequest(model="m", messages=(), tool_choice=choice)
    family = forced_family(request, usual)
    assert family is not None
    parser = family.parser(ParserInput((Tool("f", {}),), tail, reasoning))
    places = sorted({0, len(text), *[place % (len(text) + 1) for place in cuts]})
    pieces: list[Piece] = []
    for start, end in pairwise(places):
        pieces.extend(parser.push(text[start:end]))
    return joined([*pieces, *parser.finish(cut=cut)])


def test_only_answers_that_had_to_be_calls_are_read_so() -> None:
    for mode in (ToolChoiceMode.AUTO, ToolChoiceMode.NONE):
        request = ChatRequest(model="m", messages=(), tool_choice=ToolChoice(mode))
        assert forced_family(request, THINKS) is THINKS
        assert forced_family(request, None) is None
    family = forced_family(ChatRequest(model="m", messages=(), tool_choice=REQUIRED), THINKS)
    assert family is not None
    assert family.shown == {"<think>", "</think>"}


@pytest.mark.parametrize(
    ("choice", "text", "wanted"),
    [
        (REQUIRED, f"[{F}]", (CALL_F,)),
        (REQUIRED, f" [\n {F} ,\n{G}\n]\n", (CALL_F, CALL_G)),
        (REQUIRED, f"<think>hm</think>\n\n[{F}]", (Reasoning("hm"), CALL_F)),
        (NAMED, '{"a": "}"}', (ToolCall("f", '{"a": "}"}'),)),
        (NAMED, '<think>hm</think>{"a": 1}', (Reasoning("hm"), ToolCall("f", '{"a": 1}'))),
        (NAMED, ' {"a": 1} ', (ToolCall("f", '{"a": 1}'),)),
        # What an engine writes that held it to nothing.
        (REQUIRED, "No.", (Content("No."),)),
        (REQUIRED, "[1, 2]", (Content("[1, 2]"),)),
        (REQUIRED, f"[{F}, 5]", (CALL_F, Content(", 5]"))),
        (REQUIRED, f"[{F}] and more", (CALL_F, Content("and more"))),
        (REQUIRED, f"{F}", (Content(F),)),
        (NAMED, "{a: 1}", (Content("{a: 1}"),)),
        (NAMED, '{"a": ', (Content('{"a":'),)),
        (NAMED, '["a"]', (Content('["a"]'),)),
        (REQUIRED, "", ()),
    ],
)
@given(cuts=st.lists(st.integers(0, 1000), max_size=8))
def test_o5_calls_come_of_the_json_however_it_is_cut(
    choice: ToolChoice, text: str, wanted: tuple[Piece, ...], cuts: list[int]
) -> None:
    assert read(choice, text, *cuts) == wanted


@pytest.mark.parametrize("tail", ["<think>", "<think>\n"])
def test_an_answer_that_is_held_from_the_first_token_has_no_thinking_whatever_the_prompt_ends_with(tail: str) -> None:
    assert read(REQUIRED, f"[{F}]", tail=tail) == (CALL_F,)
    assert read(NAMED, '\n{"a": 1}', 1, tail=tail) == (ToolCall("f", '{"a": 1}'),)
    assert read(REQUIRED, f"hm</think>[{F}]", tail=tail) == (Reasoning("hm"), CALL_F)


def test_without_a_family_it_is_the_json_alone() -> None:
    assert read(REQUIRED, f"[{F}]", usual=None) == (CALL_F,)
    assert read(REQUIRED, f"<think>hm</think>[{F}]", usual=None) == (Content(f"<think>hm</think>[{F}]"),)


@pytest.mark.parametrize(
    ("choice", "text", "wanted"),
    [
        (REQUIRED, f"[{F}, {G[:-1]}", (CALL_F,)),
        (REQUIRED, f"[{F}", (CALL_F,)),
        (REQUIRED, "[", ()),
        (NAMED, '{"a": 1', ()),
        (REQUIRED, "<think>hm", (Reasoning("hm"),)),
    ],
)
def test_o6_of_a_call_that_was_cut_nothing_comes_out(choice: ToolChoice, text: str, wanted: Any) -> None:
    assert read(choice, text, cut=True) == wanted


@given(
    st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=4) | st.integers(), max_size=3), max_size=4),
    st.lists(st.integers(0, 1000), max_size=8),
)
def test_o5_joined_arguments_are_what_was_written(arguments: list[dict[str, Any]], cuts: list[int]) -> None:
    text = json.dumps([{"name": "f", "parameters": one} for one in arguments])
    calls = read(REQUIRED, text, *cuts)
    assert [json.loads(call.arguments) for call in calls if isinstance(call, ToolCall)] == arguments


@pytest.mark.parametrize(("choice", "text"), [(REQUIRED, f"[{F}]"), (NAMED, '{"a": [1, "]}"]}')])
@given(cuts=st.lists(st.integers(0, 1000), max_size=8))
def test_o6_the_token_that_ends_the_answer_is_no_content_though_it_shows(
    choice: ToolChoice, text: str, cuts: list[int]
) -> None:
    """vLLM sends it like any other, and gpt-oss's mean something to its family, so that they come as text."""
    for end in ("<|return|>", "<|call|>"):
        assert read(choice, text + end, *cuts, usual=HARMONY) == (CALL_F,)
        assert read(choice, text + end + " and more", *cuts, usual=HARMONY) == (CALL_F, Content("and more"))
