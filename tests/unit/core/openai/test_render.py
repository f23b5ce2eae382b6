import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enginehouse.core.openai import render
from enginehouse.core.openai.answers import ModelEntry, model_body
from enginehouse.domain.errors import (
    ContextLengthExceeded,
    EngineBroken,
    EnginehouseError,
    EngineTimeout,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    NoEngine,
    NotFound,
    Overloaded,
    RequestTooLarge,
    ShuttingDown,
)

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1}
Answering = Callable[[openai.OpenAI], Any]


def client(status: int, body: bytes, content_type: str = "text/event-stream") -> openai.OpenAI:
    """The official client in front of this one answer."""

    def respond(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=body, headers={"content-type": content_type})

    http = httpx.Client(transport=httpx.MockTransport(respond))
    return openai.OpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0)


def chat(api: openai.OpenAI, stream: bool = True) -> Any:
    return api.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=stream)


def events(body: bytes) -> Iterator[Any]:
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        assert event.startswith("data: ")
        assert "\n" not in event
        data = event.removeprefix("data: ")
        yield data if data == "[DONE]" else json.loads(data)


def test_o1_o7_a_chat_stream_as_the_official_client_reads_it() -> None:
    for include_usage in (False, True):
        frames = render.ChatStream("chatcmpl-1", "m", 7, include_usage)
        body = frames.first() + frames.text("Hel") + frames.text("lo\n\"'\\") + frames.last("stop", **USAGE)
        chunks = list(chat(client(200, body)))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello\n\"'\\"
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None, None, None, "stop"]
        assert {(c.id, c.model, c.created, c.object) for c in chunks} == {
            ("chatcmpl-1", "m", 7, "chat.completion.chunk")
        }
        if include_usage:
            assert chunks[-1].choices == []
            assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 1
            assert chunks[-1].usage.total_tokens == 5
            assert [chunk.usage for chunk in chunks[:-1]] == [None] * 4
        else:
            assert len(chunks) == 4
        raw = list(events(body))
        assert raw[-1] == "[DONE]"
        assert all(("usage" in event) is include_usage for event in raw[:-1])


def test_o1_o7_a_completion_stream_as_the_official_client_reads_it() -> None:
    frames = render.CompletionStream("cmpl-1", "m", 7, True)
    body = frames.first() + frames.text("Hel") + frames.text("lo") + frames.last("length", **USAGE)
    chunks: list[Any] = list(client(200, body).completions.create(model="m", prompt="x", stream=True))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "Hello"
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None, None, "length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 2


def test_whole_answers_as_the_official_client_reads_them() -> None:
    body = render.chat_answer("chatcmpl-1", "m", 7, "Hi", "stop", **USAGE)
    answer = chat(client(200, body, "application/json"), stream=False)
    assert answer.choices[0].message.content == "Hi"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    body = render.completion_answer("cmpl-1", "m", 7, "Hi", "length", prompt_tokens=3, completion_tokens=2)
    text: Any = client(200, body, "application/json").completions.create(model="m", prompt="x")
    assert (text.choices[0].text, text.choices[0].finish_reason) == ("Hi", "length")
    assert text.usage.prompt_tokens_details is None


def test_models_as_the_official_client_reads_them() -> None:
    entries = [ModelEntry("m", 7, 4096), ModelEntry("alias", 7, 4096, root="m")]
    models = list(client(200, render.models_list(entries), "application/json").models.list())
    assert [(model.id, model.owned_by, model.created) for model in models] == [
        ("m", "enginehouse", 7),
        ("alias", "enginehouse", 7),
    ]
    assert client(200, model_body(entries[0]), "application/json").models.retrieve("m").id == "m"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (InvalidRequest("wrong", param="top_p", code="unsupported_parameter"), openai.BadRequestError),
        (ContextLengthExceeded("long", param="messages"), openai.BadRequestError),
        (ModelNotFound("unknown", param="model"), openai.NotFoundError),
        (NotFound("no such path"), openai.NotFoundError),
        (MethodNotAllowed("no"), openai.APIStatusError),
        (RequestTooLarge("big"), openai.APIStatusError),
        (Overloaded("full", retry_after=1), openai.RateLimitError),
        (NoEngine("none", retry_after=1), openai.InternalServerError),
        (ShuttingDown("bye"), openai.InternalServerError),
        (EngineTimeout("slow"), openai.InternalServerError),
        (EnginehouseError("ours"), openai.InternalServerError),
    ],
)
def test_o8_every_error_is_parsed_by_the_official_client(
    error: EnginehouseError, raised: type[openai.APIStatusError]
) -> None:
    with pytest.raises(raised) as caught:
        chat(client(error.status, render.error_body(error), "application/json"))
    assert caught.value.status_code == error.status
    assert caught.value.body == {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    assert (caught.value.param, caught.value.code, caught.value.type) == (error.param, error.code, error.type)


def test_m2_a_stream_that_fails_raises_in_the_official_client_after_what_came() -> None:
    frames = render.ChatStream("chatcmpl-1", "m", 7)
    body = frames.first() + frames.text("Hel") + render.error_frame(EngineBroken("it\nwent", code="engine_broken"))
    stream = iter(chat(client(200, body)))
    assert next(stream).choices[0].delta.content == ""
    assert next(stream).choices[0].delta.content == "Hel"
    with pytest.raises(openai.APIError, match="it\nwent") as caught:
        next(stream)
    assert caught.value.code == "engine_broken"
    assert b"[DONE]" not in body


@given(st.text())
@example("a\x85b\u2028c\u2029d\x0be\x1cf\rg\nh")
def test_o2_any_text_survives_and_never_breaks_a_line(text: str) -> None:
    for frames in (render.ChatStream(text, text, 7), render.CompletionStream(text, text, 7)):
        frame = frames.text(text)
        assert len(frame.decode().splitlines()) == 2  # the widest notion of a line end
        (event,) = events(frame)
        choice = event["choices"][0]
        assert (choice["delta"]["content"] if "delta" in choice else choice["text"]) == text
        assert event["id"] == event["model"] == text
