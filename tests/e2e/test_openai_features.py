"""The official client on tools, thinking, choices and log probabilities, through engines of every protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from enginehouse.domain.engine import ProtocolName
from tests.e2e.support import Engine, Front
from tests.support import starter

pytestmark = pytest.mark.e2e

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é 🚂"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
SAYS = {
    "both please": f"<think>\nTwo calls.\n</think>\n\nI call.\n{ADD}\n{NOW}",
    "one please": ADD,
    "must call": '[{"name": "add", "parameters": {"a": 2}}]',
    "think": "<think>\nHm, hm.\n</think>\n\nHello, Größe 🚂!",
    "object": '{"city": "Rom", "size": 3}',
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.fixture(scope="module", params=list(ProtocolName))
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """Of a frontend that reads Hermes calls and Qwen's thinking, on two engines."""
    with starter() as start:
        options = {"protocol": request.param.value, "tokens_per_second": 0, "say_to": json.dumps(SAYS)}
        engines = [Engine(start, tmp_path_factory.mktemp("served"), name, **options).run() for name in ("a", "b")]
        named = [part for one in engines for part in ("--engine", one.url)]
        front = Front(start, *named, "--tool-parser", "hermes", "--reasoning-parser", "qwen3")
        with OpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="none", max_retries=0, timeout=30) as one:
            yield one
        front.wait_idle()


def chat(client: OpenAI, prompt: str, *, stream: bool, **more: Any) -> ChatCompletion:
    """Whole, or streamed and put together by the client itself."""
    asked: dict[str, Any] = {"model": "mock", "messages": [{"role": "user", "content": prompt}], **more}
    if not stream:
        return client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
        for _ in events:
            pass
        return events.get_final_completion()


def calls_of(answer: ChatCompletion, choice: int = 0) -> list[tuple[str, Any]]:
    calls: Any = answer.choices[choice].message.tool_calls or []
    assert len({call.id for call in calls}) == len(calls)
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize("stream", [False, True])
def test_o5_calls_with_thinking_and_content_before_them(client: OpenAI, stream: bool) -> None:
    answer = chat(client, "both please", stream=stream, tools=TOOLS)
    message = answer.choices[0].message
    assert calls_of(answer) == [("add", {"a": 1, "b": "é 🚂"}), ("now", {})]
    assert message.content == "I call."
    assert (message.model_extra or {})["reasoning_content"] == "Two calls."
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens


class Town(BaseModel):
    """What an answer is parsed as."""

    city: str
    size: int


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's own models are at odds there
@pytest.mark.parametrize("dumped", [False, True])
def test_o5_answers_go_back_as_the_client_has_them(client: OpenAI, dumped: bool) -> None:
    """With the fields that it adds when it parses, and null for all that it knows besides."""
    town: Any = {"messages": [{"role": "user", "content": "object"}], "response_format": Town}
    tools: Any = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    calls: Any = {"messages": [{"role": "user", "content": "both please"}], "tools": tools}
    for asked in (town, calls):
        message = client.chat.completions.parse(model="mock", **asked).choices[0].message
        assert (message.parsed is not None) == (asked is town)
        back: Any = message.model_dump() if dumped else message
        results: Any = [{"role": "tool", "tool_call_id": one.id, "content": "3"} for one in message.tool_calls or ()]
        history = [*asked["messages"], back, *results, {"role": "user", "content": "think"}]
        assert client.chat.completions.create(model="mock", messages=history).choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_o5_only_a_call_and_nothing_else(client: OpenAI, stream: bool) -> None:
    answer = chat(client, "one please", stream=stream, tools=TOOLS)
    assert calls_of(answer) == [("add", {"a": 1, "b": "é 🚂"})]
    assert not answer.choices[0].message.content
    assert not (answer.choices[0].message.model_extra or {}).get("reasoning_content")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_has_to_be_made(client: OpenAI, stream: bool) -> None:
    answer = chat(client, "must call", stream=stream, tools=TOOLS, tool_choice="required")
    assert calls_of(answer) == [("add", {"a": 2})]
    assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_o6_a_call_that_a_limit_cuts(client: OpenAI, stream: bool) -> None:
    if stream:  # the client's own helper raises for an answer that is cut
        chunks = client.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": "one please"}], tools=TOOLS, max_tokens=9, stream=True
        )
        deltas = [chunk.choices[0] for chunk in chunks]
        assert not any(choice.delta.content or choice.delta.tool_calls for choice in deltas)
        assert [choice.finish_reason for choice in deltas if choice.finish_reason] == ["length"]
    else:
        answer = chat(client, "one please", stream=False, tools=TOOLS, max_tokens=9)
        assert (answer.choices[0].finish_reason, answer.choices[0].message.tool_calls) == ("length", None)
        assert not answer.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_o10_logprobs_of_the_whole_message(client: OpenAI, stream: bool) -> None:
    answer = chat(client, "think", stream=stream, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert b"".join(bytes(token.bytes or ()) for token in logprobs.content).decode() == SAYS["think"]
    assert answer.choices[0].message.content == "Hello, Größe 🚂!"
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert [top.logprob for top in token.top_logprobs] == [-0.25, -0.5, -0.75]
        assert token.logprob in (-0.25, -0.5, -0.75, -1.0)


def test_o10_completion_logprobs_with_echo_streamed_and_whole(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "mock", "prompt": "think", "max_tokens": 20, "logprobs": 1, "echo": True}
    (whole,) = client.completions.create(**asked).choices
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert whole.text.startswith("think<think>")
    assert whole.logprobs is not None
    for name, values in whole.logprobs.to_dict().items():
        parts: list[Any] = [getattr(chunk.logprobs, name) for chunk in chunks if chunk.logprobs]
        assert [value for part in parts for value in part] == values
    assert (whole.logprobs.token_logprobs or [0.0])[0] is None
    assert whole.text.startswith("".join((whole.logprobs.tokens or [])[:8]))


@pytest.mark.parametrize("stream", [False, True])
def test_o11_choices_have_their_own_calls(client: OpenAI, stream: bool) -> None:
    answer = chat(client, "one please", stream=stream, tools=TOOLS, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for index in range(3):
        assert calls_of(answer, index) == [("add", {"a": 1, "b": "é 🚂"})]
    single = chat(client, "one please", stream=False, tools=TOOLS)
    assert answer.usage is not None
    assert single.usage is not None
    assert answer.usage.prompt_tokens == single.usage.prompt_tokens
    assert answer.usage.completion_tokens == 3 * single.usage.completion_tokens


def test_o11_prompts_in_a_list_streamed_and_whole(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "mock", "prompt": ["think", "object"], "n": 2}
    whole = client.completions.create(**asked)
    assert [(choice.index, choice.text) for choice in whole.choices] == [
        (0, SAYS["think"]),
        (1, SAYS["think"]),
        (2, SAYS["object"]),
        (3, SAYS["object"]),
    ]
    texts = dict.fromkeys(range(4), "")
    ends = []
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends += [choice.index] if choice.finish_reason else []
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert sorted(ends) == [0, 1, 2, 3]


@pytest.mark.parametrize("stream", [False, True])
def test_structured_output_is_what_the_engine_was_held_to(client: OpenAI, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    answer = chat(client, "anything", stream=stream, response_format=form)
    assert isinstance(json.loads(answer.choices[0].message.content or "")["ok"], bool)


@pytest.mark.parametrize("stream", [False, True])
def test_o3_a_stop_string_within_the_content_after_thinking(client: OpenAI, stream: bool) -> None:
    answer = chat(client, "think", stream=stream, stop=["öße"])
    assert answer.choices[0].message.content == "Hello, Gr"
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_o6_what_ends_an_answer_is_none_of_it_though_special_tokens_are_shown(client: OpenAI, stream: bool) -> None:
    answer = chat(client, "object", stream=stream, extra_body={"skip_special_tokens": False})
    assert answer.choices[0].message.content == SAYS["object"]
    assert answer.choices[0].finish_reason == "stop"
