"""Responses, streamed and whole, as the official client reads them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from enginehouse.core.api.sealed import unsealed
from enginehouse.core.output.answer import Choice, End, Identity, Likelihood, News, Usage
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall, joined
from enginehouse.core.responses.answer import response_answer
from enginehouse.core.responses.frames import ResponseFrames
from enginehouse.core.responses.request import ResponseRequest
from enginehouse.domain.errors import EngineBroken, Overloaded
from enginehouse.domain.stream import Finish

IDENTITY = Identity("resp_0123456789abcdef0123456789abcdef", "m", 7, 3)
REPEATED = {
    "instructions": None,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "temperature": None,
    "top_p": None,
    "metadata": {},
    "store": False,
}
REQUEST = ResponseRequest(model="m", messages=(), repeated=REPEATED)
USAGE = Usage(3, 5, 1, 2)
CALL = ToolCall("f", '{"a": "é\u2028"}', "call_1")


def client(body: bytes, content_type: str) -> openai.OpenAI:
    """The official client in front of this one answer; it looks at every type."""

    def respond(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=body, headers={"content-type": content_type})

    http = httpx.Client(transport=httpx.MockTransport(respond))
    return openai.OpenAI(
        api_key="none", base_url="http://test/v1", http_client=http, max_retries=0, _strict_response_validation=True
    )


def whole(pieces: Sequence[Piece], end: End, likelihoods: Sequence[Likelihood] | None = None) -> Response:
    body = response_answer(IDENTITY, REQUEST, [Choice(0, pieces, end, likelihoods)], USAGE)
    return client(body, "application/json").responses.create(model="m", input="x")


def frames_of(pieces: Sequence[Piece], end: End, request: ResponseRequest = REQUEST) -> bytes:
    frames = ResponseFrames(IDENTITY, request)
    body = frames.begin(0)
    for piece in pieces:
        plain = isinstance(piece, Content)
        body += frames.text(0, piece.text) if plain else frames.news(0, News([piece]))
    return body + frames.finish(0, end) + frames.end(USAGE)


def read(body: bytes) -> list[Any]:
    events = list(client(body, "text/event-stream").responses.create(model="m", input="x", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [line.removeprefix("event: ") for line in body.decode().split("\n") if line.startswith("event: ")]
    assert names == [event.type for event in events]
    return events


def test_text_as_the_official_client_reads_it() -> None:
    events = read(frames_of([Content("Hel"), Content('lo\n"\u2028é')], End(Finish.STOP)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    last = events[-1].response
    assert last.output_text == 'Hello\n"\u2028é'
    assert (last.status, last.usage.input_tokens, last.usage.output_tokens, last.usage.total_tokens) == (
        "completed",
        3,
        5,
        8,
    )
    assert last.usage.input_tokens_details.cached_tokens == 1
    assert last.usage.output_tokens_details.reasoning_tokens == 2
    assert last.output == whole([Content('Hello\n"\u2028é')], End(Finish.STOP)).output


def test_o5_thinking_text_and_calls_are_items_of_their_own() -> None:
    pieces = [
        Reasoning("Hm"),
        Reasoning("m."),
        Content("Let me"),
        Content(" see."),
        CALL,
        ToolCall("g", "{}", "call_2"),
    ]
    events = read(frames_of(pieces, End(Finish.STOP, called=True)))
    added = [event for event in events if event.type == "response.output_item.added"]
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.item.type for event in added] == ["reasoning", "message", "function_call", "function_call"]
    assert [event.output_index for event in added] == [event.output_index for event in done] == [0, 1, 2, 3]
    assert [event.item.id for event in added] == [event.item.id for event in done]
    assert len({event.item.id for event in added}) == 4
    assert [event.delta for event in events if event.type == "response.reasoning_text.delta"] == ["Hm", "m."]
    arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert arguments == [CALL.arguments, "{}"]
    assert [json.loads(text) for text in arguments] == [{"a": "é\u2028"}, {}]
    assert [event.item for event in done] == events[-1].response.output
    assert events[-1].response.output == whole(joined(pieces), End(Finish.STOP, called=True)).output
    assert [item.call_id for item in events[-1].response.output[2:]] == ["call_1", "call_2"]


def test_a_call_of_a_namespaces_tool_is_told_by_both_names() -> None:
    request = replace(REQUEST, names={"agents__f": ("agents", "f")})
    pieces, end = [ToolCall("agents__f", "{}", "call_1"), CALL], End(Finish.STOP, called=True)
    events = read(frames_of(pieces, end, request))
    last = events[-1].response.output
    assert [(item.namespace, item.name) for item in last] == [("agents", "f"), (None, "f")]
    added = [event.item for event in events if event.type == "response.output_item.added"]
    assert [(item.namespace, item.name) for item in added] == [("agents", "f"), (None, "f")]
    body = response_answer(IDENTITY, request, [Choice(0, pieces, end)], USAGE)
    assert client(body, "application/json").responses.create(model="m", input="x").output == last


def test_thinking_comes_packed_for_clients_that_keep_nothing_else() -> None:
    request = replace(REQUEST, seals=True)
    pieces, end = [Reasoning("Hm é"), CALL], End(Finish.STOP, called=True)
    events = read(frames_of(pieces, end, request))
    last = events[-1].response.output
    assert unsealed(last[0].encrypted_content) == "Hm é"
    assert [event.item for event in events if event.type == "response.output_item.done"] == last
    body = response_answer(IDENTITY, request, [Choice(0, pieces, end)], USAGE)
    assert client(body, "application/json").responses.create(model="m", input="x").output == last
    assert whole(pieces, end).output[0].encrypted_content is None


def test_the_clients_own_stream_puts_the_same_answer_together() -> None:
    pieces = [Reasoning("Hm"), Content("Well"), CALL, Content("done")]
    body = frames_of(pieces, End(Finish.STOP, called=True))
    with client(body, "text/event-stream").responses.stream(model="m", input="x") as stream:
        for _ in stream:
            pass
        got = stream.get_final_response()
    assert [item.type for item in got.output] == ["reasoning", "message", "function_call", "message"]
    assert got.output_text == "Welldone"


@pytest.mark.parametrize(
    ("pieces", "statuses"),
    [
        ([Content("Once")], ["incomplete"]),
        ([Reasoning("Hm")], ["incomplete"]),
        ([Reasoning("Hm"), Content("Once")], ["completed", "incomplete"]),
        ([Content("Once"), CALL], ["completed", "completed"]),
        ([], ["incomplete"]),
    ],
)
def test_o6_an_answer_cut_by_its_limit_says_so(pieces: list[Piece], statuses: list[str]) -> None:
    end = End(Finish.LENGTH, called=CALL in pieces)
    events = read(frames_of(pieces, end))
    assert events[-1].type == "response.incomplete"
    for got in (events[-1].response, whole(pieces, end)):
        assert (got.status, got.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert [item.status for item in got.output] == statuses


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    got = read(frames_of([], End(Finish.STOP)))[-1].response
    assert (got.output_text, [item.type for item in got.output]) == ("", ["message"])
    assert got.output == whole([], End(Finish.STOP)).output


def test_o1_a_response_that_fails_ends_so_and_the_client_raises() -> None:
    frames = ResponseFrames(IDENTITY, REQUEST)
    body = frames.begin(0) + frames.news(0, News([Reasoning("Hm")])) + frames.text(0, "Hel")
    body += frames.error(EngineBroken("it broke"))
    got = []
    with pytest.raises(openai.APIError, match="it broke") as caught:
        got.extend(client(body, "text/event-stream").responses.create(model="m", input="x", stream=True))
    assert caught.value.code == "engine_broken"
    assert got[-1].delta == "Hel"
    error, failed = [json.loads(part.split("data: ")[1]) for part in body.decode().split("\n\n")[-3:-1]]
    assert (error["type"], error["code"], error["message"]) == ("error", "engine_broken", "it broke")
    assert failed["type"] == "response.failed"
    last = Response.model_validate(failed["response"])
    assert (last.status, last.error and last.error.code) == ("failed", "server_error")
    assert [(item.type, item.status) for item in last.output] == [("reasoning", "completed"), ("message", "incomplete")]
    assert last.output_text == "Hel"


def test_a_response_that_fails_before_any_text() -> None:
    frames = ResponseFrames(IDENTITY, REQUEST)
    body = frames.begin(0) + frames.error(Overloaded("full"))
    failed = json.loads(body.decode().split("data: ")[-1])["response"]
    assert (failed["output"], failed["error"]["code"]) == ([], "rate_limit_exceeded")


def test_o10_likelihoods_stand_with_the_text_that_they_are_of() -> None:
    def of(token: str) -> Likelihood:
        return Likelihood(token, token.encode(), -0.5, ((token, token.encode(), -0.5), ("z", b"z", -2.0)))

    frames = ResponseFrames(IDENTITY, REQUEST)
    body = frames.begin(0)
    body += frames.news(0, News([Content("Hel")], [of("Hel")]))
    body += frames.news(0, News([], [of("l")]))
    body += frames.news(0, News([Content("lo")], [of("o")]))
    body += frames.news(0, News([], [of("<end>")]))
    body += frames.finish(0, End(Finish.STOP)) + frames.end(USAGE)
    events = read(body)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [[one.token for one in delta.logprobs] for delta in deltas] == [["Hel"], ["l", "o"]]
    assert [one.token for one in deltas[0].logprobs[0].top_logprobs] == ["Hel", "z"]
    part = events[-1].response.output[0].content[0]
    assert [(one.token, bytes(one.bytes)) for one in part.logprobs] == [
        (token, token.encode()) for token in ("Hel", "l", "o", "<end>")
    ]
    same = whole([Content("Hello")], End(Finish.STOP), [of("Hel"), of("l"), of("o"), of("<end>")])
    assert same.output == events[-1].response.output


def test_o10_of_several_messages_the_first_has_the_likelihoods() -> None:
    one = Likelihood("a", b"a", -0.5)
    frames = ResponseFrames(IDENTITY, REQUEST)
    body = frames.begin(0) + frames.news(0, News([Content("a")], [one])) + frames.news(0, News([CALL], [one]))
    body += frames.news(0, News([Content("b")], [one])) + frames.finish(0, End(Finish.STOP)) + frames.end(USAGE)
    done = [event.item for event in read(body) if event.type == "response.output_item.done"]
    # What the call was made of is there when its message ends, what comes later is not.
    assert [len(item.content[0].logprobs) for item in (done[0], done[2])] == [2, 0]
    last = whole([Content("a"), CALL, Content("b")], End(Finish.STOP), [one] * 3)
    assert [len(item.content[0].logprobs) for item in (last.output[0], last.output[2])] == [3, 0]


PIECES = st.lists(
    st.builds(Content, st.text(min_size=1, max_size=5))
    | st.builds(Reasoning, st.text(min_size=1, max_size=5))
    | st.builds(ToolCall, st.sampled_from("fg"), st.just("{}"), st.uuids().map(str)),
    max_size=8,
)


@given(PIECES, st.sampled_from(Finish))
def test_o2_streamed_and_whole_are_the_same(pieces: list[Piece], finish: Finish) -> None:
    events = [
        json.loads(part.split("data: ")[1]) for part in frames_of(pieces, End(finish)).decode().split("\n\n")[:-1]
    ]
    body = response_answer(IDENTITY, REQUEST, [Choice(0, pieces, End(finish))], USAGE)
    assert events[-1]["response"] == json.loads(body)
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == json.loads(body)[
        "output"
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert not any("\u2028" in part or "\x85" in part for part in frames_of(pieces, End(finish)).decode().split("\n"))
