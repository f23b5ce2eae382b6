import json
from typing import Any

import jsonschema
import pytest

from enginehouse.core.openai.parse import parse_chat
from enginehouse.core.openai.requests import ChatRequest, ToolChoice, ToolChoiceMode
from enginehouse.core.output.pieces import Tool
from enginehouse.domain.constraint import JsonSchema
from enginehouse.domain.errors import InvalidRequest

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NODE = {
    "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "additionalProperties": False}},
    "properties": {"first": {"$ref": "#/$defs/n"}},
}


def tool(name: str = "weather", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": CITY} | more}


def ask(**more: Any) -> ChatRequest:
    return parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]} | more).encode())


def schema(**more: Any) -> dict[str, Any]:
    request = ask(**more)
    assert isinstance(request.sampling.constraint, JsonSchema)
    assert request.constraint_param == "tool_choice"
    found: dict[str, Any] = json.loads(request.sampling.constraint.schema)
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def valid(found: dict[str, Any], instance: Any) -> bool:
    return jsonschema.Draft202012Validator(found).is_valid(instance)


def test_tools_are_offered_to_the_model_and_to_what_reads_its_answer() -> None:
    full = tool(description="d", strict=True, returns={"type": "string"})
    request = ask(tools=[full, {"function": {"name": "now"}}])
    assert request.tools == (Tool("weather", CITY), Tool("now", {"type": "object", "properties": {}}))
    assert request.tool_choice == ToolChoice(ToolChoiceMode.AUTO)
    assert request.parallel_tool_calls
    assert request.sampling.constraint is None
    shown = request.template_options["tools"]
    assert json.dumps(shown[0]) == json.dumps(  # in the order of the client, and without what is not for the model
        {
            "type": "function",
            "function": {"name": "weather", "parameters": CITY, "description": "d", "returns": {"type": "string"}},
        }
    )
    assert shown[1]["function"] == {"name": "now", "parameters": {"type": "object", "properties": {}}}
    assert not ask(tools=[tool()], parallel_tool_calls=False).parallel_tool_calls


def test_with_choice_none_nothing_is_offered() -> None:
    request = ask(tools=[tool()], tool_choice="none")
    assert request.tools == ()
    assert "tools" not in request.template_options
    assert request.tool_choice.mode is ToolChoiceMode.NONE
    assert ask(tools=[], tool_choice="auto").template_options == {"add_generation_prompt": True}


def test_some_of_the_tools_may_be_allowed() -> None:
    def allowed(mode: str, *names: str) -> dict[str, Any]:
        named = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}

    tools = [tool("a"), tool("b"), tool("c")]
    request = ask(tools=tools, tool_choice=allowed("auto", "c", "a"))
    assert [one.name for one in request.tools] == ["a", "c"]
    assert [one["function"]["name"] for one in request.template_options["tools"]] == ["a", "c"]
    assert request.tool_choice.mode is ToolChoiceMode.AUTO
    found = schema(tools=tools, tool_choice=allowed("required", "b"))
    assert valid(found, [{"name": "b", "parameters": {"city": "x"}}])
    assert not valid(found, [{"name": "a", "parameters": {"city": "x"}}])


def test_required_calls_are_a_list_of_names_with_their_arguments() -> None:
    found = schema(tools=[tool(), tool("tree", parameters=NODE)], tool_choice="required")
    weather = {"name": "weather", "parameters": {"city": "x"}}
    tree = {"name": "tree", "parameters": {"first": {"n": {"n": {}}}}}
    for calls in ([weather], [weather, tree], [tree, tree, weather]):
        assert valid(found, calls)
    for wrong in (
        [],
        {},
        weather,
        [{"name": "other", "parameters": {}}],
        [weather | {"parameters": {}}],
        [tree | {"parameters": {"first": {"m": 1}}}],
        [tree | {"parameters": {"first": {"n": 5}}}],
        [tree | {"parameters": []}],
        [weather | {"more": 1}],
    ):
        assert not valid(found, wrong)
    one = schema(tools=[tool()], tool_choice="required", parallel_tool_calls=False)
    assert valid(one, [weather])
    assert not valid(one, [weather, weather])


def test_a_named_tool_leaves_its_arguments() -> None:
    choice = {"type": "function", "function": {"name": "tree"}}
    request = ask(tools=[tool(), tool("tree", parameters=NODE)], tool_choice=choice)
    assert request.tool_choice == ToolChoice(ToolChoiceMode.NAMED, "tree")
    assert [one.name for one in request.tools] == ["weather", "tree"]
    found = schema(tools=[tool(parameters={"type": 5}), tool("tree", parameters=NODE)], tool_choice=choice)
    assert valid(found, {"first": {"n": {}}})
    assert not valid(found, {"first": {"m": {}}})
    assert not valid(found, ["first"]), "arguments are an object though the schema does not say so"
    assert schema(tools=[{"function": {"name": "now"}}], tool_choice="required")["items"]["properties"]["name"] == {
        "type": "string",
        "enum": ["now"],
    }


@pytest.mark.parametrize(
    ("more", "where", "words"),
    [
        ({"tools": {}}, "tools", "is an object"),
        ({"tools": [5]}, "tools[0]", "is a number"),
        (
            {"tools": [tool(), {"type": "web_search"}]},
            "tools[1].type",
            "is 'web_search'; only tools of type 'function'",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "is missing"),
        ({"tools": [{"function": "f"}]}, "tools[0].function", "is a string"),
        ({"tools": [tool(name="")]}, "tools[0].function.name", "is not a name"),
        ({"tools": [tool(name="a b")]}, "tools[0].function.name", "is not a name"),
        ({"tools": [tool(name="a" * 129)]}, "tools[0].function.name", "is not a name"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name", "is missing"),
        ({"tools": [{"function": {"name": 5}}]}, "tools[0].function.name", "is a number"),
        ({"tools": [tool(description=5)]}, "tools[0].function.description", "is a number"),
        ({"tools": [tool(strict="yes")]}, "tools[0].function.strict", "is a string"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "is a list"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name", "earlier tool"),
        ({"tools": [tool(f"t{at}") for at in range(1025)]}, "tools", "at most 1024"),
        ({"tool_choice": "required"}, "tool_choice", "there are no 'tools'"),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice", "is 'any'; it must be none, auto"),
        ({"tools": [tool()], "tool_choice": 5}, "tool_choice", "is a number"),
        ({"tools": [tool()], "tool_choice": {}}, "tool_choice", "is an object"),
        ({"tools": [tool()], "tool_choice": {"type": "custom"}}, "tool_choice.type", "only tools of type"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice", "must be an object"),
        (
            {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice.function.name",
            "not the name of one of 'tools'",
        ),
        (
            {"tools": [tool()], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}},
            "tool_choice.allowed_tools",
            "must be an object with",
        ),
        (
            {
                "tools": [tool()],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [5]}},
            },
            "tool_choice.allowed_tools.tools[0]",
            "must be an object",
        ),
        (
            {
                "tools": [tool(), tool("f", parameters={"properties": {"a": {"type": "str"}}})],
                "tool_choice": "required",
            },
            "tools[1].function.parameters.properties.a.type",
            "must be one of",
        ),
        ({"functions": [{"name": "f"}]}, "functions", "give 'tools'"),
        ({"function_call": {"name": "f"}}, "function_call", "give 'tool_choice'"),
    ],
)
def test_o8_wrong_tools_are_named_with_their_place(more: Any, where: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(**more)
    assert caught.value.param == where
    assert words in caught.value.message
