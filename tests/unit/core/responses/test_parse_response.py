"""Bodies of `/v1/responses`: what becomes of them, and what is refused in which words."""

import json
from typing import Any

import msgspec
import pytest

from enginehouse.core.api.sealed import sealed
from enginehouse.core.openai.bounds import MAX_MESSAGES
from enginehouse.core.openai.requests import ToolChoice, ToolChoiceMode
from enginehouse.core.output.pieces import Tool
from enginehouse.core.responses.parse import parse_response
from enginehouse.core.responses.request import ResponseRequest
from enginehouse.domain.constraint import JsonObject, JsonSchema
from enginehouse.domain.errors import InvalidRequest

F: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
G: dict[str, Any] = {"type": "function", "name": "g", "description": "G", "strict": True}
ANY: dict[str, Any] = {"type": "object", "properties": {}}


def read(**fields: Any) -> ResponseRequest:
    return parse_response(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def test_a_text_is_what_the_user_says_and_instructions_come_before_it() -> None:
    assert read().messages == ({"role": "user", "content": "hi"},)
    assert read(instructions="Be brief.").messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    )


def test_items_become_messages() -> None:
    request = read(
        input=[
            {"role": "developer", "content": "D"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "see", "annotations": [], "logprobs": []}],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]},
        ]
    )

    def call(name: str, arguments: object) -> dict[str, Any]:
        return {"id": name, "type": "function", "function": {"name": "f", "arguments": arguments}}

    assert request.messages == (
        {"role": "developer", "content": "D"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "see",
            "reasoning_content": "hm",
            "tool_calls": [call("c1", {"a": 1}), call("c2", {})],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "user", "content": "x\ny"},
    )


def test_parameters() -> None:
    request = read(
        stream=True,
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        user="u",
        prompt_cache_key="k",
        top_logprobs=3,
        reasoning={"effort": "high", "summary": "auto"},
        metadata={"a": "b"},
        include=["reasoning.encrypted_content"],
        store=False,
        truncation="disabled",
    )
    assert (request.stream, request.max_tokens, request.max_tokens_param) == (True, 9, "max_output_tokens")
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.logprobs) == (0.5, 0.9, 3)
    assert (request.user, request.prompt_cache_key, request.prompt_param) == ("u", "k", "input")
    assert request.template_options["chat_template_kwargs"] == {"reasoning_effort": "high"}
    repeated = request.repeated
    assert (repeated["max_output_tokens"], repeated["metadata"], repeated["store"]) == (9, {"a": "b"}, False)
    assert repeated["reasoning"] == {"effort": "high", "summary": None}


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"top_logprobs": 0}, None),
        ({"top_logprobs": 2}, 2),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 5}, 5),
    ],
)
def test_o10_when_likelihoods_are_asked_for(fields: dict[str, Any], logprobs: int | None) -> None:
    assert read(**fields).sampling.logprobs == logprobs


@pytest.mark.parametrize(
    ("choice", "read_as", "offered"),
    [
        (None, ToolChoice(ToolChoiceMode.AUTO), "fg"),
        ("auto", ToolChoice(ToolChoiceMode.AUTO), "fg"),
        ("none", ToolChoice(ToolChoiceMode.NONE), ""),
        ("required", ToolChoice(ToolChoiceMode.REQUIRED), "fg"),
        ({"type": "function", "name": "g"}, ToolChoice(ToolChoiceMode.NAMED, "g"), "fg"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
            ToolChoice(ToolChoiceMode.AUTO),
            "g",
        ),
    ],
)
def test_tools_and_which_of_them_may_be_called(choice: Any, read_as: ToolChoice, offered: str) -> None:
    request = read(tools=[F, G], tool_choice=choice)
    assert request.tool_choice == read_as
    assert [tool.name for tool in request.tools] == list(offered)
    forced = read_as.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED)
    assert isinstance(request.sampling.constraint, JsonSchema) is forced
    assert request.constraint_param == ("tool_choice" if forced else "text.format")
    in_template = request.template_options.get("tools", ())
    assert [tool["function"]["name"] for tool in in_template] == list(offered)
    assert msgspec.to_builtins(request.repeated["tool_choice"]) == (choice or "auto")


def test_what_agents_send_besides_and_what_asks_for_nothing_is_taken() -> None:
    search = {"type": "web_search", "external_web_access": False, "filters": {"allowed_domains": ["x"]}}
    request = read(
        tools=[{**F, "strict": False, "defer_loading": False, "allowed_callers": ["direct"]}, search],
        tool_choice="auto",
        include=["web_search_call.action.sources"],
        client_metadata={"installation": "x"},
        max_tool_calls=3,
        reasoning={"effort": "medium", "context": "auto", "mode": "standard", "summary": "auto"},
        service_tier="auto",
        store=False,
    )
    assert [tool.name for tool in request.tools] == ["f"]
    assert [tool["name"] for tool in msgspec.to_builtins(request.repeated["tools"])] == ["f"]
    assert not request.seals


def test_tools_of_a_namespace_have_it_in_the_name_that_the_model_sees() -> None:
    space = {"type": "namespace", "name": "agents", "description": "For agents.", "tools": [F, G]}
    used = {"type": "function_call", "call_id": "c", "namespace": "agents", "name": "g", "arguments": "{}"}
    request = read(tools=[F, space], input=[{"role": "user", "content": "x"}, used])
    assert [tool.name for tool in request.tools] == ["f", "agents__f", "agents__g"]
    shown = [tool["function"].get("description") for tool in request.template_options["tools"]]
    assert shown == [None, "For agents.", "G"]
    assert request.names == {"agents__f": ("agents", "f"), "agents__g": ("agents", "g")}
    assert request.messages[1]["tool_calls"][0]["function"]["name"] == "agents__g"
    assert [tool["type"] for tool in msgspec.to_builtins(request.repeated["tools"])] == ["function", "namespace"]


def test_thinking_comes_back_in_whatever_form_the_client_has_kept_it() -> None:
    for kept, thought in (
        ({"encrypted_content": sealed("hm é")}, "hm é"),
        ({"encrypted_content": sealed("x"), "content": [{"type": "reasoning_text", "text": "hm"}]}, "hm"),
        ({"encrypted_content": "foreign", "content": [{"type": "reasoning_text", "text": "hm"}]}, "hm"),
        ({"encrypted_content": None, "summary": [{"type": "summary_text", "text": "s"}]}, "s"),
        ({"encrypted_content": ""}, None),
        ({"content": None}, None),
    ):
        said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
        request = read(input=[{"type": "reasoning", "summary": [], **kept}, said])
        assert request.messages[0].get("reasoning_content") == thought
        assert request.messages[0]["content"] == "no"
    assert read(include=["reasoning.encrypted_content"]).seals


def test_a_tool_without_parameters_takes_none() -> None:
    request = read(tools=[G])
    assert request.tools == (Tool("g", ANY),)
    function = {"name": "g", "description": "G", "parameters": ANY}
    assert request.template_options["tools"] == ({"type": "function", "function": function},)


@pytest.mark.parametrize(
    ("form", "constraint"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonObject()),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            JsonSchema('{"type":"object"}'),
        ),
    ],
)
def test_the_form_of_the_text(form: dict[str, Any], constraint: object) -> None:
    assert read(text={"format": form}).sampling.constraint == constraint


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": []}, "input", "at least one item"),
        ({"input": [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)}, "input", "at most"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "nothing that the model could read"),
        ({"input": [3]}, "input[0]", "is a number"),
        ({"input": [{"type": 3}]}, "input[0].type", "is a number"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "'item_reference'"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "'tool'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "'input_image'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0].type",
            "'input_file'",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1]"}]},
            "input[0].arguments",
            "holds a list",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "is missing"),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}]},
            "input[0].encrypted_content",
            "is not of an answer of this server",
        ),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "plain.%"}]},
            "input[0].encrypted_content",
            "is not of an answer of this server",
        ),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type", "'local_shell'"),
        ({"tools": [{"type": "custom", "name": "apply_patch"}]}, "tools[0].type", "'custom'"),
        ({"tools": [{**F, "defer_loading": True}]}, "tools[0].defer_loading", "must be false"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "there are no 'tools'"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "'function'"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "'mcp'"),
        ({"tools": [{**F, "name": "a b"}]}, "tools[0].name", "letters"),
        ({"tools": [F, F]}, "tools[1].name", "earlier tool"),
        (
            {"tools": [{"type": "web_search"}, G, {"type": "namespace", "name": "n", "tools": [F, F]}]},
            "tools[2].tools[1].name",
            "earlier tool",
        ),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]},
            "tools[0].tools[0].type",
            "'custom'",
        ),
        ({"tools": [F], "tool_choice": {"type": "function", "name": "h"}}, "tool_choice.name", "not the name"),
        (
            {
                "tools": [F],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "h"}]},
            },
            "tool_choice.tools[0].name",
            "not the name",
        ),
        ({"tool_choice": "required"}, "tool_choice", "there are no 'tools'"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type", "'file_search'"),
        (
            {"tools": [{**F, "parameters": {"type": "obj"}}], "tool_choice": "required"},
            "tools[0].parameters.type",
            "must be one of",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "x"}}}},
            "text.format.schema.type",
            "must be one of",
        ),
        (
            {"tools": [{**F, "parameters": {"type": "obj"}}], "text": {"format": {"type": "json_object"}}},
            "tools[0].parameters.type",
            "must be one of",
        ),
        ({"include": ["everything"]}, "include[0]", "'everything'"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "'standard'"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort", "'some'"),
        ({"store": True}, "store", "nothing is kept here"),
        ({"background": True}, "background", "nothing is kept here"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation"),
        ({"conversation": "conv_1"}, "conversation", "send the whole conversation"),
        ({"prompt": {"id": "x"}}, "prompt", "not supported"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"service_tier": "flex"}, "service_tier", "default"),
        ({"max_tokens": 3}, "max_tokens", "not a known parameter"),
        ({"n": 2}, "n", "not a known parameter"),
        ({"max_output_tokens": 0}, "max_output_tokens", "from 1"),
        ({"temperature": 3}, "temperature", "from 0 to 2"),
    ],
)
def test_o8_what_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message
    assert words in caught.value.message
