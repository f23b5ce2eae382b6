"""Answers of several choices: indices, ends, usage, retries and failures, on fake engines."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from enginehouse.domain import errors
from enginehouse.domain.stream import Finish
from enginehouse.testing.engines import FakeCall
from enginehouse.testing.feeds import fake_wanted
from tests.unit.http.test_completions import TOKENIZER, Edge, error, events, run
from tests.unit.http.test_cost import Client
from tests.unit.http.test_cost import run as served

PATHS = ("/v1/chat/completions", "/v1/completions")


def tokens(text: str) -> list[int]:
    return list(TOKENIZER._encode(text, False))


def texts(chunks: Sequence[Any]) -> dict[int, str]:
    """By index, what a stream brought."""
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            found[choice["index"]] = found.get(choice["index"], "") + (text or "")
    return found


def ends(chunks: Sequence[Any]) -> list[tuple[int, str]]:
    found = [(c["index"], c["finish_reason"]) for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    return sorted(found)


@pytest.mark.parametrize("path", PATHS)
def test_o1_o11_each_choice_of_a_stream_ends_once_and_the_stream_once(path: str) -> None:
    async def scenario(edge: Edge) -> None:
        more = {"stream_options": {"include_usage": True}}
        request = asyncio.create_task(edge.post(path, n=3, stream=True, **more))
        calls = await edge.calls(3)
        assert len({call.request.request_id for call in calls}) == 3
        for call, text in zip(calls, ("one", "two", "three"), strict=True):
            call.deliver(tokens(text), cached=1)
        for call, finish in zip(reversed(calls), (Finish.LENGTH, Finish.STOP, Finish.LENGTH), strict=True):
            call.deliver([TOKENIZER.eos_token_ids[0]] if finish is Finish.STOP else [], finish)
        *chunks, usage, done = events(await request)
        assert done == "[DONE]"
        assert texts(chunks) == {0: "one", 1: "two", 2: "three"}
        assert ends(chunks) == [(0, "length"), (1, "stop"), (2, "length")]
        assert len({chunk["id"] for chunk in chunks}) == 1
        if "chat" in path:
            roles = [c["index"] for chunk in chunks for c in chunk["choices"] if "role" in c["delta"]]
            assert sorted(roles) == [0, 1, 2]
        prompt = len(calls[0].request.token_ids)
        assert usage["choices"] == []
        assert usage["usage"]["prompt_tokens"] == prompt
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
        assert usage["usage"]["completion_tokens"] == sum(len(tokens(t)) for t in ("one", "two", "three")) + 1

    run(scenario)


def test_o11_prompts_and_their_choices_stand_in_order_and_count_once_each() -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post("/v1/completions", prompt=[[5, 6, 7], [8]], n=2, seed=40))
        calls = await edge.calls(4)
        assert [call.request.token_ids for call in calls] == [(5, 6, 7), (5, 6, 7), (8,), (8,)]
        assert [call.request.sampling.seed for call in calls] == [40, 41, 40, 41]
        for call, text in reversed(list(zip(calls, ("a", "b", "c", "d"), strict=True))):
            call.deliver(tokens(text), Finish.LENGTH, cached=1)
        body = (await request).json()
        assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
        assert body["usage"]["prompt_tokens"] == 4
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        assert body["usage"]["completion_tokens"] == 4

    run(scenario)


def test_o11_texts_and_ids_of_several_prompts() -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post("/v1/completions", prompt=["one", "two"], echo=True))
        for call in await edge.calls(2):
            call.deliver(tokens("!"), Finish.LENGTH)
        assert [choice["text"] for choice in (await request).json()["choices"]] == ["one!", "two!"]

    run(scenario)


def test_o3_o11_each_choice_is_cut_at_its_own_stop_string() -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post("/v1/completions", n=2, stop=["lo wor", "zz"], stream=True))
        calls = await edge.calls(2)
        for token in tokens("Hello world, and more"):
            calls[0].deliver([token])
        for token in tokens("Hello woods"):  # begins like the stop and is none
            calls[1].deliver([token])
        calls[1].deliver([], Finish.LENGTH)
        *chunks, done = events(await request)
        assert done == "[DONE]"
        assert texts(chunks) == {0: "Hel", 1: "Hello woods"}
        assert ends(chunks) == [(0, "stop"), (1, "length")]
        assert (calls[0].cancelled, calls[1].cancelled) == (True, False)

    run(scenario)


async def two_engines(edge: Edge) -> None:
    edge.engines.listen("10.0.0.2:9000", context_length=64, vocab_size=TOKENIZER.vocab_size).answers = False
    edge.feed.list(fake_wanted("a", "10.0.0.1:9000"), fake_wanted("b", "10.0.0.2:9000"))
    while len(edge.fleet.serving.get()) < 2:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
def test_m2_a_choice_of_which_nothing_was_sent_is_tried_again_though_another_has_begun(stream: bool) -> None:
    async def scenario(edge: Edge) -> None:
        await two_engines(edge)
        request = asyncio.create_task(edge.post("/v1/completions", n=2, stream=stream))
        first, second = await edge.calls(2)
        first.deliver(tokens("one"))
        second.end(errors.EngineFailed("it failed"))
        again = next(call for call in await edge.calls(2) if call not in (first, second))
        again.deliver(tokens("two"), Finish.LENGTH)
        first.deliver([], Finish.LENGTH)
        response = await request
        if stream:
            assert sorted(texts(events(response)[:-1]).values()) == ["one", "two"]
        else:
            assert sorted(choice["text"] for choice in response.json()["choices"]) == ["one", "two"]

    run(scenario)


def test_m2_a_completion_that_has_only_held_text_back_is_tried_again() -> None:
    async def scenario(edge: Edge) -> None:
        await two_engines(edge)
        request = asyncio.create_task(edge.post("/v1/completions", stop=["ab"], stream=True))
        call = (await edge.calls(1))[0]
        call.deliver(tokens("a"))  # may be the beginning of the stop
        call.end(errors.EngineFailed("it failed"))
        call = (await edge.calls(1))[0]
        call.deliver(tokens("ax"), Finish.LENGTH)
        assert texts(events(await request)[:-1]) == {0: "ax"}

    run(scenario)


def test_o8_a_completion_that_has_only_held_text_back_fails_with_a_status() -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post("/v1/completions", stop=["ab"], stream=True))
        call = await edge.call()
        call.deliver(tokens("a"))
        call.end(errors.EngineRejected("it does not like it"))
        assert error(await request)[0] == 400

    run(scenario)


def failing(edge: Edge, *, begun: bool) -> Any:
    """One of two choices fails for good, and the other one is stopped."""

    async def fail() -> tuple[Any, FakeCall]:
        request = asyncio.create_task(edge.post("/v1/completions", n=2, stream=True))
        first, second = await edge.calls(2)
        if begun:
            first.deliver(tokens("one"))
        second.end(errors.EngineRejected("it does not like it"))
        return await request, first

    return fail()


def test_o1_m2_one_choice_that_fails_ends_all_with_an_error_event() -> None:
    async def scenario(edge: Edge) -> None:
        response, other = await failing(edge, begun=True)
        *chunks, last = events(response)
        assert texts(chunks) == {0: "one"}
        assert ends(chunks) == []
        assert last["error"]["code"] == "engine_rejected"
        assert b"[DONE]" not in response.content
        assert other.cancelled

    run(scenario)


def test_g5_one_choice_that_fails_before_anything_was_sent_is_an_http_error() -> None:
    async def scenario(edge: Edge) -> None:
        response, other = await failing(edge, begun=False)
        assert error(response) == (400, "engine_rejected", None)
        assert other.cancelled

    run(scenario)


def test_d16_choices_are_encoded_anew_together_when_the_generation_changes_before_they_are_sent() -> None:
    async def scenario(edge: Edge) -> None:
        edge.feed.list()
        request = asyncio.create_task(edge.post("/v1/completions", n=2, max_tokens=2))
        await asyncio.sleep(0.05)
        edge.engines.listen("10.0.0.2:9000", context_length=64, tokenizer_digest="e" * 64)
        edge.feed.list(fake_wanted("b", "10.0.0.2:9000"))
        assert [choice["index"] for choice in (await request).json()["choices"]] == [0, 1]
        assert edge.loads == 2

    run(scenario, hold=5)


def test_what_no_engine_can_is_refused_by_the_name_of_its_field() -> None:
    async def scenario(edge: Edge) -> None:
        edge.engines.listen("10.0.0.2:9000", context_length=64, abilities=frozenset({"generate"}))
        edge.feed.list(fake_wanted("b", "10.0.0.2:9000"))
        while [member.engine_id for member in edge.fleet.serving.get()] != ["b"]:
            await asyncio.sleep(0.001)
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        assert error(await edge.post(response_format=schema)) == (400, "unsupported_value", "response_format")
        assert error(await edge.post(logprobs=True)) == (400, "unsupported_value", "logprobs")
        assert error(await edge.post("/v1/completions", echo=True, logprobs=1))[2] in ("logprobs", "echo")
        assert json.loads((await edge.post(max_tokens=1)).content)["choices"]

    run(scenario)


def test_o7_an_engine_may_say_at_the_end_only_that_it_had_nothing_of_the_prompt() -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post("/v1/completions"))
        call = await edge.call()
        call.deliver(tokens("one"))
        call.deliver([], Finish.LENGTH, cached=0)
        assert (await request).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}

    run(scenario)


@pytest.mark.parametrize("begun", [False, True])
def test_s1_a_client_that_hangs_up_ends_all_choices(begun: bool) -> None:
    async def scenario(edge: Edge, client: Client) -> None:
        await client.ask("/v1/completions", n=3)
        calls = await edge.calls(3)
        if begun:
            calls[1].deliver(tokens("one"))
            await client.frames(1)
        client.writer.close()
        while not all(call.over for call in calls):
            await asyncio.sleep(0.001)
        assert all(call.cancelled for call in calls)
        while edge.ledger.in_flight:
            await asyncio.sleep(0.001)

    served(scenario)
