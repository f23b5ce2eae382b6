"""The official client's responses, embeddings and models against the whole program: typed, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from enginehouse.domain.engine import ProtocolName
from enginehouse.mock.embedding import embedding
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.support import Engine, Front
from tests.support import starter

pytestmark = pytest.mark.e2e

TOOLS: Any = [
    {
        "type": "function",
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        "strict": True,
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
SCHEMA: Any = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def client_of(front: Front, *, strict: bool = True) -> OpenAI:
    return OpenAI(
        base_url=f"http://127.0.0.1:{front.port}/v1",
        api_key="none",
        max_retries=0,
        timeout=30,
        _strict_response_validation=strict,
    )


@pytest.fixture(scope="module", params=list(ProtocolName))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A frontend on one engine of each protocol; these tests leave nothing behind in it."""
    with starter() as start:
        options = {"protocol": request.param.value, "tokens_per_second": 0, "context_length": 2048}
        one = Engine(start, tmp_path_factory.mktemp("served"), "a", say_to=json.dumps(SAID), **options).run()
        yield Front(start, "--engine", one.url, "--tool-parser", "hermes", "--reasoning-parser", "qwen3")


@pytest.fixture
def client(served: Front) -> Iterator[OpenAI]:
    with client_of(served) as one:
        yield one
    served.wait_idle()


Ask = Callable[..., Response]


@pytest.fixture(params=["whole", "streamed"])
def ask(request: pytest.FixtureRequest, client: OpenAI) -> Ask:
    """ask("text" or items, …) -> Response, whichever way it came."""

    def one(given: Any, **more: Any) -> Response:
        body = {"model": "mock", "max_output_tokens": 300, "input": given, **more}
        if request.param == "whole":
            return client.responses.create(**body)
        events = list(client.responses.create(stream=True, **body))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[0].type == "response.created"
        assert events[-1].type in ("response.completed", "response.incomplete")
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert done == events[-1].response.output
        return events[-1].response

    return one


def test_text_and_what_was_asked_for(ask: Ask) -> None:
    got = ask("count to four", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    assert (got.output_text, got.status, got.error, got.incomplete_details) == (
        "one two three four",
        "completed",
        None,
        None,
    )
    assert (got.instructions, got.metadata, got.temperature, got.top_p) == ("Be brief.", {"a": "b"}, 0.5, None)
    assert got.id.startswith("resp_")
    assert got.usage is not None
    assert got.usage.total_tokens == got.usage.input_tokens + got.usage.output_tokens
    assert got.usage.output_tokens > 4


def test_a_limit_makes_it_incomplete(ask: Ask) -> None:
    got = ask("count to four", max_output_tokens=2)
    assert (got.status, got.incomplete_details and got.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert got.usage is not None
    assert got.usage.output_tokens == 2


def test_o5_an_agent_calls_a_tool_and_goes_on_with_what_came_of_it(ask: Ask) -> None:
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "look into the file"}]}]
    got = ask(items, tools=TOOLS, store=False, include=["reasoning.encrypted_content"], max_output_tokens=1500)
    assert [item.type for item in got.output] == ["reasoning", "message", "function_call"]
    call = got.output[2]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("read_file", {"path": "/tmp/é.txt"})
    items += [item.to_dict() for item in got.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "the file says 42"}]
    again = ask(items, tools=TOOLS)
    assert [item.type for item in again.output] == ["reasoning", "message"]
    assert again.output_text.strip() == "It says 42."
    assert again.usage is not None
    assert 0 < again.usage.output_tokens_details.reasoning_tokens < again.usage.output_tokens


def test_o5_a_coding_agents_first_two_requests(ask: Ask) -> None:
    """With all that Codex says besides; of thinking it sends back only what is packed."""
    more: dict[str, Any] = {
        "instructions": "You are.",
        "tools": [
            *TOOLS,
            {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [{**TOOLS[0], "name": "ask"}]},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "prompt_cache_key": "session",
        "text": {"verbosity": "medium"},
        "extra_body": {"client_metadata": {"installation": "x"}},
        "max_output_tokens": 1000,
    }
    said = [("developer", "Permissions."), ("user", "<environment_context>"), ("user", "look into the file")]
    items: list[Any] = [
        {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]} for role, text in said
    ]
    got = ask(items, **more)
    assert [tool.type for tool in got.tools] == ["function", "namespace"]
    thinking, message, call = got.output
    assert thinking.type == "reasoning"
    assert message.type == "message"
    assert call.type == "function_call"
    items += [
        {"type": "reasoning", "summary": [], "encrypted_content": thinking.encrypted_content},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": got.output_text}]},
        {"type": "function_call", "name": call.name, "arguments": call.arguments, "call_id": call.call_id},
        {"type": "function_call_output", "call_id": call.call_id, "output": "the file says 42"},
    ]
    again = ask(items, **more)
    assert [item.type for item in again.output] == ["reasoning", "message"]
    assert again.output_text.strip() == "It says 42."


@pytest.mark.parametrize("by_alias", [False, True])
def test_o5_a_history_dumped_with_all_its_nulls(client: OpenAI, by_alias: bool) -> None:
    items: list[Any] = [{"role": "user", "content": "look into the file", "type": None}]
    got = client.responses.create(model="mock", input=items, tools=TOOLS)
    items += [item.model_dump(by_alias=by_alias) for item in got.output]
    items.append({"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "the file says 42"})
    assert client.responses.create(model="mock", input=items, tools=TOOLS).output_text == "It says 42."


@pytest.mark.parametrize(("parallel", "calls"), [(True, 2), (False, 1)])
def test_o5_two_calls_unless_only_one_is_wanted(ask: Ask, parallel: bool, calls: int) -> None:
    got = ask("both files", tools=TOOLS, parallel_tool_calls=parallel)
    assert [item.type for item in got.output] == ["function_call"] * calls


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "read_file"}])
def test_a_tool_that_has_to_be_called(ask: Ask, choice: Any) -> None:
    (call,) = ask("anything", tools=TOOLS, tool_choice=choice).output
    assert call.type == "function_call"
    assert isinstance(json.loads(call.arguments)["path"], str)


def test_text_of_a_schema(ask: Ask) -> None:
    got = ask("anything", text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}})
    assert isinstance(json.loads(got.output_text)["n"], int)
    assert got.text is not None
    assert got.text.format is not None
    assert got.text.format.type == "json_schema"


def test_o10_likelihoods(ask: Ask, client: OpenAI) -> None:
    more: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    got = ask("count to four", **more)
    (item,) = got.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert part.logprobs
    assert b"".join(bytes(one.bytes) for one in part.logprobs).startswith(b"one two three four")
    assert all(len(one.top_logprobs) == 2 for one in part.logprobs)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "nope"}, openai.NotFoundError, "model"),
        ({"max_output_tokens": 0}, openai.BadRequestError, "max_output_tokens"),
        ({"input": "word " * 4000}, openai.BadRequestError, "input"),
        ({"previous_response_id": "resp_1"}, openai.BadRequestError, "previous_response_id"),
        ({"store": True}, openai.BadRequestError, "store"),
        ({"tools": [{"type": "local_shell"}]}, openai.BadRequestError, "tools[0].type"),
        ({"extra_body": {"no_such_parameter": 1}}, openai.BadRequestError, "no_such_parameter"),
    ],
)
def test_o8_errors_of_a_request(
    client: OpenAI, stream: bool, fields: dict[str, Any], kind: type[openai.APIStatusError], param: str
) -> None:
    body: dict[str, Any] = {"model": "mock", "input": "x"}
    with pytest.raises(kind) as caught:
        client.responses.create(stream=stream, **{**body, **fields})
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_o1_an_error_after_the_first_token_reaches_the_client_as_an_exception(
    engine: MakeEngine, front: MakeFront
) -> None:
    one = engine("a", error_after_tokens=3, tokens_per_second=0).run()
    serving = front("--engine", one.url)
    with client_of(serving) as client:
        got = []
        with pytest.raises(openai.APIError) as caught:
            got.extend(client.responses.create(model="mock", input="x", max_output_tokens=9, stream=True))
        assert sum(event.type == "response.output_text.delta" for event in got) == 3
        assert caught.value.code == "engine_failed"
    serving.wait_idle()


@pytest.mark.parametrize("protocol", [ProtocolName.SGLANG, ProtocolName.VLLM])
def test_embeddings(protocol: ProtocolName, engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a", protocol=protocol.value, embeds=True, embedding_size=8).run()
    serving = front("--engine", one.url)
    with client_of(serving, strict=False) as client:  # it checks what came before it has decoded it
        tokens: Any = [[300, 301], [302]]
        plain = client.embeddings.create(model="mock", input=tokens, encoding_format="float")
        assert [(item.index, item.embedding) for item in plain.data] == [
            (0, embedding([300, 301], 8)),
            (1, embedding([302], 8)),
        ]
        assert (plain.model, plain.usage.prompt_tokens, plain.usage.total_tokens) == ("mock", 3, 3)
        # Without a word about it the client asks for base64 and reads that.
        assert [item.embedding for item in client.embeddings.create(model="mock", input=tokens).data] == [
            item.embedding for item in plain.data
        ]
        texts = client.embeddings.create(model="mock", input=["a text", "another", "a text"], user="u")
        assert len(texts.data) == 3
        assert texts.data[0].embedding == texts.data[2].embedding != texts.data[1].embedding
        assert client.embeddings.create(model="mock", input="a text").data[0].embedding == texts.data[0].embedding
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="mock", input="x", dimensions=4)
        assert caught.value.param == "dimensions"
        with pytest.raises(openai.BadRequestError, match="can generate text"):
            client.responses.create(model="mock", input="x")
    serving.wait_idle()


def test_a_model_that_generates_makes_no_embeddings(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="make embeddings") as caught:
        client.embeddings.create(model="mock", input="x")
    assert caught.value.param == "model"


def test_a_model_by_its_name(client: OpenAI) -> None:
    assert client.models.retrieve("mock").id == "mock"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
