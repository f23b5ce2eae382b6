import json
from typing import Any

import pytest

from enginehouse.core.openai.parse import parse_chat, parse_completion
from enginehouse.domain.constraint import Constraint, Grammar, JsonObject, JsonSchema, OneOf, Regex, StructuralTag
from enginehouse.domain.errors import InvalidRequest

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
TAG = {"format": {"type": "any_text"}}
LEGACY_TAG = {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


def bodies(**more: Any) -> list[tuple[Any, bytes]]:
    return [
        (parse_chat, json.dumps({"model": "m", "messages": HELLO} | more).encode()),
        (parse_completion, json.dumps({"model": "m", "prompt": "x"} | more).encode()),
    ]


def named(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA} | more}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("response_format", {"type": "text"}, None),
        ("response_format", {"type": "text", "json_schema": None}, None),
        ("response_format", {"type": "json_object"}, JsonObject()),
        ("response_format", named(), JsonSchema(TEXT)),
        ("response_format", named(strict=True, description="d"), JsonSchema(TEXT)),
        ("response_format", named(strict=False, description=None), JsonSchema(TEXT)),
        (
            "response_format",
            {"type": "structural_tag", **TAG},
            StructuralTag('{"type":"structural_tag","format":{"type":"any_text"}}'),
        ),
        ("structured_outputs", {"json": SCHEMA}, JsonSchema(TEXT)),
        ("structured_outputs", {"json": json.dumps(SCHEMA), "regex": None}, JsonSchema(TEXT)),
        ("structured_outputs", {"json_object": True}, JsonObject()),
        ("structured_outputs", {"regex": "a+", "json_object": False}, Regex("a+")),
        ("structured_outputs", {"choice": ["a", "b"]}, OneOf(("a", "b"))),
        ("structured_outputs", {"grammar": "root ::= 'a'"}, Grammar("root ::= 'a'")),
        (
            "structured_outputs",
            {"structural_tag": json.dumps(TAG)},
            StructuralTag('{"type":"structural_tag","format":{"type":"any_text"}}'),
        ),
        ("guided_json", SCHEMA, JsonSchema(TEXT)),
        ("guided_json", TEXT, JsonSchema(TEXT)),
        ("guided_regex", "a+", Regex("a+")),
        ("guided_choice", ["a", "b"], OneOf(("a", "b"))),
        ("guided_grammar", "root ::= 'a'", Grammar("root ::= 'a'")),
        ("json_schema", TEXT, JsonSchema(TEXT)),
        ("regex", "a+", Regex("a+")),
        ("ebnf", "root ::= 'a'", Grammar("root ::= 'a'")),
    ],
)
def test_every_spelling_makes_its_constraint(name: str, value: Any, wanted: Constraint | None) -> None:
    for parse, body in bodies(**{name: value}):
        request = parse(body)
        assert request.sampling.constraint == wanted
        assert request.constraint_param == name or wanted is None


def test_older_structural_tags_are_taken_as_they_are() -> None:
    for parse, body in bodies(response_format={"type": "structural_tag", **LEGACY_TAG}):
        constraint = parse(body).sampling.constraint
        assert isinstance(constraint, StructuralTag)
        assert json.loads(constraint.tag) == {"type": "structural_tag", **LEGACY_TAG}


@pytest.mark.parametrize(
    ("name", "value", "where", "words"),
    [
        ("response_format", "json_object", "response_format", "is a string"),
        ("response_format", {}, "response_format.type", "is missing"),
        ("response_format", {"type": "yaml"}, "response_format.type", "is 'yaml'; it must be one of text"),
        ("response_format", {"type": ["text"]}, "response_format.type", "is a list"),
        ("response_format", {"type": "json_object", "schema": {}}, "response_format.schema", "not a known"),
        ("response_format", {"type": "json_schema"}, "response_format.json_schema", "is missing"),
        ("response_format", named(name=None), "response_format.json_schema.name", "is missing"),
        ("response_format", named(name="a b"), "response_format.json_schema.name", "is not a name"),
        ("response_format", named(schema=None), "response_format.json_schema.schema", "is missing"),
        ("response_format", named(schema="{}"), "response_format.json_schema.schema", "is a string"),
        ("response_format", named(strict="yes"), "response_format.json_schema.strict", "true or false"),
        ("response_format", named(schem={}), "response_format.json_schema.schem", "not a known"),
        (
            "response_format",
            named(schema={"properties": {"a": {"type": "text"}}}),
            "response_format.json_schema.schema.properties.a.type",
            "must be one of",
        ),
        ("response_format", {"type": "structural_tag"}, "response_format", "is no structural tag"),
        ("structured_outputs", {}, "structured_outputs", "has 0 constraints"),
        ("structured_outputs", [], "structured_outputs", "is a list"),
        ("structured_outputs", {"json": {}, "regex": "a"}, "structured_outputs", "has 2 constraints"),
        ("structured_outputs", {"jsn": {}}, "structured_outputs.jsn", "not a known"),
        ("structured_outputs", {"json": "{"}, "structured_outputs.json", "no JSON"),
        ("structured_outputs", {"json_object": 1}, "structured_outputs.json_object", "true or false"),
        ("structured_outputs", {"choice": "a"}, "structured_outputs.choice", "is a string"),
        ("structured_outputs", {"structural_tag": "{"}, "structured_outputs.structural_tag", "no JSON"),
        ("guided_json", {"type": 5}, "guided_json.type", "is 5"),
        ("guided_json", 5, "guided_json", "is a number"),
        ("guided_regex", "", "guided_regex", "an empty string"),
        ("guided_choice", [], "guided_choice", "a list of 0"),
        ("guided_choice", ["a", 5], "guided_choice[1]", "is a number"),
        ("guided_grammar", {"a": 1}, "guided_grammar", "is an object"),
        ("json_schema", "[" * 100_000, "json_schema", "no JSON"),
        ("regex", "a" * 70_000, "regex", "at most"),
    ],
)
def test_o8_a_wrong_constraint_is_named_with_its_place(name: str, value: Any, where: str, words: str) -> None:
    for parse, body in bodies(**{name: value}):
        with pytest.raises(InvalidRequest) as caught:
            parse(body)
        assert caught.value.param == where
        assert words in caught.value.message


def test_two_constraints_are_one_too_many() -> None:
    for parse, body in bodies(response_format={"type": "json_object"}, guided_regex="a"):
        with pytest.raises(InvalidRequest, match="'guided_regex' and 'response_format' both say"):
            parse(body)
    for parse, body in bodies(response_format={"type": "text"}, guided_regex="a"):
        assert parse(body).sampling.constraint == Regex("a")


def test_tools_and_a_form_of_the_answer_stand_together_only_where_both_can_be_kept() -> None:
    form = {"response_format": {"type": "json_object"}, "tools": TOOLS}
    parse, body = bodies(**form)[0]
    request = parse(body)
    assert (type(request.sampling.constraint), request.constraint_param) == (JsonSchema, "response_format")
    parse, body = bodies(guided_json={}, tools=TOOLS)[0]
    assert parse(body).constraint_param == "guided_json"
    parse, body = bodies(guided_regex="a", tools=TOOLS)[0]
    with pytest.raises(InvalidRequest, match="none of 'tools' could be called") as caught:
        parse(body)
    assert (caught.value.param, caught.value.code) == ("guided_regex", "unsupported_value")
    parse, body = bodies(**form, tool_choice="none")[0]
    assert parse(body).sampling.constraint == JsonObject()
    parse, body = bodies(**form, tool_choice="required")[0]
    request = parse(body)
    assert (type(request.sampling.constraint), request.constraint_param) == (JsonSchema, "tool_choice")
    parse, body = bodies(guided_regex="a", tools=TOOLS, tool_choice="required")[0]
    with pytest.raises(InvalidRequest, match="'guided_regex' and 'tool_choice' both say"):
        parse(body)
