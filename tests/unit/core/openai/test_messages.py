import json
from typing import Any

import pytest

from enginehouse.core.openai.arguments import written
from enginehouse.core.openai.messages import ROLES, read_messages
from enginehouse.core.openai.parse import parse_chat
from enginehouse.domain.errors import InvalidRequest

HELLO = {"role": "user", "content": "Hello"}


def test_roles_and_text_parts_pass() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": role, "content": "x"} for role in ROLES] + [{"role": "user", "content": parts}]
    assert list(read_messages(messages)) == messages


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
            {"id": "c4", "type": "function", "function": {"name": "g", "arguments": "null"}},
        ],
    }
    result = {"role": "tool", "tool_call_id": "c1", "content": "42"}
    assert read_messages([answer, result]) == (
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}},
                {"id": "c4", "type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        result,
    )


def test_what_client_libraries_add_to_messages_is_no_fault_of_theirs() -> None:
    for more in ({"type": "text"}, {"type": "message"}, {"provider_specific_fields": {"a": [1]}}, {"parsed": {}}):
        assert read_messages([HELLO | more]) == (HELLO,)
    with pytest.raises(InvalidRequest) as refused:
        read_messages([HELLO | {"type": "image"}])
    assert refused.value.param == "messages[0].type"


def test_an_answer_that_says_nothing_and_calls_nothing_is_empty() -> None:
    for calls in (None, []):
        assert read_messages([{"role": "assistant", "content": None, "tool_calls": calls}]) == (
            {"role": "assistant", "content": ""},
        )


@pytest.mark.parametrize(
    ("sent", "text"),
    [('{"a":1,\n"b":"\\u00e9"}', None), ("", "{}"), (" \n", "{}"), (None, "{}"), ({"a": "é"}, '{"a": "é"}')],
)
def test_arguments_of_earlier_calls_keep_their_text(sent: Any, text: str | None) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": sent}}
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert written(message["tool_calls"][0]["function"]["arguments"]) == (sent if text is None else text)


def test_nulls_are_the_same_as_absent() -> None:
    nulls = dict.fromkeys(("name", "tool_calls", "tool_call_id", "reasoning_content", "whatever"))
    assert read_messages([HELLO | nulls]) == (HELLO,)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "where", "words"),
    [
        ("hello", "messages[1]", "is a string"),
        ({}, "messages[1].role", "missing"),
        ({"role": "robot", "content": "x"}, "messages[1].role", "is 'robot'"),
        ({"role": ["user"], "content": "x"}, "messages[1].role", "is a list"),
        ({"role": "user"}, "messages[1].content", "missing"),
        ({"role": "user", "content": None}, "messages[1].content", "missing"),
        ({"role": "user", "content": 3}, "messages[1].content", "is a number"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]", "is a string"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
            "messages[1].content[1]",
            "'image_url'",
        ),
        ({"role": "user", "content": [{"text": "a"}]}, "messages[1].content[0].type", "missing"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text", "null"),
        ({"role": "user", "content": "x", "prefix": True}, "messages[1].prefix", "not supported"),
        ({"role": "user", "content": "x", "name": 3}, "messages[1].name", "is a number"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[1].tool_calls", "assistant"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls", "is an object"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0]", "function"),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": []}}]},
            "messages[1].tool_calls[0].function.arguments",
            "must hold an object",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "0"}}]},
            "messages[1].tool_calls[0].function.arguments",
            "must hold an object",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]},
            "messages[1].tool_calls[0].type",
            "must be 'function'",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{"}}]},
            "messages[1].tool_calls[0].function.arguments",
            "not JSON",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "[" * 100_000}}]},
            "messages[1].tool_calls[0].function.arguments",
            "nested too deeply",
        ),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "messages[1].audio", "not supported"),
    ],
)
def test_o8_a_wrong_message_is_named_with_its_place(message: Any, where: str, words: str) -> None:
    body = json.dumps({"model": "m", "messages": [HELLO, message]}).encode()
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(body)
    assert caught.value.param == where
    assert words in caught.value.message
