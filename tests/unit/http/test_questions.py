"""Paths that answer in one piece: embeddings, tokens, counts. What they give, and how they fail."""

import asyncio
import base64
import json
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httpx
import pytest

from enginehouse.adapters.metrics.meters import RequestCounts
from enginehouse.domain.errors import EngineRejected
from enginehouse.domain.stream import Embedding, Finish
from enginehouse.http.completions import EdgeOptions
from enginehouse.http.embeddings import embeddings
from enginehouse.http.questions import Question
from enginehouse.ports import RequestMeter
from enginehouse.service.generate import Outdated, TokenRequest
from tests.unit.http.test_completions import TOKENIZER, Edge, error, run

USER = {"role": "user", "content": "hi"}


async def ask(edge: Edge, path: str, **fields: Any) -> httpx.Response:
    return await edge.client.post(path, json=fields)


async def counted(edge: Edge, path: str, status: int) -> bool:
    """Whether requests on this path ended so."""
    told = (await edge.client.get("/metrics")).text
    return any(f'"{path}"' in line and f'"{status}"' in line for line in told.splitlines())


def ready(edge: Edge) -> None:
    edge.process.answers = True


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hi", ["hi"]),
        (["hi", "there"], ["hi", "there"]),
        ([300, 301], [[300, 301]]),
        ([[300, 301], [302]], [[300, 301], [302]]),
    ],
)
def test_o11_an_embedding_for_each_input_in_their_order(given: Any, prompts: list[Any]) -> None:
    async def scenario(edge: Edge) -> None:
        ready(edge)
        ids = [
            list(await TOKENIZER.encode(one, add_special_tokens=True)) if isinstance(one, str) else one
            for one in prompts
        ]
        expected = [[float(len(one)), float(sum(one))] for one in ids]
        body = (await ask(edge, "/v1/embeddings", model="m", input=given)).json()
        assert body["object"] == "list"
        assert body["model"] == "m"
        assert [(item["object"], item["index"], item["embedding"]) for item in body["data"]] == [
            ("embedding", index, vector) for index, vector in enumerate(expected)
        ]
        tokens = sum(map(len, ids))
        assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        packed = (await ask(edge, "/v1/embeddings", model="m", input=given, encoding_format="base64")).json()
        found = [list(struct.unpack("<2f", base64.b64decode(item["embedding"]))) for item in packed["data"]]
        assert found == expected
        assert sorted(edge.process.opened[0].embedded) == sorted(ids * 2)
        assert f"enginehouse_prompt_tokens_total {2 * tokens}" in (await edge.client.get("/metrics")).text

    run(scenario)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "nope", "input": "x"}, (404, "model_not_found", "model")),
        ({"model": "m"}, (400, None, "input")),
        ({"model": "m", "input": ""}, (400, None, "input")),
        ({"model": "m", "input": []}, (400, None, "input")),
        ({"model": "m", "input": ["x", ""]}, (400, None, "input")),
        ({"model": "m", "input": 3}, (400, None, "input")),
        ({"model": "m", "input": ["x", [1]]}, (400, None, "input")),
        ({"model": "m", "input": [3_000_000]}, (400, None, "input")),
        ({"model": "m", "input": "word " * 100}, (400, "context_length_exceeded", "input")),
        ({"model": "m", "input": [300] * 65}, (400, "context_length_exceeded", "input")),
        ({"model": "m", "input": "x", "dimensions": 8}, (400, "unsupported_parameter", "dimensions")),
        ({"model": "m", "input": "x", "encoding_format": "int8"}, (400, "unsupported_value", "encoding_format")),
    ],
)
def test_o8_inputs_that_are_refused(fields: dict[str, Any], expected: tuple[int, str | None, str]) -> None:
    async def scenario(edge: Edge) -> None:
        ready(edge)
        response = await ask(edge, "/v1/embeddings", **fields)
        assert error(response) == expected
        assert "'prompt" not in response.text
        assert edge.process.opened[0].embedded == []
        assert await counted(edge, "/v1/embeddings", expected[0])

    run(scenario)


def test_g5_an_embedding_that_an_engine_will_not_make_is_an_error_with_its_status() -> None:
    async def scenario(edge: Edge) -> None:
        ready(edge)
        edge.process.fails = lambda _: EngineRejected("it will not")
        assert error(await ask(edge, "/v1/embeddings", model="m", input=["x", "y"])) == (400, "engine_rejected", None)

    run(scenario)


class Stub:
    """A generator that embeds as it is told to."""

    def __init__(self, embed: Callable[[TokenRequest], Awaitable[Embedding]]) -> None:
        self._embed = embed

    async def embed(self, request: TokenRequest, meter: RequestMeter) -> Embedding:
        return await self._embed(request)


async def embedded(edge: Edge, embed: Callable[[TokenRequest], Awaitable[Embedding]], given: Any) -> httpx.Response:
    app: Any = embeddings(edge.models, cast(Any, Stub(embed)), RequestCounts(), EdgeOptions(100_000, 20))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
        return await client.post("/", json={"model": "m", "input": given})


def test_d16_inputs_are_encoded_anew_for_engines_of_another_generation() -> None:
    async def scenario(edge: Edge) -> None:
        outdated = 2

        async def embed(request: TokenRequest) -> Embedding:
            nonlocal outdated
            if outdated:
                outdated -= 1
                raise Outdated
            return Embedding([1.0], 7)

        response = await embedded(edge, embed, "x")
        assert response.json()["usage"]["total_tokens"] == 7
        outdated = 99
        assert error(await embedded(edge, embed, ["x", "y"]))[:2] == (503, "no_engine")

    run(scenario)


def test_one_request_does_not_flood_the_engines() -> None:
    async def scenario(edge: Edge) -> None:
        now = most = 0

        async def embed(request: TokenRequest) -> Embedding:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1
            return Embedding([float(request.token_ids[0])], 1)

        response = await embedded(edge, embed, [[one] for one in range(300, 500)])
        assert [item["embedding"] for item in response.json()["data"]] == [[float(one)] for one in range(300, 500)]
        assert most == 64

    run(scenario)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_the_engines_fault(value: float) -> None:
    async def scenario(edge: Edge) -> None:
        async def embed(request: TokenRequest) -> Embedding:
            return Embedding([1.0, value], 1)

        assert error(await embedded(edge, embed, "x"))[:2] == (502, "engine_broken")

    run(scenario)


def test_a_text_and_a_conversation_as_tokens_and_back() -> None:
    async def scenario(edge: Edge) -> None:
        text = "Grüße <|im_end|> 東京"
        ids = list(await TOKENIZER.encode(text, add_special_tokens=True))
        body = (await ask(edge, "/tokenize", model="m", prompt=text, return_token_strs=True)).json()
        assert (body["tokens"], body["count"], body["max_model_len"]) == (ids, len(ids), 64)
        assert body["token_strs"] == [TOKENIZER.token_text(token) for token in ids]
        assert (await ask(edge, "/tokenize", prompt=text)).json() == {**body, "token_strs": None}
        back = await ask(edge, "/detokenize", model="m", tokens=ids)
        assert back.json() == {"prompt": text}
        chat = (await ask(edge, "/tokenize", messages=[USER])).json()
        assert chat["tokens"] == list((await TOKENIZER.encode_chat([USER], {"add_generation_prompt": True})).token_ids)
        without = (await ask(edge, "/tokenize", messages=[USER], add_generation_prompt=False)).json()
        assert without["count"] < chat["count"]
        tools = [{"type": "function", "function": {"name": "f"}}]
        assert (await ask(edge, "/tokenize", messages=[USER], tools=tools)).status_code == 200
        assert not edge.process.opened[0].calls

    run(scenario)


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/tokenize", {}, (400, None, "prompt")),
        ("/tokenize", {"prompt": "x", "messages": [USER]}, (400, None, "prompt")),
        ("/tokenize", {"prompt": "x", "model": "nope"}, (404, "model_not_found", "model")),
        ("/tokenize", {"prompt": 3}, (400, None, "prompt")),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, (400, None, "add_generation_prompt")),
        ("/tokenize", {"messages": []}, (400, None, "messages")),
        ("/tokenize", {"messages": [USER], "add_special_tokens": True}, (400, None, "add_special_tokens")),
        (
            "/tokenize",
            {"messages": [USER], "chat_template_kwargs": {"tools": []}},
            (400, None, "chat_template_kwargs.tools"),
        ),
        ("/detokenize", {"tokens": [1, 3_000_000]}, (400, None, "tokens[1]")),
        ("/detokenize", {"tokens": ["a"]}, (400, None, "tokens[0]")),
        ("/detokenize", {"tokens": "a"}, (400, None, "tokens")),
        ("/detokenize", {}, (400, None, "tokens")),
    ],
)
def test_o8_tokens_that_are_refused(path: str, fields: dict[str, Any], expected: tuple[int, str | None, str]) -> None:
    async def scenario(edge: Edge) -> None:
        assert error(await ask(edge, path, **fields)) == expected

    run(scenario)


def test_m8_without_a_model_there_is_nothing_to_ask() -> None:
    async def scenario(edge: Edge) -> None:
        for path, fields in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
            response = await ask(edge, path, **fields)
            assert error(response)[:2] == (503, "no_engine")
            assert int(response.headers["retry-after"]) >= 1

    run(scenario, engine=False)


def test_a_message_is_counted_as_it_would_be_asked() -> None:
    async def scenario(edge: Edge) -> None:
        counted = await ask(edge, "/v1/messages/count_tokens", model="m", messages=[USER])
        expected = await TOKENIZER.encode_chat([USER], {"add_generation_prompt": True})
        assert counted.json() == {"input_tokens": len(expected.token_ids)}
        long = {"role": "user", "content": "word " * 3000}
        too_long = await ask(edge, "/v1/messages/count_tokens", model="m", messages=[long])
        assert too_long.json()["input_tokens"] > 3000
        refused = await ask(edge, "/v1/messages/count_tokens", model="m", messages=[])
        assert refused.status_code == 400
        assert refused.json()["error"]["type"] == "invalid_request_error"

    run(scenario)


def test_g8_the_clients_request_id_is_echoed() -> None:
    async def scenario(edge: Edge) -> None:
        for fields in ({"prompt": "x"}, {}):
            response = await edge.client.post("/tokenize", json=fields, headers={"x-request-id": "mine"})
            assert response.headers["x-request-id"] == "mine"
        assert len((await ask(edge, "/tokenize", prompt="x")).headers["x-request-id"]) == 32

    run(scenario)


def test_o8_what_never_reaches_a_path_has_the_error_of_its_api() -> None:
    async def scenario(edge: Edge) -> None:
        big = "x" * 30_000
        for path, form in (("/v1/embeddings", 4), ("/v1/messages/count_tokens", 2), ("/v1/messages", 2)):
            response = await ask(edge, path, model="m", input=big)
            assert response.status_code == 413
            assert len(response.json()["error"]) == form
            assert await counted(edge, path, 413)
        for path, form in (("/v1/messages", 2), ("/v1/messages/batches", 2), ("/v1/embeddings", 4)):
            assert len((await edge.client.get(path)).json()["error"]) == form

    run(scenario)


Reply = Callable[[bytes, RequestMeter], Awaitable[bytes]]


class Asked:
    """A question that is asked over plain ASGI, and what it has sent so far."""

    def __init__(self, reply: Reply) -> None:
        self.counts = RequestCounts()
        self.sent: list[Any] = []
        self.leave = asyncio.Event()
        self._parts = [{"type": "http.request", "body": b"{}"}]
        app = Question("/v1/embeddings", reply, self.counts, EdgeOptions(100, 20))
        self.task = asyncio.create_task(app({"headers": []}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            return self._parts.pop()
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


def test_o8_a_fault_of_ours_says_nothing_of_its_insides() -> None:
    async def reply(body: bytes, meter: RequestMeter) -> bytes:
        raise RuntimeError("secret")

    async def main() -> None:
        asked = Asked(reply)
        await asked.task
        sent = asked.sent
        assert sent[0]["status"] == 500
        assert json.loads(sent[1]["body"])["error"]["code"] == "internal_error"
        assert b"secret" not in sent[1]["body"]

    asyncio.run(main())


def test_m15_who_still_waits_when_we_leave_is_told_so() -> None:
    waits = asyncio.Event()

    async def reply(body: bytes, meter: RequestMeter) -> bytes:
        waits.set()
        await asyncio.Event().wait()
        raise AssertionError("it is cancelled")

    async def main() -> None:
        asked = Asked(reply)
        await waits.wait()
        asked.task.cancel()
        await asyncio.gather(asked.task, return_exceptions=True)
        sent = asked.sent
        assert sent[0]["status"] == 503
        assert (b"retry-after", b"1") in sent[0]["headers"]
        assert json.loads(sent[1]["body"])["error"]["code"] == "shutting_down"

    asyncio.run(main())


def test_s1_who_goes_takes_the_work_along() -> None:
    waits, cancelled = asyncio.Event(), asyncio.Event()

    async def reply(body: bytes, meter: RequestMeter) -> bytes:
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError("it is cancelled")

    async def main() -> None:
        asked = Asked(reply)
        await waits.wait()
        asked.leave.set()
        await asked.task
        assert cancelled.is_set()
        assert asked.sent == []
        assert asked.counts.answered == {("/v1/embeddings", "499", ""): 1}

    asyncio.run(main())


def test_o1_responses_and_messages_stream_on_the_same_pipeline() -> None:
    async def scenario(edge: Edge) -> None:
        for path, body, last in (
            ("/v1/responses", {"input": "hi"}, "response.completed"),
            ("/v1/messages", {"messages": [USER], "max_tokens": 9}, "message_stop"),
        ):
            asked = edge.client.post(path, json={"model": "m", "stream": True, **body})
            response = await edge.answer(asked, "Well, hello!", Finish.STOP)
            assert response.headers["content-type"].startswith("text/event-stream")
            names = [line[7:] for line in response.text.split("\n") if line.startswith("event: ")]
            assert names[-1] == last
            assert names.count(last) == 1
            assert await counted(edge, path, 200)

    run(scenario)
