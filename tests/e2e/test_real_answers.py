"""What clients ask for beyond text, over HTTP from a real vLLM (scripts/test-vllm-cpu): its own sampler and grammars.

Its model is random, so answers are nonsense: what is held is their form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import validate
from openai import APIError, BadRequestError, OpenAI

from enginehouse.adapters.engines.engine import Engine
from tests.contract.engine_peers import VLLM_CPU, Server, serve
from tests.contract.test_engines import with_engine
from tests.contract.test_vllm_wishes import no_blanks as blanks_forbidden
from tests.e2e.support import WITHIN, Front

if TYPE_CHECKING:
    from tests.e2e.conftest import MakeFront

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("server", [VLLM_CPU.param()], indirect=True)]

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["red", "blue"]}, "many": {"type": "boolean"}},
    "required": ["kind", "many"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("paint", "count")]
SAME: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(request.param, tmp_path_factory.mktemp("answers")) as running:
        yield running


@pytest.fixture
def running(server: Server, front: MakeFront) -> Front:
    return front("--engine", f"grpc://127.0.0.1:{server.port}", "--engine", f"grpc://localhost:{server.port}")


@pytest.fixture
def client(running: Front) -> Iterator[OpenAI]:
    url = f"http://127.0.0.1:{running.port}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=2 * WITHIN) as made:
        yield made


def chat(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=HELLO, **more)


def no_blanks(server: Server) -> dict[str, float]:
    """A model that has learned nothing would fill JSON with white space for ever."""
    found: list[tuple[int, float]] = []

    async def look(engine: Engine) -> None:
        found.extend(await blanks_forbidden(engine))

    with_engine(server, look)
    return {str(token): bias for token, bias in found}


def test_a_stream_is_the_whole_with_its_log_probabilities(client: OpenAI) -> None:
    asked = {**SAME, "logprobs": True, "top_logprobs": 2}
    chat(client, **asked)  # from here on the prompt is in the cache
    whole = chat(client, **asked).choices[0]
    parts = [chunk.choices[0] for chunk in chat(client, **asked, stream=True)]
    assert "".join(part.delta.content or "" for part in parts) == whole.message.content
    assert parts[-1].finish_reason == whole.finish_reason == "length"
    streamed = [one for part in parts if part.logprobs for one in part.logprobs.content or ()]
    assert len(streamed) == 12
    assert [one.token for one in streamed] == [one.token for one in whole.logprobs.content]
    for ours, theirs in zip(streamed, whole.logprobs.content, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=0.01)
        assert len(ours.top_logprobs) == 2
        assert (ours.top_logprobs[0].token, ours.top_logprobs[0].logprob) == (ours.token, ours.logprob)
    told = b"".join(bytes(one.bytes or ()) for one in streamed)
    assert told.decode(errors="replace") == whole.message.content


def test_o11_two_choices_are_two_answers(client: OpenAI) -> None:
    asked = {**SAME, "temperature": 1.5, "n": 2, "seed": 1}
    answer = chat(client, **asked)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert len(set(texts)) == 2
    assert answer.usage.completion_tokens == 24
    streamed = ["", ""]
    for chunk in chat(client, **asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_o3_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    said = chat(client, **SAME).choices[0].message.content
    stop = said[len(said) // 2 :][:4]
    before = said[: said.index(stop)]
    whole = chat(client, **SAME, stop=[stop]).choices[0]
    assert (whole.message.content, whole.finish_reason) == (before, "stop")
    parts = [chunk.choices[0] for chunk in chat(client, **SAME, stop=[stop], stream=True)]
    assert "".join(part.delta.content or "" for part in parts) == before
    assert parts[-1].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_conforms_to_its_schema(client: OpenAI, server: Server, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    asked = {"response_format": form, "max_tokens": 200, "seed": 5, "logit_bias": no_blanks(server)}
    answer = chat(client, **asked, stream=stream)
    if stream:
        parts = [chunk.choices[0] for chunk in answer]
        text, finish = "".join(part.delta.content or "" for part in parts), parts[-1].finish_reason
    else:
        text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
    validate(json.loads(text), SCHEMA)
    assert finish == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "count"}}])
def test_a_forced_call_conforms_to_its_parameters(client: OpenAI, server: Server, choice: Any) -> None:
    asked = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 200, "seed": 5, "logit_bias": no_blanks(server)}
    answer = chat(client, **asked, parallel_tool_calls=False).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name in (("paint", "count") if choice == "required" else ("count",))
    validate(json.loads(call.function.arguments), SCHEMA)
    assert not answer.message.content


ENDLESS = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"anyOf": [{"$ref": "#"}]}}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("guided_grammar", "root ::= root"),
        ("guided_regex", r"[^\s\S]"),
        ("guided_regex", r"abc[^\s\S]"),  # fails midway
        ("response_format", ENDLESS),
    ],
)
def test_a_constraint_that_it_fails_is_the_clients_fault(
    client: OpenAI, running: Front, field: str, value: Any
) -> None:
    for _ in range(5):
        with pytest.raises(BadRequestError) as caught:
            chat(client, max_tokens=30, extra_body={field: value})
        assert caught.value.param is not None
        assert caught.value.param.startswith(field)
    assert in_service(running)


def test_a_stream_whose_constraint_it_fails_ends_with_an_error_that_names_it(client: OpenAI, running: Front) -> None:
    """It sends a token with its failure: the stream has begun."""
    for _ in range(5):
        with pytest.raises(APIError) as caught:
            list(chat(client, max_tokens=30, stream=True, extra_body={"guided_grammar": "root ::= root"}))
        assert (caught.value.param, caught.value.code) == ("guided_grammar", "invalid_constraint")
    assert in_service(running)


def in_service(running: Front) -> bool:
    """All of its engines are, and were."""
    states = [row["state"] for row in running.page()["engines"]]
    return states == ["serving", "serving"] and "suspect" not in running.child.output


def test_a_constraint_that_it_rejects_names_the_field(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        chat(client, max_tokens=3, extra_body={"guided_regex": "(["})
    assert (caught.value.param, caught.value.code) == ("guided_regex", "engine_rejected")
