import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from enginehouse.core.openai.answers import (
    ModelEntry,
    chat_answer,
    completion_answer,
    error_body,
    finish_reason,
    model_body,
    models_list,
)
from enginehouse.core.openai.chat_frames import ChatFrames
from enginehouse.core.openai.completion_frames import CompletionFrames
from enginehouse.core.openai.logprobs import completion_logprobs
from enginehouse.core.output.answer import Choice, Echo, End, Identity, Likelihood, News, Usage
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall
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
from enginehouse.domain.stream import Finish

CHAT, TEXT = Identity("chatcmpl-1", "m", 7), Identity("cmpl-1", "m", 7)
USAGE = Usage(3, 2, 1)
STOP = End(Finish.STOP)
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
        frames = ChatFrames(CHAT, include_usage=include_usage)
        body = frames.begin(0) + frames.text(0, "Hel") + frames.text(0, "lo\n\"'\\") + frames.finish(0, STOP)
        body += frames.end(USAGE)
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
            assert chunks[-1].usage.completion_tokens_details is None
            assert chunks[-1].usage.total_tokens == 5
            assert [chunk.usage for chunk in chunks[:-1]] == [None] * 4
        else:
            assert len(chunks) == 4
        raw = list(events(body))
        assert raw[-1] == "[DONE]"
        assert all(("usage" in event) is include_usage for event in raw[:-1])


def test_o1_o7_a_completion_stream_as_the_official_client_reads_it() -> None:
    frames = CompletionFrames(TEXT, include_usage=True)
    body = frames.begin(0) + frames.text(0, "Hel") + frames.text(0, "lo")
    body += frames.finish(0, End(Finish.LENGTH)) + frames.end(USAGE)
    chunks: list[Any] = list(client(200, body).completions.create(model="m", prompt="x", stream=True))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "Hello"
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None, None, "length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 2


def test_whole_answers_as_the_official_client_reads_them() -> None:
    choice = Choice(0, (Content("Hi"),), STOP)
    body = chat_answer(CHAT, [choice], USAGE, "reasoning_content")
    answer = chat(client(200, body, "application/json"), stream=False)
    assert answer.choices[0].message.content == "Hi"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    body = completion_answer(TEXT, [replace(choice, end=End(Finish.LENGTH))], Usage(3, 2))
    text: Any = client(200, body, "application/json").completions.create(model="m", prompt="x")
    assert (text.choices[0].text, text.choices[0].finish_reason) == ("Hi", "length")
    assert text.usage.prompt_tokens_details is None


PIECES = (
    Reasoning("hm"),
    Content("Let me see."),
    ToolCall("add", '{"a": 1}', "call_1"),
    ToolCall("now", "", "call_2"),
)


def test_o5_calls_are_said_once_and_then_their_arguments() -> None:
    frames = ChatFrames(CHAT, calls=True)
    assert (frames.begin(0) + frames.news(0, News())).count(b"data: ") == 1
    deltas = [event["choices"][0]["delta"] for event in events(frames.news(0, News(PIECES)))]
    assert deltas == [
        {"reasoning_content": "hm"},
        {"content": "Let me see."},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_2", "type": "function", "function": {"name": "now", "arguments": ""}}
            ]
        },
    ]


def test_o5_calls_of_several_choices_are_counted_apart() -> None:
    frames = ChatFrames(CHAT, choices=2, calls=True)
    for choice in (0, 1):
        first = next(events(frames.news(choice, News(PIECES[2:3]))))["choices"][0]
        assert (first["index"], first["delta"]["tool_calls"][0]["index"]) == (choice, 0)


@pytest.mark.parametrize(
    ("pieces", "content"),
    [((Content("x"),), "x"), (PIECES[2:], None), (PIECES[:1], None), ((), ""), (PIECES, "Let me see.")],
)
def test_a_whole_message_has_no_content_where_something_else_stands_for_it(
    pieces: tuple[Piece, ...], content: str | None
) -> None:
    end = End(Finish.STOP, called=any(isinstance(piece, ToolCall) for piece in pieces))
    body = chat_answer(CHAT, [Choice(0, pieces, end)], Usage(3, 2, None, 1), "reasoning")
    answer = chat(client(200, body, "application/json"), stream=False)
    message = answer.choices[0].message
    assert message.content == content
    assert message.model_extra == ({"reasoning": "hm"} if PIECES[0] in pieces else {})
    assert answer.choices[0].finish_reason == ("tool_calls" if end.called else "stop")
    assert [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ()] == [
        (piece.id, piece.name, piece.arguments) for piece in pieces if isinstance(piece, ToolCall)
    ]
    assert answer.usage.completion_tokens_details.reasoning_tokens == 1


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (End(Finish.STOP), "stop"),
        (End(Finish.STOP, called=True), "tool_calls"),
        (End(Finish.LENGTH, called=True), "length"),
        (End(Finish.LENGTH), "length"),
        (End(Finish.STOP, stop="X"), "stop"),
    ],
)
def test_o1_the_finish_reason_of_every_end(end: End, reason: str) -> None:
    assert finish_reason(end) == reason
    (event,) = events(ChatFrames(CHAT).finish(0, end))
    assert event["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}


TOKENS = (
    Likelihood("Hé", "Hé".encode(), -0.5, (("Hé", "Hé".encode(), -0.5), ("\ufffd", b"\xc3", -2.0)), 5, 0),
    Likelihood("\ufffd", b"\xe2", -9999.0, (("\ufffd", b"\xc3", -0.25), ("\ufffd", b"\xe2", -9999.0)), 6, 2),
)
PROMPT = (Likelihood("<s>", b"<s>", None, (), 1, 0), Likelihood("ab", b"ab", -1.0, (), 2, 0))


def test_o10_chat_logprobs_as_the_official_client_reads_them() -> None:
    choice = Choice(0, (Content("Hé"),), STOP, TOKENS)
    answer = chat(client(200, chat_answer(CHAT, [choice], USAGE, "r"), "application/json"), stream=False)
    frames = ChatFrames(CHAT)
    (chunk,) = chat(client(200, frames.news(0, News(choice.pieces, TOKENS))))
    for logprobs in (answer.choices[0].logprobs, chunk.choices[0].logprobs):
        first, second = logprobs.content
        assert (first.token, bytes(first.bytes).decode(), first.logprob) == ("Hé", "Hé", -0.5)
        assert [(top.token, bytes(top.bytes), top.logprob) for top in first.top_logprobs] == list(TOKENS[0].top)
        assert (second.token, bytes(second.bytes), second.logprob) == ("\ufffd", b"\xe2", -9999.0)
        assert logprobs.refusal is None


def test_o10_tokens_that_gave_no_text_of_their_own_have_a_chunk_all_the_same() -> None:
    (event,) = events(ChatFrames(CHAT).news(0, News((), TOKENS, [5, 6])))
    (choice,) = event["choices"]
    assert (choice["delta"], choice["token_ids"], len(choice["logprobs"]["content"])) == ({}, [5, 6], 2)


def test_o10_completion_logprobs_with_the_prompt_before_them() -> None:
    choice = Choice(0, (Content("Hé"),), STOP, TOKENS, [5, 6], Echo("ab", PROMPT, [1, 2]))
    body = completion_answer(TEXT, [choice], USAGE)
    text: Any = client(200, body, "application/json").completions.create(model="m", prompt="x")
    logprobs = text.choices[0].logprobs
    assert text.choices[0].text == "abHé"
    assert logprobs.tokens == ["<s>", "ab", "Hé", "bytes:\\xe2"]
    assert logprobs.token_logprobs == [None, -1.0, -0.5, -9999.0]
    assert logprobs.text_offset == [0, 0, 2, 4]
    assert logprobs.top_logprobs == [
        None,
        {"ab": -1.0},
        {"Hé": -0.5, "bytes:\\xc3": -2.0},
        {"bytes:\\xc3": -0.25, "bytes:\\xe2": -9999.0},
    ]
    frames = CompletionFrames(TEXT)
    parts = (News((), (), [], choice.echo), News(choice.pieces, TOKENS[:1], [5]), News((), TOKENS[1:], [6]))
    chunks = [event["choices"][0] for part in parts for event in events(frames.news(0, part))]
    assert "".join(chunk["text"] for chunk in chunks) == "abHé"
    for name, whole in logprobs.to_dict().items():
        assert [one for chunk in chunks for one in chunk["logprobs"][name]] == whole
    assert [token for chunk in chunks for token in chunk["token_ids"]] == [5, 6]
    assert chunks[0]["prompt_token_ids"] == [1, 2]


def test_o10_tokens_of_a_completion_that_look_the_same() -> None:
    """Parts of characters are told apart by their bytes; of two ids with equal bytes the one that was taken counts."""
    parts = [("\ufffd", raw, -float(at)) for at, raw in enumerate((b"\xf0\x9f", b"\xf0", b" \\\xf0", b"\xef\xbf\xbd"))]
    taken = Likelihood("a", b"a", -5.0, (("a", b"a", -4.0), *parts), 1, 0)
    (top,) = completion_logprobs([taken])["top_logprobs"]
    assert top == {
        "a": -5.0,
        "bytes:\\xf0\\x9f": 0.0,
        "bytes:\\xf0": -1.0,
        "bytes: \\x5c\\xf0": -2.0,
        "\ufffd": -3.0,
    }


def test_token_ids_of_a_chat_stand_in_the_choice_and_those_of_its_prompt_beside_it() -> None:
    choice = Choice(0, (Content("Hé"),), STOP, None, [5], Echo(token_ids=[1, 2]))
    body = json.loads(chat_answer(CHAT, [choice], USAGE, "r"))
    (event,) = events(ChatFrames(CHAT).news(0, News(choice.pieces, None, [5], choice.echo)))
    for answer in (body, event):
        assert answer["prompt_token_ids"] == [1, 2]
        assert answer["choices"][0]["token_ids"] == [5]


def test_models_as_the_official_client_reads_them() -> None:
    entries = [ModelEntry("m", 7, 4096), ModelEntry("alias", 7, 4096, root="m")]
    models = list(client(200, models_list(entries), "application/json").models.list())
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
        chat(client(error.status, error_body(error), "application/json"))
    assert caught.value.status_code == error.status
    assert caught.value.body == {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    assert (caught.value.param, caught.value.code, caught.value.type) == (error.param, error.code, error.type)


def test_m2_a_stream_that_fails_raises_in_the_official_client_after_what_came() -> None:
    frames = ChatFrames(CHAT)
    body = frames.begin(0) + frames.text(0, "Hel") + frames.error(EngineBroken("it\nwent", code="engine_broken"))
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
    identity = Identity(text, text, 7)
    chats, completions = ChatFrames(identity), CompletionFrames(identity)
    news = News((Content(text),))
    for frame in (chats.text(0, text), chats.news(0, news), completions.text(0, text)):
        assert len(frame.decode().splitlines()) == 2  # the widest notion of a line end
        (event,) = events(frame)
        choice = event["choices"][0]
        assert (choice["delta"]["content"] if "delta" in choice else choice["text"]) == text
        assert event["id"] == event["model"] == text
