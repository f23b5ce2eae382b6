"""Anthropic's client against the whole program, as coding agents use it: typed, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_tool
from anthropic.types import Message

from enginehouse.domain.engine import ProtocolName
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.support import Engine, Front
from tests.support import starter

pytestmark = pytest.mark.e2e

TOOLS: Any = [
    {
        "name": "read_file",
        "description": "Read a file.",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        "cache_control": {"type": "ephemeral"},
    }
]
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "/tmp/é.txt"}}\n</tool_call>'
SAID = {
    "the file says 42": "<think>\nNow I know.\n</think>\n\nIt says 42.",
    "look into the file": f"<think>\nI have to read it.\n</think>\n\nLet me look.\n{CALL}",
    "both files": CALL + "\n" + CALL,
    "count to four": "one two three four",
}
"""By a part of the prompt."""


def client_of(front: Front) -> Anthropic:
    return Anthropic(
        base_url=f"http://127.0.0.1:{front.port}",
        api_key="none",
        max_retries=0,
        timeout=30,
        _strict_response_validation=True,
    )


@pytest.fixture(scope="module", params=list(ProtocolName))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A frontend on one engine of each protocol; these tests leave nothing behind in it."""
    with starter() as start:
        options = {"protocol": request.param.value, "tokens_per_second": 0, "context_length": 2048}
        one = Engine(start, tmp_path_factory.mktemp("served"), "a", say_to=json.dumps(SAID), **options).run()
        yield Front(start, "--engine", one.url, "--tool-parser", "hermes", "--reasoning-parser", "qwen3")


@pytest.fixture
def client(served: Front) -> Iterator[Anthropic]:
    with client_of(served) as one:
        yield one
    served.wait_idle()


Ask = Callable[..., Message]


@pytest.fixture(params=["whole", "streamed"])
def ask(request: pytest.FixtureRequest, client: Anthropic) -> Ask:
    """ask("text" or messages, …) -> Message, whichever way it came."""

    def one(messages: Any, **more: Any) -> Message:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"model": "mock", "max_tokens": 300, "messages": messages, **more}
        if request.param == "whole":
            return client.messages.create(**body)
        with client.messages.stream(**body) as stream:
            events = [event.type for event in stream]
            assert events[0] == "message_start"
            assert events.count("message_stop") == events.count("message_delta") == 1
            assert events[-1] == "message_stop"
            return stream.get_final_message()

    return one


def test_text_and_its_usage(ask: Ask, client: Anthropic) -> None:
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "count to four"}]}]
    got = ask(messages, system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
    assert [block.to_dict() for block in got.content] == [{"type": "text", "text": "one two three four"}]
    assert (got.stop_reason, got.stop_sequence, got.role, got.model) == ("end_turn", None, "assistant", "mock")
    counted = client.messages.count_tokens(model="mock", system="Be brief.", messages=messages)
    assert got.usage.input_tokens + (got.usage.cache_read_input_tokens or 0) == counted.input_tokens
    assert got.usage.output_tokens > 4


def test_o3_a_stop_sequence_is_named(ask: Ask) -> None:
    got = ask("count to four", stop_sequences=["five", " three"])
    assert [block.to_dict() for block in got.content] == [{"type": "text", "text": "one two"}]
    assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", " three")


def test_a_limit_ends_it(ask: Ask) -> None:
    got = ask("count to four", max_tokens=2)
    assert (got.stop_reason, got.usage.output_tokens) == ("max_tokens", 2)


def test_o5_an_agent_calls_a_tool_and_goes_on_with_what_came_of_it(ask: Ask) -> None:
    messages: list[Any] = [{"role": "user", "content": "look into the file"}]
    got = ask(messages, tools=TOOLS, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1500)
    assert [block.type for block in got.content] == ["thinking", "text", "tool_use"]
    thinking, text, use = got.content
    assert thinking.type == "thinking"
    assert (thinking.thinking.strip(), bool(thinking.signature)) == ("I have to read it.", True)
    assert text.type == "text"
    assert text.text.strip() == "Let me look."
    assert use.type == "tool_use"
    assert (use.name, use.input) == ("read_file", {"path": "/tmp/é.txt"})
    assert got.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "the file says 42"}]}
    messages += [{"role": "assistant", "content": got.content}, {"role": "user", "content": [result]}]
    again = ask(messages, tools=TOOLS)
    assert [block.type for block in again.content] == ["thinking", "text"]
    assert again.stop_reason == "end_turn"
    assert again.usage.output_tokens_details is not None
    assert 0 < again.usage.output_tokens_details.thinking_tokens < again.usage.output_tokens


def test_o5_a_coding_agents_first_two_requests(client: Anthropic) -> None:
    """With all that coding agents say besides, in the order and the pieces that it comes in."""
    cached = {"type": "ephemeral", "ttl": "1h"}
    body: dict[str, Any] = {
        "model": "mock",
        "max_tokens": 1000,
        "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
        "system": [{"type": "text", "text": text, "cache_control": cached} for text in ("You are.", "Be brief.")],
        "tools": [{**TOOLS[0], "type": "custom", "eager_input_streaming": True}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": "user_1"},
        "extra_body": {"temperature": 1},
    }
    reminder = {"type": "text", "text": "<system-reminder>Mind.</system-reminder>"}
    messages: list[Any] = [{"role": "user", "content": [reminder, {"type": "text", "text": "look into the file"}]}]
    with client.beta.messages.stream(messages=messages, **body) as stream:
        got = stream.get_final_message()
    assert [block.type for block in got.content] == ["thinking", "text", "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "the file says 42", "cache_control": cached}
        for block in got.content
        if block.type == "tool_use"
    ]
    messages += [{"role": "assistant", "content": got.content}, {"role": "user", "content": results}]
    with client.beta.messages.stream(messages=messages, **body) as stream:
        again = stream.get_final_message()
    assert [block.type for block in again.content] == ["thinking", "text"]
    assert again.stop_reason == "end_turn"


def test_models_are_listed_as_this_client_reads_them(client: Anthropic) -> None:
    (model,) = client.models.list()
    assert (model.id, model.display_name, model.type, model.max_input_tokens) == ("mock", "mock", "model", 2048)
    assert client.models.retrieve("mock") == model
    assert model.created_at.year > 2000


def test_o5_the_clients_own_runner_of_tools(client: Anthropic) -> None:
    """It begins with a thread, which servers keep; told that there are none here, it sends everything each time."""

    @beta_tool
    def read_file(path: str) -> str:
        """Read a file."""
        return f"the file says 42 ({path})"

    runner = client.beta.messages.tool_runner(
        model="mock",
        max_tokens=500,
        tools=[read_file],
        messages=[{"role": "user", "content": "look into the file"}],
    )
    *_, last = runner
    assert last.content[-1].type == "text"
    assert last.content[-1].text == "It says 42."


def test_o5_a_history_dumped_with_all_its_nulls(client: Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "look into the file"}]
    got = client.messages.create(model="mock", max_tokens=500, messages=messages, tools=TOOLS)
    messages.append({"role": "assistant", "content": [block.model_dump() for block in got.content]})
    result = {"type": "tool_result", "tool_use_id": got.content[-1].to_dict()["id"], "content": "the file says 42"}
    messages.append({"role": "user", "content": [result]})
    again = client.messages.create(model="mock", max_tokens=500, messages=messages, tools=TOOLS)
    assert again.content[-1].to_dict() == {"type": "text", "text": "It says 42."}


@pytest.mark.parametrize(("alone", "calls"), [(False, 2), (True, 1)])
def test_o5_two_calls_unless_only_one_is_wanted(ask: Ask, alone: bool, calls: int) -> None:
    got = ask("both files", tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": alone})
    assert [block.type for block in got.content] == ["tool_use"] * calls
    assert len({block.id for block in got.content if block.type == "tool_use"}) == calls


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "read_file"}])
def test_a_tool_that_has_to_be_called(ask: Ask, choice: Any) -> None:
    got = ask("anything", tools=TOOLS, tool_choice=choice)
    (use,) = got.content
    assert use.type == "tool_use"
    assert use.name == "read_file"
    assert isinstance(use.input["path"], str)
    assert got.stop_reason == "tool_use"


def test_without_tools_what_looks_like_a_call_is_text(ask: Ask) -> None:
    got = ask("both files", tools=TOOLS, tool_choice={"type": "none"})
    assert [block.type for block in got.content] == ["text"]
    assert got.stop_reason == "end_turn"


def test_a_prefill_is_gone_on_with(client: Anthropic) -> None:
    started: Any = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once upon"}]
    both = client.messages.count_tokens(model="mock", messages=started)
    ended = client.messages.count_tokens(model="mock", messages=[*started, {"role": "user", "content": ""}])
    assert both.input_tokens < ended.input_tokens
    assert client.messages.create(model="mock", max_tokens=5, messages=started).content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"model": "nope"}, anthropic.NotFoundError, "does not exist"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "'max_tokens' is 0"),
        ({"messages": []}, anthropic.BadRequestError, "'messages'"),
        ({"messages": [{"role": "user", "content": "word " * 4000}]}, anthropic.BadRequestError, "prompt is too long"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
            anthropic.BadRequestError,
            "'messages[0].content[0].type' is 'image'",
        ),
        ({"extra_body": {"no_such_parameter": 1}}, anthropic.BadRequestError, "'no_such_parameter'"),
    ],
)
def test_o8_errors_of_a_request(
    client: Anthropic, stream: bool, fields: dict[str, Any], kind: type[anthropic.APIStatusError], words: str
) -> None:
    body: dict[str, Any] = {"model": "mock", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(kind) as caught:
        client.messages.create(stream=stream, **{**body, **fields})
    error = caught.value.body
    assert isinstance(error, dict)
    assert error["type"] == "error"
    assert set(error["error"]) == {"type", "message"}
    assert words in error["error"]["message"]


def test_o8_errors_of_route_and_method_have_this_apis_form(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as nowhere:
        client.post("/v1/messages/batches", cast_to=object)
    assert isinstance(nowhere.value.body, dict)
    assert nowhere.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.APIStatusError) as method:
        client.get("/v1/messages", cast_to=object)
    assert method.value.status_code == 405
    assert isinstance(method.value.body, dict)
    assert method.value.body["error"]["type"] == "invalid_request_error"


def test_o1_an_error_after_the_first_token_reaches_the_client_as_an_exception(
    engine: MakeEngine, front: MakeFront
) -> None:
    one = engine("a", error_after_tokens=3, tokens_per_second=0).run()
    serving = front("--engine", one.url)
    with client_of(serving) as client:
        got = []
        with pytest.raises(anthropic.APIStatusError) as caught:
            got.extend(
                client.messages.create(
                    model="mock", max_tokens=9, messages=[{"role": "user", "content": "x"}], stream=True
                )
            )
        assert sum(event.type == "content_block_delta" for event in got) == 3
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "api_error"
    serving.wait_idle()
