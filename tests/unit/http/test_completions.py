"""The OpenAI paths over plain ASGI, on fake engines and the bundled tokenizer: answers, ends, errors, echoes."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

import enginehouse.mock
from enginehouse.adapters.metrics import Metrics
from enginehouse.adapters.tokenizer import load_tokenizer
from enginehouse.core.kv.view import KvView
from enginehouse.core.membership.card import ModelCard
from enginehouse.core.output.selection import FormatSettings
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.policy import RoutingSettings
from enginehouse.domain import errors
from enginehouse.domain.stream import Finish
from enginehouse.http import choices
from enginehouse.http.admin import Admin
from enginehouse.http.completions import EdgeOptions
from enginehouse.http.prompts import Prompt
from enginehouse.http.routes import build
from enginehouse.ports import TextDecoder, Tokenizer
from enginehouse.service.drain import Readiness
from enginehouse.service.fleet import Fleet
from enginehouse.service.generate import Generator, RequestSettings
from enginehouse.service.membership import Member
from enginehouse.service.models import Models, TokenizerUnavailable
from enginehouse.testing.engines import FakeCall, FakeEngines
from enginehouse.testing.feeds import FakeFeed, fake_wanted

TOKENIZER = load_tokenizer(str(Path(enginehouse.mock.__file__).parent / "model"))


class Edge:
    """The application, its one fake engine, and a client."""

    def __init__(
        self,
        *,
        tokenizer: bool = True,
        name: str | None = None,
        hold: float = 0.05,
        routing: RoutingSettings = RoutingSettings(),  # noqa: B008 - frozen
        kv: Callable[[], KvView] | None = None,
        formats: FormatSettings = FormatSettings(),  # noqa: B008 - frozen
        context: int = 64,
        **options: Any,
    ) -> None:
        """options: those of the edge."""
        self.fail_to_load = not tokenizer
        self.loads = 0
        self.engines = FakeEngines()
        self.process = self.engines.listen("10.0.0.1:9000", context_length=context, vocab_size=TOKENIZER.vocab_size)
        self.process.answers = False
        self.feed = FakeFeed()
        self.fleet = Fleet(self.engines, [self.feed], rng=Random(1), model=name)
        self.ledger = Ledger()
        generator = Generator(self.fleet, self.ledger, RequestSettings(hold_timeout=hold), routing, rng=Random(2))

        async def find(card: ModelCard, member: Member | None) -> Tokenizer:
            self.loads += 1
            if self.fail_to_load:
                raise TokenizerUnavailable("there is none")
            return TOKENIZER

        self.models = Models(self.fleet, find, name=name, patience=hold, retry_after=0.05, formats=formats)
        self.readiness = Readiness(self.fleet, self.models)
        metrics = Metrics(self.fleet, ready=lambda: not self.readiness.reasons())
        admin = Admin(
            self.fleet, self.models, self.readiness, self.ledger, "least-loaded", metrics.render, kv, generator.pools
        )
        self.app = build(self.models, generator, metrics.requests, admin, EdgeOptions(20_000, 20, **options))
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://edge", timeout=20)

    async def post(self, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
        body: dict[str, Any] = {"model": "m", **fields}
        body.setdefault(*(("messages", [{"role": "user", "content": "hi"}]) if "chat" in path else ("prompt", "hi")))
        return await self.client.post(path, json=body)

    async def calls(self, number: int) -> list[FakeCall]:
        """The engine calls that are open, once there are so many, in the order of their making."""
        while True:
            made = [call for process in self.engines.processes.values() for e in process.opened for call in e.calls]
            found = [call for call in made if not call.over]
            if len(found) >= number:
                return found
            await asyncio.sleep(0.001)

    async def call(self) -> FakeCall:
        """The engine call that is open, once there is one."""
        while True:
            for engine in self.process.opened:
                for call in engine.calls:
                    if not call.over:
                        return call
            await asyncio.sleep(0.001)

    async def answer(self, request: Awaitable[httpx.Response], text: str, finish: Finish) -> httpx.Response:
        """Let the engine give this text, a token at a time."""
        task = asyncio.ensure_future(request)
        call = await self.call()
        ids = list(await TOKENIZER.encode(text, add_special_tokens=False))
        for token in ids:
            call.deliver([token])
        call.deliver([TOKENIZER.eos_token_ids[0]] if finish is Finish.STOP else [], finish)
        return await task


def run(scenario: Callable[[Edge], Awaitable[None]], *, engine: bool = True, **how: Any) -> None:
    async def main() -> None:
        edge = Edge(**how)
        tasks = [asyncio.create_task(edge.fleet.run()), asyncio.create_task(edge.models.run())]
        edge.feed.list(*([fake_wanted("a", "10.0.0.1:9000")] if engine else []))
        async with asyncio.timeout(20):
            while engine and edge.models.current is None and edge.models.problem is None:
                await asyncio.sleep(0.001)
            await scenario(edge)
        assert edge.ledger.in_flight == 0
        await edge.client.aclose()
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def events(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") for frame in frames)
    return [frame[6:] if frame[6:] == "[DONE]" else json.loads(frame[6:]) for frame in frames]


def error(response: httpx.Response) -> tuple[int, str | None, str | None]:
    body = response.json()["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"]
    return response.status_code, body["code"], body["param"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("finish", list(Finish))
def test_o1_a_stream_has_one_finish_and_one_end(path: str, finish: Finish) -> None:
    async def scenario(edge: Edge) -> None:
        *chunks, done = events(await edge.answer(edge.post(path, stream=True), "Well, hello!", finish))
        assert done == "[DONE]"
        choices = [chunk["choices"][0] for chunk in chunks]
        text = "".join(c["delta"].get("content", "") if "chat" in path else c["text"] for c in choices)
        assert text == "Well, hello!"
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == [finish.value]
        assert choices[-1]["finish_reason"]
        assert len({chunk["id"] for chunk in chunks}) == 1

    run(scenario)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_whole_answer_says_the_same_as_a_stream(path: str) -> None:
    async def scenario(edge: Edge) -> None:
        body = (await edge.answer(edge.post(path), "Well, hello!", Finish.STOP)).json()
        choice = body["choices"][0]
        assert (choice["message"]["content"] if "chat" in path else choice["text"]) == "Well, hello!"
        assert choice["finish_reason"] == "stop"
        usage = body["usage"]
        assert usage["completion_tokens"] == len(await TOKENIZER.encode("Well, hello!", add_special_tokens=False)) + 1
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    run(scenario)


@pytest.mark.parametrize(
    ("options", "asked"),
    [({}, False), ({"stream_options": {}}, False), ({"stream_options": {"include_usage": True}}, True)],
)
def test_o7_usage_comes_last_and_only_when_asked_for(options: dict[str, Any], asked: bool) -> None:
    async def scenario(edge: Edge) -> None:
        *chunks, _ = events(await edge.answer(edge.post(stream=True, **options), "Hello", Finish.STOP))
        assert ("usage" in chunks[0]) is asked
        assert (chunks[-1]["choices"] == []) is asked
        if asked:
            assert all(chunk["usage"] is None for chunk in chunks[:-1])
            assert chunks[-1]["usage"]["completion_tokens"] > 1

    run(scenario)


def test_o3_a_stop_string_over_several_tokens_is_cut_and_the_engine_aborted() -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post(stream=True, stop=["lo wor"]))
        call = await edge.call()
        for token in await TOKENIZER.encode("Hello world, and more", add_special_tokens=False):
            call.deliver([token])
        *chunks, done = events(await request)
        assert done == "[DONE]"
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hel"
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert call.cancelled

    run(scenario)


def test_o1_a_stream_that_fails_after_its_first_token_ends_in_an_error_event() -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post(stream=True))
        call = await edge.call()
        call.deliver(list(await TOKENIZER.encode("Hello", add_special_tokens=False)))
        call.end(errors.EngineBroken("the stream ended early"))
        *_, last = events(await request)
        assert last["error"]["code"] == "engine_broken"

    run(scenario)


def test_g5_an_engine_failure_before_the_first_token_is_an_http_error() -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post(stream=True))
        (await edge.call()).end(errors.EngineBroken("the stream ended early"))
        assert error(await request) == (502, "engine_broken", None)

    run(scenario)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("last", [None, Finish.STOP, Finish.LENGTH])
def test_an_engine_that_ignores_max_tokens_is_ended_there(stream: bool, last: Finish | None) -> None:
    """Ended by us where it does not end by itself; what it made beyond the limit reaches nobody."""

    async def scenario(edge: Edge) -> None:
        more = {"stream_options": {"include_usage": True}} if stream else {}
        request = asyncio.create_task(edge.post("/v1/completions", max_tokens=3, stream=stream, **more))
        call = await edge.call()
        one, two, three, four = await TOKENIZER.encode(" one two three four", add_special_tokens=False)
        call.deliver([one])
        call.deliver([two, three, *[four] * 100_000], last)
        response = await request
        while not call.over:
            await asyncio.sleep(0)
        assert call.cancelled is (last is None)
        if stream:
            frames = [event["choices"][0] for event in events(response)[:-2]]
            assert "".join(frame["text"] for frame in frames) == " one two three"
            assert [frame["finish_reason"] for frame in frames if frame["finish_reason"]] == ["length"]
            usage = events(response)[-2]["usage"]
        else:
            [choice] = response.json()["choices"]
            assert (choice["text"], choice["finish_reason"]) == (" one two three", "length")
            usage = response.json()["usage"]
        assert usage["completion_tokens"] == 3

    run(scenario)


def test_an_engine_cannot_have_cached_more_than_the_prompt() -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post("/v1/completions", prompt=[5, 6, 7]))
        (await edge.call()).deliver([9], Finish.LENGTH, cached=1_000_000)
        usage = (await request).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 3

    run(scenario)


def test_g11_the_default_answer_is_the_room_left_in_the_context() -> None:
    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post("/v1/completions", prompt=[5, 6, 7]))
        call = await edge.call()
        assert call.request.max_tokens == 64 - 3
        call.deliver([9], Finish.LENGTH)
        await request

    run(scenario)


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/v1/chat/completions", {"model": "other"}, (404, "model_not_found", "model")),
        ("/v1/chat/completions", {"temperature": 9}, (400, None, "temperature")),
        ("/v1/chat/completions", {"bootstrap_room": 7}, (400, None, "bootstrap_room")),
        ("/v1/completions", {"prompt": "word " * 200}, (400, "context_length_exceeded", "prompt")),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 64}, (400, "context_length_exceeded", "max_tokens")),
        ("/v1/completions", {"prompt": [99_999]}, (400, None, "prompt")),
        ("/v1/completions", {"prompt": "word " * 5000}, (413, "request_too_large", None)),
    ],
)
def test_o8_what_is_wrong_is_named_before_any_engine_hears_of_it(
    path: str, fields: dict[str, Any], expected: tuple[int, str | None, str | None]
) -> None:
    async def scenario(edge: Edge) -> None:
        status, code, param = error(await edge.post(path, **fields))
        assert (status, param) == (expected[0], expected[2])
        assert expected[1] in (None, code)
        assert not any(engine.calls for engine in edge.process.opened)

    run(scenario)


def test_o8_bad_json_unknown_paths_and_methods_have_the_same_envelope() -> None:
    async def scenario(edge: Edge) -> None:
        assert error(await edge.client.post("/v1/chat/completions", content=b"{"))[0] == 400
        assert error(await edge.client.get("/v1/nonsense"))[:2] == (404, "not_found")
        wrong = await edge.client.get("/v1/chat/completions")
        assert error(wrong)[:2] == (405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        assert error(await edge.client.get("/v1/models/other"))[:2] == (404, "model_not_found")

    run(scenario)


def test_m8_a_known_model_without_engines_is_503_and_an_unknown_one_404() -> None:
    async def scenario(edge: Edge) -> None:
        edge.feed.list()
        response = await edge.post()
        assert error(response) == (503, "no_engine", None)
        assert int(response.headers["retry-after"]) >= 1
        assert error(await edge.post(model="other")) == (404, "model_not_found", "model")

    run(scenario)


def test_m8_before_the_first_engine_only_the_name_that_the_operator_gave_is_known() -> None:
    async def scenario(edge: Edge) -> None:
        assert error(await edge.post())[:2] == (503, "no_engine")
        assert error(await edge.post(model="other"))[:2] == (404, "model_not_found")

    run(scenario, engine=False, name="m")


def test_g8_the_clients_request_id_is_echoed_and_used_for_nothing() -> None:
    async def scenario(edge: Edge) -> None:
        edge.process.answers = True
        body = {"model": "m", "prompt": "hi", "max_tokens": 2}
        for sent, echoed in (("abc-1", True), ("x" * 200, False), ("a b", False)):
            response = await edge.client.post("/v1/completions", json=body, headers={"x-request-id": sent})
            assert (response.headers["x-request-id"] == sent) is echoed
        ids = [call.request.request_id for engine in edge.process.opened for call in engine.calls]
        assert len(set(ids)) == 3
        assert "abc-1" not in ids

    run(scenario)


def test_d28_live_ready_and_health_say_what_they_know() -> None:
    async def scenario(edge: Edge) -> None:
        assert (await edge.client.get("/readyz")).json() == {"ready": True, "reasons": []}
        edge.feed.list()
        ready = await edge.client.get("/readyz")
        assert (ready.status_code, ready.json()["reasons"]) == (503, ["no engine serves"])
        assert (await edge.client.get("/livez")).status_code == 200
        assert (await edge.client.get("/health")).json()["status"] == "unavailable"
        edge.readiness.leaving = True
        assert (await edge.client.get("/readyz")).json()["reasons"] == ["shutting down"]

    run(scenario)


def test_d28_a_model_whose_tokenizer_is_missing_says_so_everywhere() -> None:
    async def scenario(edge: Edge) -> None:
        reasons = (await edge.client.get("/readyz")).json()["reasons"]
        assert reasons == ["the tokenizer of 'm' cannot be loaded: there is none"]
        response = await edge.post()
        assert error(response)[:2] == (503, "no_engine")
        assert "tokenizer" in response.json()["error"]["message"]

    run(scenario, tokenizer=False)


def test_d26_every_engine_is_listed_with_state_and_reason() -> None:
    async def scenario(edge: Edge) -> None:
        edge.feed.list(
            fake_wanted("a", "10.0.0.1:9000"),
            fake_wanted("b", "10.0.0.2:9000"),
            fake_wanted("c", None, reason="no IP yet"),
        )
        while True:
            body = (await edge.client.get("/engines")).json()
            states = {engine["id"]: (engine["state"], bool(engine["reason"])) for engine in body["engines"]}
            if states.get("b", ("", False))[0] == "failed":
                break
            await asyncio.sleep(0.001)
        assert states["a"] == ("serving", False)
        assert states["c"] == ("waiting", True)
        assert states["b"][1]
        assert body["feeds"][0]["synced"]
        assert next(e for e in body["engines"] if e["id"] == "b")["next_try_seconds"] is not None

    run(scenario)


def test_an_engine_is_listed_with_what_it_was_given() -> None:
    async def scenario(edge: Edge) -> None:
        async def load() -> Any:
            (row,) = (await edge.client.get("/engines")).json()["engines"]
            return row["load"]

        request = asyncio.create_task(edge.post("/v1/completions", prompt=[5, 6, 7]))
        call = await edge.call()
        assert await load() == [{"rank": None, "requests": 1, "prompt_tokens": 3}]
        call.deliver([9], Finish.LENGTH)
        await request
        assert await load() == [{"rank": None, "requests": 0, "prompt_tokens": 0}]

    run(scenario)


def test_d16_d17_nothing_is_encoded_for_one_generation_with_the_tokenizer_of_another() -> None:
    """The next generation has another tokenizer, which cannot be loaded: it gets no request, and we are not ready."""

    async def scenario(edge: Edge) -> None:
        edge.process.answers = True
        assert (await edge.post(max_tokens=2)).status_code == 200
        other = edge.engines.listen("10.0.0.2:9000", context_length=64, tokenizer_digest="e" * 64)
        edge.fail_to_load = True
        edge.feed.list(fake_wanted("b", "10.0.0.2:9000"))
        while not [m for m in edge.fleet.serving.get() if m.engine_id == "b"]:
            await asyncio.sleep(0.001)
        for _ in range(3):
            assert error(await edge.post(max_tokens=2))[:2] == (503, "no_engine")
        assert not any(call for engine in other.opened for call in engine.calls)
        ready = await edge.client.get("/readyz")
        assert (ready.status_code, "tokenizer" in ready.text) == (503, True)
        edge.fail_to_load = False
        other.answers = True
        while (await edge.client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.01)
        assert (await edge.post(max_tokens=2)).status_code == 200

    run(scenario)


def test_d16_a_request_that_waits_while_the_generation_changes_is_encoded_anew_for_it() -> None:
    async def scenario(edge: Edge) -> None:
        edge.feed.list()
        request = asyncio.create_task(edge.post(max_tokens=2))
        await asyncio.sleep(0.05)
        other = edge.engines.listen("10.0.0.2:9000", context_length=64, tokenizer_digest="e" * 64)
        edge.feed.list(fake_wanted("b", "10.0.0.2:9000"))
        assert (await request).status_code == 200
        assert len([call for engine in other.opened for call in engine.calls]) == 1
        assert edge.loads == 2

    run(scenario, hold=5)


def test_models_are_listed_by_name() -> None:
    async def scenario(edge: Edge) -> None:
        assert [m["id"] for m in (await edge.client.get("/v1/models")).json()["data"]] == ["m"]
        assert (await edge.client.get("/v1/models/m")).json()["id"] == "m"

    run(scenario)


def test_s2_the_body_is_let_go_of_before_the_answer() -> None:
    """It may be as large as the limit allows, and a stream lasts for minutes."""
    left = []

    class Body(bytes):
        def __del__(self) -> None:
            left.append(True)

    async def scenario(edge: Edge) -> None:
        unread = [Body(json.dumps({"model": "m", "prompt": [5, 6, 7], "stream": True}).encode())]
        sent: list[Any] = []

        async def receive() -> Any:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
        request = asyncio.create_task(edge.app(scope, receive, send))
        call = await edge.call()
        assert left == [True]
        call.deliver([300], Finish.LENGTH)
        await request
        assert sent[-1]["body"].endswith(b"[DONE]\n\n")

    run(scenario)


def test_f2_a_prompt_that_is_echoed_is_decoded_once_for_all_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    text = choices._text

    def counted(prompt: Prompt, decoder: TextDecoder) -> str:
        decoded.append(prompt)
        return text(prompt, decoder)

    monkeypatch.setattr(choices, "_text", counted)

    async def scenario(edge: Edge) -> None:
        request = asyncio.create_task(edge.post("/v1/completions", prompt=[[300, 301], [302]], n=3, echo=True))
        for call in await edge.calls(6):
            call.deliver([303], Finish.LENGTH)
        answers = [choice["text"] for choice in (await request).json()["choices"]]
        expected = [TOKENIZER.decoder().push(ids) for ids in ([300, 301, 303], [302, 303])]
        assert answers == [expected[0]] * 3 + [expected[1]] * 3
        assert len(decoded) == 2

    run(scenario)
