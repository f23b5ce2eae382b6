"""Bodies of `/v1/messages`: what becomes of them, and what is refused in which words."""

import json
from typing import Any

import pytest

from enginehouse.core.anthropic.parse import parse_count, parse_message
from enginehouse.core.anthropic.request import MessageRequest
from enginehouse.core.api.sealed import sealed
from enginehouse.core.openai.requests import ToolChoice, ToolChoiceMode
from enginehouse.domain.constraint import JsonSchema
from enginehouse.domain.errors import InvalidRequest

USER: dict[str, Any] = {"role": "user", "content": "hi"}
F: dict[str, Any] = {"name": "f", "description": "F", "input_schema": {"type": "object"}}
USE: dict[str, Any] = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}


def read(**fields: Any) -> MessageRequest:
    return parse_message(json.dumps({"model": "m", "max_tokens": 9, "messages": [USER], **fields}).encode())


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


CALL = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


@pytest.mark.parametrize(
    ("system", "messages", "expected"),
    [
        (None, [USER], [USER]),
        ("S", [USER], [{"role": "system", "content": "S"}, USER]),
        (
            [text("S", cache_control={"type": "ephemeral"}), text("T")],
            [USER],
            [{"role": "system", "content": "S\nT"}, USER],
        ),
        (None, [{"role": "user", "content": [text("a")]}], [{"role": "user", "content": "a"}]),
        (None, [{"role": "user", "content": []}], [{"role": "user", "content": ""}]),
        (None, [USER, {"role": "user", "content": [text("a")]}], [{"role": "user", "content": "hi\na"}]),
        (
            None,
            [USER, {"role": "system", "content": [text("now")]}, USER],
            [USER, {"role": "system", "content": "now"}, USER],
        ),
        (
            None,
            [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "unsigned"},
                        text("let me"),
                        text("see"),
                        USE,
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "content": [text("one")], "is_error": True},
                        {"type": "tool_result", "tool_use_id": "t2"},
                        text("go on"),
                    ],
                },
            ],
            [
                USER,
                {
                    "role": "assistant",
                    "content": "let me\nsee",
                    "reasoning_content": "hm",
                    "tool_calls": [CALL],
                },
                {"role": "tool", "tool_call_id": "t1", "content": "one"},
                {"role": "tool", "tool_call_id": "t2", "content": ""},
                {"role": "user", "content": "go on"},
            ],
        ),
        (
            None,
            [
                USER,
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]},
                {"role": "assistant", "content": "well"},
            ],
            [
                USER,
                {"role": "assistant", "reasoning_content": "hm", "content": ""},
                {"role": "assistant", "content": "well"},
            ],
        ),
        (
            None,
            [
                USER,
                {"role": "assistant", "content": [USE, text("and")]},
                {"role": "user", "content": [text("x"), {"type": "tool_result", "tool_use_id": "t1", "content": "y"}]},
            ],
            [
                USER,
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "assistant", "content": "and"},
                {"role": "user", "content": "x"},
                {"role": "tool", "tool_call_id": "t1", "content": "y"},
            ],
        ),
    ],
)
def test_blocks_become_messages(system: Any, messages: list[Any], expected: list[Any]) -> None:
    more = {} if system is None else {"system": system}
    assert list(read(messages=messages, **more).messages) == expected
    body = json.dumps({"model": "m", "messages": messages, **more}).encode()
    assert list(parse_count(body).messages) == expected


def test_parameters() -> None:
    request = read(
        stream=True,
        stop_sequences=["a", "b", "a"],
        temperature=1,
        top_p=0.5,
        top_k=0,
        metadata={"user_id": "u"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    assert (request.stream, request.max_tokens, request.stop, request.user) == (True, 9, ("a", "b"), "u")
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (1, 0.5, -1)
    assert read(top_k=5).sampling.top_k == 5


@pytest.mark.parametrize(
    ("messages", "generates"),
    [
        ([USER], True),
        ([USER, {"role": "assistant", "content": "Once"}], False),
        ([USER, {"role": "assistant", "content": [text("Once")]}], False),
        ([USER, {"role": "assistant", "content": [text("Once"), USE]}], True),
    ],
)
def test_a_last_message_of_the_assistant_is_gone_on_with(messages: list[Any], generates: bool) -> None:
    options = read(messages=messages).template_options
    assert options["add_generation_prompt"] is generates
    assert options.get("continue_final_message", False) is not generates


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, None),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
    ],
)
def test_thinking_is_a_matter_of_the_template(fields: dict[str, Any], kwargs: object) -> None:
    assert read(**fields).template_options.get("chat_template_kwargs") == kwargs


@pytest.mark.parametrize(
    ("choice", "read_as", "parallel"),
    [
        (None, ToolChoice(ToolChoiceMode.AUTO), True),
        ({"type": "auto"}, ToolChoice(ToolChoiceMode.AUTO), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(ToolChoiceMode.AUTO), False),
        ({"type": "auto", "disable_parallel_tool_use": False}, ToolChoice(ToolChoiceMode.AUTO), True),
        ({"type": "any"}, ToolChoice(ToolChoiceMode.REQUIRED), True),
        ({"type": "tool", "name": "f"}, ToolChoice(ToolChoiceMode.NAMED, "f"), True),
        ({"type": "none"}, ToolChoice(ToolChoiceMode.NONE), True),
    ],
)
def test_tools_and_which_of_them_may_be_called(choice: Any, read_as: ToolChoice, parallel: bool) -> None:
    request = read(tools=[{**F, "type": "custom", "cache_control": {"type": "ephemeral"}}], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (read_as, parallel)
    forced = read_as.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED)
    assert isinstance(request.sampling.constraint, JsonSchema) is forced
    shown = (
        ()
        if read_as.mode is ToolChoiceMode.NONE
        else ({"type": "function", "function": {"name": "f", "description": "F", "parameters": {"type": "object"}}},)
    )
    assert request.template_options.get("tools", ()) == shown


def test_a_schema_for_the_text() -> None:
    request = read(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}})
    assert request.sampling.constraint == JsonSchema('{"type":"object"}')
    assert request.constraint_param == "output_config.format"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"max_tokens": None}, "max_tokens", "is missing"),
        ({"max_tokens": 0}, "max_tokens", "from 1"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role", "'tool'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type",
            "'image'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "messages[0].content[0].type",
            "'document'",
        ),
        ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0].content[0].type", "'tool_use'"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}],
                    }
                ]
            },
            "messages[0].content[0].content[0].type",
            "'image'",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", "'bash_20250124'"),
        ({"tools": [{**F, "name": "a b"}]}, "tools[0].name", "letters"),
        ({"tools": [{**F, "defer_loading": True}]}, "tools[0].defer_loading", "is true; it must be false"),
        ({"tools": [{**F, "input_examples": [{}]}]}, "tools[0].input_examples", "it must be an empty list"),
        ({"tools": [{**F, "allowed_callers": ["code_execution_20260120"]}]}, "tools[0].allowed_callers[0]", "'direct'"),
        ({"inference_geo": "us"}, "inference_geo", "not supported"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "there are no 'tools'"),
        ({"tools": [F], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name", "not the name"),
        (
            {"tools": [{**F, "input_schema": {"type": "obj"}}], "tool_choice": {"type": "any"}},
            "tools[0].input_schema.type",
            "must be one of",
        ),
        (
            {
                "tools": [{**F, "input_schema": {"type": "obj"}}],
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "tools[0].input_schema.type",
            "must be one of",
        ),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "is missing"),
        ({"stop_sequences": [""]}, "stop_sequences[0]", "empty"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences", "at most 16"),
        ({"container": "x"}, "container", "not supported"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management",
            "not supported",
        ),
        ({"mcp_servers": [{}]}, "mcp_servers", "not supported"),
        ({"n": 2}, "n", "not a known parameter"),
    ],
)
def test_o8_what_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("block", "thought"),
    [
        ({"thinking": "hm", "signature": sealed("x")}, "hm"),
        ({"thinking": "", "signature": sealed("hm")}, "hm"),
        ({"thinking": "", "signature": "of another server"}, None),
        ({"thinking": ""}, None),
    ],
)
def test_thinking_comes_back_with_its_text_or_packed(block: dict[str, str], thought: str | None) -> None:
    said = {"role": "assistant", "content": [{"type": "thinking", **block}, text("well")]}
    assert read(messages=[USER, said, USER]).messages[1].get("reasoning_content") == thought


@pytest.mark.parametrize(("display", "omits"), [(None, False), ("summarized", False), ("omitted", True)])
def test_whether_thinking_is_shown(display: str | None, omits: bool) -> None:
    for thinking in ({"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}):
        assert read(thinking={**thinking, "display": display}).omits_thinking is omits


def test_a_message_of_the_assistant_with_nothing_in_it_is_still_one() -> None:
    for content in ([], "", [text("")], [{"type": "thinking", "thinking": "", "signature": "of another server"}]):
        request = read(messages=[{"role": "assistant", "content": content}])
        assert request.messages == ({"role": "assistant", "content": ""},)


def test_what_agents_send_besides_and_what_asks_for_nothing_is_taken() -> None:
    tool = {
        **F,
        "type": "custom",
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "defer_loading": False,
        "allowed_callers": ["direct"],
        "input_examples": [],
        "eager_input_streaming": True,
    }
    used = {"role": "assistant", "content": [{**text("x"), "citations": []}, {**USE, "caller": {"type": "direct"}}]}
    more = {
        "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        "diagnostics": {"previous_message_id": "msg_1"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "inference_geo": "global",
        "user_profile_id": "u",
        "workspace_id": "w",
    }
    messages = [USER, used, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]}]
    assert read(messages=messages, tools=[tool], **more) == read(
        messages=[USER, {"role": "assistant", "content": [text("x"), USE]}, messages[2]], tools=[F]
    )


def test_a_count_needs_no_limit_and_takes_none() -> None:
    assert parse_count(json.dumps({"model": "m", "messages": [USER], "tools": [F]}).encode()).template_options["tools"]
    with pytest.raises(InvalidRequest, match="'max_tokens' is not a known parameter"):
        parse_count(json.dumps({"model": "m", "messages": [USER], "max_tokens": 1}).encode())
