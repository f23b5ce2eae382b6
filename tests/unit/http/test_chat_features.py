"""Chats with tools, thinking and log probabilities: what reaches the client, streamed and whole, on fake engines."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from structlog.testing import capture_logs

from enginehouse.core.output.registry import TOOLS as TOOL_PARSERS
from enginehouse.core.output.selection import FormatSettings
from enginehouse.domain.constraint import JsonSchema
from enginehouse.domain.stream import Delta, Finish, TokenLogprob
from enginehouse.testing.engines import FakeCall
from enginehouse.testing.feeds import fake_wanted
from tests.unit.http.test_completions import TOKENIZER, Edge, events, run

QWEN = FormatSettings("hermes", "qwen3")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "now"}},
]
EOS = TOKENIZER.eos_token_ids[0]


def tokens(text: str) -> list[int]:
    return list(TOKENIZER._encode(text, False))


async def said(
    edge: Edge,
    text: str,
    finish: Finish = Finish.STOP,
    *,
    at_once: int = 1,
    stream: bool,
    **fields: Any,
) -> tuple[httpx.Response, FakeCall]:
    """What comes of a chat when the engine says this, so many tokens at once."""
    more = {"stream_options": {"include_usage": True}} if stream else {}
    request = asyncio.create_task(edge.post(stream=stream, **more, **fields))
    call = await edge.call()
    ids = tokens(text) + ([EOS] if finish is Finish.STOP else [])
    for at in range(0, len(ids), at_once):
        part = ids[at : at + at_once]
        logprobs = [TokenLogprob(one, -one / 64, ((one, -one / 64), (7, -99.0))) for one in part]
        if not call.over:
            call.sink.on_delta(Delta(part, finish if at + at_once >= len(ids) else None, logprobs=logprobs))
    response = await request
    call.end(None)
    return response, call


def message(response: httpx.Response, stream: bool) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """(what was said, why it ended, the usage), put together as clients do it."""
    if not stream:
        body = response.json()
        ChatCompletion.model_validate(body)
        choice = body["choices"][0]
        return choice["message"] | {"logprobs": choice["logprobs"]}, choice["finish_reason"], body["usage"]
    *chunks, usage, done = events(response)
    assert done == "[DONE]"
    for chunk in (*chunks, usage):
        ChatCompletionChunk.model_validate(chunk)
    found: dict[str, Any] = {"role": None, "content": None, "refusal": None, "logprobs": None}
    calls: list[dict[str, Any]] = []
    reasons = []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                found[name] = (found.get(name) or "") + delta[name]
        found["role"] = delta.get("role", found["role"])
        for part in delta.get("tool_calls", ()):
            assert None not in part.values()
            if part["index"] == len(calls):
                assert set(part) == {"index", "id", "type", "function"}
                calls.append({key: part[key] for key in ("id", "type")} | {"function": dict(part["function"])})
                assert part["function"]["arguments"] == ""
            else:
                assert set(part) == {"index", "function"}
                assert set(part["function"]) == {"arguments"}
                assert part["index"] == len(calls) - 1
                calls[-1]["function"]["arguments"] += part["function"]["arguments"]
        if choice["logprobs"]:
            found["logprobs"] = found["logprobs"] or {"content": [], "refusal": None}
            found["logprobs"]["content"] += choice["logprobs"]["content"]
        if choice["finish_reason"]:
            reasons.append(choice["finish_reason"])
    if calls:
        found["tool_calls"] = calls
    assert len(reasons) == 1
    return found, reasons[0], usage["usage"]


def calls_of(found: dict[str, Any]) -> list[tuple[str, Any]]:
    for call in found["tool_calls"]:
        assert re.fullmatch("call_[0-9a-f]{24}", call["id"])
        assert call["type"] == "function"
    assert len({call["id"] for call in found["tool_calls"]}) == len(found["tool_calls"])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found["tool_calls"]]


def both(scenario: Callable[[Edge, bool], Awaitable[None]], **how: Any) -> None:
    """Streamed and whole."""

    async def each(edge: Edge) -> None:
        for stream in (False, True):
            await scenario(edge, stream)

    run(each, **({"formats": QWEN, "context": 1024} | how))


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_o5_two_parallel_calls_their_names_and_arguments_in_one_step_or_in_many(at_once: int) -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        response, _ = await said(edge, CALL + "\n" + NOW, at_once=at_once, stream=stream, tools=TOOLS)
        found, reason, _ = message(response, stream)
        assert calls_of(found) == [("add", {"a": 1, "b": "é"}), ("now", {})]
        assert found["content"] is None
        assert reason == "tool_calls"

    both(scenario)


def test_ids_of_calls_are_such_as_the_models_template_takes_back() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        text = '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}'
        response, _ = await said(edge, text, stream=stream, tools=TOOLS)
        first, second = (call["id"] for call in message(response, stream)[0]["tool_calls"])
        assert re.fullmatch("[0-9a-z]{9}", first)
        assert second == "abcdefghi"

    both(scenario, formats=FormatSettings("mistral", "none"))


def test_o6_a_call_that_the_limit_cuts_leaves_no_mark_and_is_no_call() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        response, _ = await said(edge, "Well." + CALL[:40], Finish.LENGTH, stream=stream, tools=TOOLS)
        found, reason, _ = message(response, stream)
        assert found["content"] == "Well."
        assert "tool_calls" not in found
        assert reason == "length"

    both(scenario)


def test_without_tools_what_looks_like_a_call_is_what_the_model_said() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        response, _ = await said(edge, NOW, stream=stream)
        found, reason, _ = message(response, stream)
        assert found["content"] == NOW
        assert reason == "stop"

    both(scenario)


def test_only_one_call_where_no_parallel_ones_are_wanted_and_the_engine_stops() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        response, call = await said(edge, CALL + NOW, stream=stream, tools=TOOLS, parallel_tool_calls=False)
        found, reason, usage = message(response, stream)
        assert [name for name, _ in calls_of(found)] == ["add"]
        assert reason == "tool_calls"
        assert call.cancelled
        assert usage["completion_tokens"] <= len(tokens(CALL)) + 1

    both(scenario)


@pytest.mark.parametrize("at_once", [1, 1000])
def test_thinking_comes_in_a_field_of_its_own_and_is_counted(at_once: int) -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        text = f"<think>\nLet me add.\n</think>\n\nI add.{CALL}"
        response, _ = await said(edge, text, at_once=at_once, stream=stream, tools=TOOLS)
        found, reason, usage = message(response, stream)
        assert found["reasoning_content"] == "Let me add."
        assert found["content"] == "I add."
        assert len(calls_of(found)) == 1
        assert reason == "tool_calls"
        thought = usage["completion_tokens_details"]["reasoning_tokens"]
        assert len(tokens("Let me add.")) <= thought <= len(tokens("<think>\nLet me add.\n</think>\n\n"))
        assert usage["completion_tokens"] == len(tokens(text)) + 1

    both(scenario)


def test_the_field_of_thinking_has_the_name_that_the_operator_gave() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        response, _ = await said(edge, "<think>Hm</think>Hi", stream=stream)
        assert '"reasoning":"H' in response.text
        assert "reasoning_content" not in response.text

    both(scenario, reasoning_field="reasoning")


def test_a_thought_that_the_client_began_goes_on_as_thinking() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        for begun in ("<think>Let", [{"type": "text", "text": "<think>Let"}]):
            messages = [{"role": "user", "content": "Add."}, {"role": "assistant", "content": begun}]
            response, _ = await said(
                edge, " me</think>Hi", stream=stream, messages=messages, continue_final_message=True
            )
            found, _, _ = message(response, stream)
            assert (found["reasoning_content"], found["content"]) == (" me", "Hi")

    both(scenario)


def test_thinking_stays_where_it_was_if_the_client_wants_that() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        response, _ = await said(edge, "<think>Hm</think>Hi", stream=stream, separate_reasoning=False)
        found, _, usage = message(response, stream)
        assert found["content"] == "<think>Hm</think>Hi"
        assert usage["completion_tokens_details"] is None

    both(scenario)


@pytest.mark.parametrize(
    ("choice", "text", "expected"),
    [
        ("required", '[{"name": "add", "parameters": {"a": 2}}, {"name": "now", "parameters": {}}]', ["add", "now"]),
        ({"type": "function", "function": {"name": "add"}}, '{"a": 2}', ["add"]),
    ],
)
def test_calls_that_had_to_be_made_are_held_to_json_and_read_as_it(choice: Any, text: str, expected: list[str]) -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        response, call = await said(edge, text, stream=stream, tools=TOOLS, tool_choice=choice)
        found, reason, _ = message(response, stream)
        assert [name for name, _ in calls_of(found)] == expected
        assert calls_of(found)[0][1] == {"a": 2}
        assert found["content"] is None
        assert reason == "tool_calls"
        assert isinstance(call.request.sampling.constraint, JsonSchema)

    both(scenario)


@pytest.mark.parametrize(
    ("text", "content", "calls", "finish"),
    [
        ('{"name": "add", "parameters": {"a": 2}}', None, ["add"], "tool_calls"),
        ('{"a": "add"}', '{"a": "add"}', [], "stop"),
    ],
)
def test_o5_beside_tools_a_form_leaves_the_model_the_choice(
    text: str, content: str | None, calls: list[str], finish: str
) -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "required": ["a"]}}}
        response, call = await said(edge, text, stream=stream, tools=TOOLS, response_format=form)
        found, reason, _ = message(response, stream)
        assert (found["content"], reason) == (content, finish)
        assert [one["function"]["name"] for one in found.get("tool_calls") or ()] == calls
        constraint = call.request.sampling.constraint
        assert isinstance(constraint, JsonSchema)
        assert json.loads(constraint.schema)["anyOf"][-1] == {"type": "object", "required": ["a"]}

    both(scenario)


def test_o6_tool_choice_none_reads_no_calls_and_shows_the_model_no_tools() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        plain, call = await said(edge, "Hi", stream=stream)
        none, same = await said(edge, "Hi", stream=stream, tools=TOOLS, tool_choice="none")
        assert call.request.token_ids == same.request.token_ids
        assert message(none, stream)[0]["content"] == message(plain, stream)[0]["content"] == "Hi"

    both(scenario)


def joined(content: Sequence[Any]) -> str:
    return b"".join(bytes(token["bytes"]) for token in content).decode()


@pytest.mark.parametrize("top", [None, 0, 2])
def test_o10_chat_logprobs_list_the_tokens_of_the_message(top: int | None) -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        fields = {} if top is None else {"top_logprobs": top}
        response, call = await said(edge, "Grüße 🚂 dir", stream=stream, logprobs=True, **fields)
        found, _, _ = message(response, stream)
        content = found["logprobs"]["content"]
        assert call.request.sampling.logprobs == (top or 0)
        assert joined(content) == found["content"] == "Grüße 🚂 dir"
        assert [token["logprob"] for token in content] == [-one / 64 for one in tokens("Grüße 🚂 dir")]
        assert content[0]["top_logprobs"][0]["bytes"] == content[0]["bytes"]
        assert found["logprobs"]["refusal"] is None

    both(scenario, formats=FormatSettings("none", "none"))


def test_o10_logprobs_of_thinking_and_calls_are_listed_too() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        text = f"<think>Hm</think>Hi{CALL}"
        response, _ = await said(edge, text, stream=stream, tools=TOOLS, logprobs=True)
        assert joined(message(response, stream)[0]["logprobs"]["content"]) == text

    both(scenario)


def test_o3_o10_logprobs_end_where_the_stop_string_cut() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        response, _ = await said(edge, "Hello world, and more", stream=stream, logprobs=True, stop=" and")
        found, reason, _ = message(response, stream)
        assert joined(found["logprobs"]["content"]) == found["content"] == "Hello world,"
        assert reason == "stop"

    both(scenario)


def test_o10_echo_gives_the_tokens_of_the_prompt_with_those_of_the_answer() -> None:
    async def scenario(edge: Edge) -> None:
        prompt, answer = tokens("Hello world"), tokens(" again")
        wanted: dict[str, Any] = {}
        for stream in (False, True):
            request = asyncio.create_task(
                edge.post("/v1/completions", prompt="Hello world", echo=True, logprobs=1, max_tokens=9, stream=stream)
            )
            call = await edge.call()
            assert call.request.sampling.prompt_logprobs == 1
            told = [None, *(TokenLogprob(one, -1.0, ((7, -0.5),)) for one in prompt[1:])]
            for at, one in enumerate([*answer, EOS]):
                likely = [TokenLogprob(one, -2.0, ((one, -2.0),))]
                finish = Finish.STOP if one == EOS else None
                call.sink.on_delta(Delta([one], finish, logprobs=likely, prompt_logprobs=None if at else told))
            call.end(None)
            response = await request
            if not stream:
                (choice,) = response.json()["choices"]
                wanted = choice["logprobs"]
                assert choice["text"] == "Hello world again"
                assert "".join(wanted["tokens"][:-1]) == "Hello world again"
                assert wanted["token_logprobs"] == [None] + [-1.0] * (len(prompt) - 1) + [-2.0] * (len(answer) + 1)
                assert len({*map(len, wanted.values())}) == 1
                for token, offset in zip(wanted["tokens"][:-1], wanted["text_offset"], strict=False):
                    assert choice["text"].startswith(token, offset)
            else:
                chunks = [event["choices"][0] for event in events(response)[:-1]]
                assert "".join(chunk["text"] for chunk in chunks) == "Hello world again"
                for name, values in wanted.items():
                    parts = [chunk["logprobs"][name] for chunk in chunks if chunk["logprobs"]]
                    assert [one for part in parts for one in part] == values

    run(scenario)


def test_token_ids_come_with_their_text_and_those_of_the_prompt_first() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        response, call = await said(edge, "Hello world", stream=stream, return_token_ids=True)
        expected = [*tokens("Hello world"), EOS]
        if stream:
            chunks = events(response)[:-2]
            ids = [one for chunk in chunks for one in chunk["choices"][0].get("token_ids", ())]
            prompt = next(chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk)
        else:
            body = response.json()
            ids, prompt = body["choices"][0]["token_ids"], body["prompt_token_ids"]
        assert (ids, prompt) == (expected, list(call.request.token_ids))

    both(scenario)


def test_o3_a_stop_string_stays_where_the_client_wants_it() -> None:
    async def scenario(edge: Edge, stream: bool) -> None:
        more = {"include_stop_str_in_output": True}
        response, _ = await said(edge, "Hello world, and more", stream=stream, stop=["ld,"], **more)
        assert message(response, stream)[0]["content"] == "Hello world,"

    both(scenario)


def test_parsers_follow_what_the_engines_report() -> None:
    async def scenario(edge: Edge) -> None:
        assert edge.models.current is not None
        assert edge.models.current.formats.tools is None
        edge.engines.listen("10.0.0.2:9000", context_length=64, tool_parser="hermes", reasoning_parser="unheard_of")
        edge.feed.list(fake_wanted("a", "10.0.0.1:9000"), fake_wanted("b", "10.0.0.2:9000"))
        while edge.models.current.formats.tools != TOOL_PARSERS["hermes"]:
            await asyncio.sleep(0.001)
        assert edge.models.current.formats.thinking is None
        model = (await edge.client.get("/engines")).json()["model"]
        assert model["tool_parser"] == {"name": "hermes", "by": "engine"}
        assert model["reasoning_parser"] == {"name": None, "by": None}

    with capture_logs() as lines:
        run(scenario)
    told = {line["event"]: (line["tool_parser"], line["reasoning_parser"]) for line in lines if "tool_parser" in line}
    assert told == {"model ready": ("none", "none"), "parsers changed": ("hermes (by engine)", "none")}
