"""Tools beside a form of the text: the answer is calls or text of the form, and is read as what it is."""

import json
from itertools import pairwise
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.openai.either import answer_family, either_schema
from enginehouse.core.openai.requests import ChatRequest, ToolChoice, ToolChoiceMode
from enginehouse.core.openai.tools import read_tools
from enginehouse.core.output.families.harmony import HARMONY
from enginehouse.core.output.family import Family, Thinking
from enginehouse.core.output.pieces import Content, ParserInput, Piece, Reasoning, Tool, ToolCall, joined
from enginehouse.domain.constraint import JsonObject, JsonSchema, StructuralTag
from enginehouse.domain.errors import InvalidRequest
from enginehouse.domain.request import Sampling

THINKS = Family(Thinking("<think>", "</think>"))
FORM = JsonSchema('{"type":"object","properties":{"name":{"type":"string"},"a":{"type":"integer"}},"required":["a"]}')
CALL = '{"name": "f", "parameters": {"x": "]}"}}'
AGAIN = '{"name":"g","parameters":{}}'
F, G = ToolCall("f", '{"x": "]}"}'), ToolCall("g", "{}")


def request(**how: Any) -> ChatRequest:
    given_ = {"tools": (Tool("f", {}), Tool("g", {})), "sampling": Sampling(constraint=FORM), **how}
    return ChatRequest(model="m", messages=(), **given_)


def read(text: str, *cuts: int, usual: Family | None = THINKS, cut: bool = False) -> tuple[Piece, ...]:
    family = answer_family(request(), usual)
    assert family is not None
    parser = family.parser(ParserInput((Tool("f", {}), Tool("g", {}))))
    pieces: list[Piece] = []
    for start, end in pairwise(sorted({0, len(text), *[place % (len(text) + 1) for place in cuts]})):
        pieces.extend(parser.push(text[start:end]))
    return joined([*pieces, *parser.finish(cut=cut)])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (CALL, (F,)),
        (f"[{CALL}]", (F,)),
        (f" [\n{CALL} ,\n{AGAIN} ]\n", (F, G)),
        (f"<think>hm</think>{CALL}", (Reasoning("hm"), F)),
        ('{"a": 1}', (Content('{"a": 1}'),)),
        ('<think>hm</think>{"a": 1}', (Reasoning("hm"), Content('{"a": 1}'))),
        ('{"name": "Ann", "a": 1}', (Content('{"name": "Ann", "a": 1}'),)),
        ('{"name": "f", "a": 1}', (Content('{"name": "f", "a": 1}'),)),
        ('{"name": 5}', (Content('{"name": 5}'),)),
        ('[{"a": 1}, 2]', (Content('[{"a": 1}, 2]'),)),
        ("[]", (Content("[]"),)),
        ('"text"', (Content('"text"'),)),
        ("", ()),
    ],
)
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_o5_it_is_read_as_what_it_is_however_it_is_cut(text: str, wanted: tuple[Piece, ...], cuts: list[int]) -> None:
    assert read(text, *cuts) == wanted


@given(st.integers(0, len(CALL) - 1))
def test_o6_of_a_call_that_a_limit_cut_no_part_of_the_arguments_comes_out(at: int) -> None:
    if at >= CALL.index(","):
        assert read(CALL[:at], cut=True) == ()
    assert read(f"[{AGAIN},{CALL[:at]}", cut=True) == (G,)


def test_text_that_a_limit_cut_stays_and_streams() -> None:
    assert read('{"a": [1, ', cut=True) == (Content('{"a": [1, '),)
    family = answer_family(request(), None)
    assert family is not None
    parser = family.parser(ParserInput())
    assert joined(parser.push('{"a')) == (Content('{"a'),)
    assert joined(parser.push('": 1')) == (Content('": 1'),)


def test_o6_the_token_that_ends_the_answer_is_no_content_though_it_shows() -> None:
    assert read(f"{CALL}<|return|>", usual=HARMONY) == (F,)
    assert read('{"a": 1}<|return|>', usual=HARMONY) == (Content('{"a": 1}'),)


def test_only_answers_that_are_held_to_either_are_read_so() -> None:
    for how in (
        {"tools": ()},
        {"sampling": Sampling()},
        {"sampling": Sampling(constraint=StructuralTag("{}"))},
    ):
        assert answer_family(request(**how), THINKS) is THINKS
    forced = answer_family(request(tool_choice=ToolChoice(ToolChoiceMode.REQUIRED)), THINKS)
    assert type(forced) is not type(answer_family(request(), THINKS))


def tools(parameters: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


def test_the_schema_takes_calls_and_the_form_and_nothing_else() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    offer = read_tools(tools(tree), None)
    form = JsonSchema(json.dumps({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}))
    check = jsonschema.Draft202012Validator(json.loads(either_schema(form, offer, True, "form").schema)).is_valid
    call = {"name": "f", "parameters": {"next": {"next": {}}}}
    assert all(map(check, (call, [call], [call, call], 5)))
    assert not any(map(check, ([], "a", {"name": "f"}, {"name": "f", "parameters": {"next": 5}}, {"name": "g"})))
    alone = jsonschema.Draft202012Validator(json.loads(either_schema(form, offer, False, "form").schema)).is_valid
    assert alone(call)
    assert not alone([call])
    anything = json.loads(either_schema(JsonObject(), offer, False, "form").schema)
    assert jsonschema.Draft202012Validator(anything).is_valid({"b": 1})


def test_tools_that_calls_could_not_keep_to_are_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        either_schema(FORM, read_tools(tools({"type": "obj"}), None), True, "form")
    assert refused.value.param == "tools[0].function.parameters.type"
