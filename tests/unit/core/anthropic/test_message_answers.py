"""Messages, streamed and whole, as Anthropic's client reads them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.anthropic.answer import error_answer, message_answer
from enginehouse.core.anthropic.frames import MessageFrames
from enginehouse.core.anthropic.parse import parse_count, parse_message
from enginehouse.core.anthropic.request import MessageRequest
from enginehouse.core.api.sealed import unsealed
from enginehouse.core.output.answer import Choice, End, Identity, News, Usage
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall, joined
from enginehouse.domain import errors
from enginehouse.domain.stream import Finish

IDENTITY = Identity("msg_0123456789abcdef0123456789abcdef", "m", 7, 10)
REQUEST = MessageRequest(model="m", messages=())
OMITTING = replace(REQUEST, omits_thinking=True)
USAGE = Usage(10, 5, 4, 2)
CALL = ToolCall("f", '{"a": "é\u2028", "n": 12345678901234567890}', "call_1")
ASK: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}


def client(body: bytes, content_type: str, status: int = 200) -> anthropic.Anthropic:
    """Anthropic's client in front of this one answer; it looks at every type."""

    def respond(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=body, headers={"content-type": content_type})

    http = httpx2.Client(transport=httpx2.MockTransport(respond))
    return anthropic.Anthropic(
        api_key="none", base_url="http://test", http_client=http, max_retries=0, _strict_response_validation=True
    )


def whole(pieces: Sequence[Piece], end: End) -> Message:
    body = message_answer(IDENTITY, REQUEST, [Choice(0, pieces, end)], USAGE)
    return client(body, "application/json").messages.create(**ASK)


def frames_of(pieces: Sequence[Piece], end: End, request: MessageRequest = REQUEST) -> bytes:
    frames = MessageFrames(IDENTITY, request)
    body = frames.begin(0)
    for piece in pieces:
        plain = isinstance(piece, Content)
        body += frames.text(0, piece.text) if plain else frames.news(0, News([piece]))
    return body + frames.finish(0, end) + frames.end(USAGE)


def read(body: bytes) -> list[Any]:
    events = list(client(body, "text/event-stream").messages.create(stream=True, **ASK))
    names = [line.removeprefix("event: ") for line in body.decode().split("\n") if line.startswith("event: ")]
    assert names == [event.type for event in events]
    return events


def final(body: bytes) -> Message:
    with client(body, "text/event-stream").messages.stream(**ASK) as stream:
        return stream.get_final_message()


def test_text_as_the_client_reads_it() -> None:
    body = frames_of([Content("Hel"), Content('lo\n"\u2028é')], End(Finish.STOP))
    events = read(body)
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    started = events[0].message
    assert (started.id, started.model, started.usage.input_tokens, started.stop_reason) == (
        IDENTITY.answer_id,
        "m",
        10,
        None,
    )
    assert (events[-2].delta.stop_reason, events[-2].delta.stop_sequence) == ("end_turn", None)
    usage = events[-2].usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (6, 4, 5)
    assert usage.output_tokens_details.thinking_tokens == 2
    one = whole([Content('Hello\n"\u2028é')], End(Finish.STOP))
    assert final(body).content[0].to_dict() == one.content[0].to_dict()
    assert one.usage.to_dict() == final(body).usage.to_dict()


def test_o5_thinking_text_and_tools_are_blocks_of_their_own() -> None:
    pieces = [
        Reasoning("Hm"),
        Reasoning("m."),
        Content("Let me"),
        Content(" see."),
        CALL,
        ToolCall("g", "{}", "call_2"),
    ]
    end = End(Finish.STOP, called=True)
    body = frames_of(pieces, end)
    events = read(body)
    begun = [event for event in events if event.type == "content_block_start"]
    assert [event.content_block.type for event in begun] == ["thinking", "text", "tool_use", "tool_use"]
    assert [event.index for event in begun] == [0, 1, 2, 3]
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert [delta.type for delta in deltas] == [
        *("thinking_delta", "thinking_delta", "signature_delta"),
        *("text_delta", "text_delta"),
        *("input_json_delta", "input_json_delta"),
    ]
    assert events[-2].delta.stop_reason == "tool_use"
    together, one = final(body), whole(joined(pieces), end)
    assert [block.to_dict() for block in together.content] == [block.to_dict() for block in one.content]
    assert one.content[2].to_dict() == {
        "type": "tool_use",
        "id": "call_1",
        "name": "f",
        "input": {"a": "é\u2028", "n": 12345678901234567890},
    }
    assert one.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (End(Finish.STOP), "end_turn", None),
        (End(Finish.LENGTH), "max_tokens", None),
        (End(Finish.STOP, stop="###"), "stop_sequence", "###"),
        (End(Finish.STOP, called=True), "tool_use", None),
        (End(Finish.STOP, called=True, stop="###"), "tool_use", None),
        (End(Finish.LENGTH, called=True), "max_tokens", None),
    ],
)
def test_o3_why_a_message_ended(end: End, reason: str, sequence: str | None) -> None:
    for got in (whole([Content("x")], end), final(frames_of([Content("x")], end))):
        assert (got.stop_reason, got.stop_sequence) == (reason, sequence)


def test_an_answer_of_nothing_has_no_blocks() -> None:
    assert whole([], End(Finish.STOP)).content == final(frames_of([], End(Finish.STOP))).content == []


def test_o1_a_message_that_fails_makes_the_client_raise() -> None:
    frames = MessageFrames(IDENTITY, REQUEST)
    body = frames.begin(0) + frames.text(0, "Hel") + frames.error(errors.EngineBroken("it broke"))
    got = []
    with pytest.raises(anthropic.APIStatusError, match="it broke"):
        got.extend(client(body, "text/event-stream").messages.create(stream=True, **ASK))
    assert got[-1].delta.text == "Hel"
    assert b"message_stop" not in body


@pytest.mark.parametrize(
    ("error", "kind", "raised"),
    [
        (errors.InvalidRequest("no"), "invalid_request_error", anthropic.BadRequestError),
        (errors.ModelNotFound("no"), "not_found_error", anthropic.NotFoundError),
        (errors.MethodNotAllowed("no"), "invalid_request_error", anthropic.APIStatusError),
        (errors.RequestTooLarge("no"), "request_too_large", anthropic.RequestTooLargeError),
        (errors.RequestTimeout("no"), "timeout_error", anthropic.APIStatusError),
        (errors.EngineOverloaded("no"), "rate_limit_error", anthropic.RateLimitError),
        (errors.NoEngine("no"), "overloaded_error", anthropic.APIStatusError),
        (errors.EngineTimeout("no"), "timeout_error", anthropic.APIStatusError),
        (errors.EngineFailed("no"), "api_error", anthropic.InternalServerError),
        (errors.EngineBroken("no"), "api_error", anthropic.InternalServerError),
    ],
)
def test_o8_errors_in_the_envelope_of_this_api(
    error: errors.EnginehouseError, kind: str, raised: type[anthropic.APIStatusError]
) -> None:
    body = error_answer(error)
    assert json.loads(body) == {"type": "error", "error": {"type": kind, "message": "no"}}
    with pytest.raises(raised) as caught:
        client(body, "application/json", error.status).messages.create(**ASK)
    assert caught.value.status_code == error.status


def test_threads_are_refused_in_the_words_that_clients_fall_back_on() -> None:
    body = json.dumps({"model": "m", "thread": {"type": "create"}, "messages": ASK["messages"]}).encode()
    for parse in (parse_message, parse_count):
        with pytest.raises(errors.InvalidRequest) as caught:
            parse(body)
        error = json.loads(error_answer(caught.value))["error"]
        assert "'thread' is not supported: nothing is kept here" in error["message"]
        assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def test_a_prompt_that_does_not_fit_is_told_in_the_words_that_agents_look_for() -> None:
    for param, asked, words in (
        ("messages", (9,), "prompt is too long: 9 tokens > 8 maximum: why"),
        ("messages", (), "prompt is too long: why"),
        ("max_tokens", (5, 6), "input length and `max_tokens` exceed context limit: 5 + 6 > 8: why"),
        ("max_tokens", (), "why"),
        ("min_tokens", (), "why"),
    ):
        error = errors.ContextLengthExceeded("why", param=param, asked=asked, limit=8)
        assert json.loads(error_answer(error))["error"]["message"] == words


def test_thinking_that_is_not_to_be_shown_is_in_the_signature() -> None:
    got = final(frames_of([Reasoning("Hm"), Reasoning(" é"), CALL, Reasoning("z")], End(Finish.STOP), OMITTING))
    kept = [block for block in got.content if block.type == "thinking"]
    assert [(block.thinking, unsealed(block.signature)) for block in kept] == [("", "Hm é"), ("", "z")]


PIECES = st.lists(
    st.builds(Content, st.text(min_size=1, max_size=5))
    | st.builds(Reasoning, st.text(min_size=1, max_size=5))
    | st.builds(ToolCall, st.sampled_from("fg"), st.sampled_from(["{}", '{"a":[1]}']), st.uuids().map(str)),
    max_size=8,
)


@given(PIECES, st.sampled_from([REQUEST, OMITTING]))
def test_o2_streamed_and_whole_are_the_same(pieces: list[Piece], request: MessageRequest) -> None:
    blocks: list[dict[str, Any]] = []
    for part in frames_of(pieces, End(Finish.STOP), request).decode().split("\n\n")[:-1]:
        assert part.count("\n") == 1
        event = json.loads(part.split("data: ")[1])
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(blocks)
                blocks.append(dict(block))
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                kind, (name, text) = delta.pop("type"), *delta.items()
                if kind == "input_json_delta":
                    blocks[index]["input"] = json.loads(text)
                else:
                    blocks[index][name] += text
    whole = json.loads(message_answer(IDENTITY, request, [Choice(0, pieces, End(Finish.STOP))], USAGE))
    assert blocks == whole["content"]
