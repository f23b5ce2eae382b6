"""What the edge does for APIs other than OpenAI's older two: ids of requests, names of fields in errors, words."""

from typing import Any

import httpx
import pytest

from enginehouse.domain.stream import Finish
from tests.unit.http.test_completions import Edge, run

USER = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 5, "messages": [USER]},
    "/v1/messages/count_tokens": {"messages": [USER]},
    "/v1/responses": {"input": "hi"},
}


async def ask(edge: Edge, path: str, **fields: Any) -> httpx.Response:
    return await edge.client.post(path, json={"model": "m", **BODIES[path.partition("?")[0]], **fields})


def ids(response: httpx.Response) -> set[str]:
    return {name for name in response.headers if name.endswith("request-id")}


@pytest.mark.parametrize("stream", [False, True])
def test_o8_clients_find_the_id_of_their_request_where_they_look(stream: bool) -> None:
    async def scenario(edge: Edge) -> None:
        for path, names in (
            ("/v1/messages", {"x-request-id", "request-id"}),
            ("/v1/responses", {"x-request-id"}),
        ):
            answered = await edge.answer(ask(edge, path, stream=stream), "a", Finish.STOP)
            assert (answered.status_code, ids(answered)) == (200, names)
            refused = await ask(edge, path, stream=stream, no_such_field=1)
            assert (refused.status_code, ids(refused)) == (400, names)
        for fields, status in (({}, 200), ({"no_such_field": 1}, 400)):
            counted = await ask(edge, "/v1/messages/count_tokens", **fields)
            assert (counted.status_code, ids(counted)) == (status, {"x-request-id", "request-id"})
            assert counted.headers["request-id"] == counted.headers["x-request-id"]

    run(scenario)


def test_what_stands_behind_a_question_mark_is_not_looked_at() -> None:
    async def scenario(edge: Edge) -> None:
        assert (await edge.answer(ask(edge, "/v1/messages?beta=true"), "a", Finish.STOP)).status_code == 200
        assert (await ask(edge, "/v1/messages/count_tokens?beta=true")).json()["input_tokens"] > 0

    run(scenario)


def test_o8_what_does_not_fit_is_told_in_the_words_of_the_api() -> None:
    async def scenario(edge: Edge) -> None:
        long = [{"role": "user", "content": "hi " * 400}]
        refused = (await ask(edge, "/v1/messages", messages=long)).json()["error"]
        assert refused["message"].startswith("prompt is too long: ")
        assert " tokens > 63 maximum: " in refused["message"]
        refused = (await ask(edge, "/v1/messages", max_tokens=60)).json()["error"]
        assert refused["message"].startswith("input length and `max_tokens` exceed context limit: ")
        assert " + 60 > 64: " in refused["message"]
        refused = (await ask(edge, "/v1/responses", input="hi " * 400)).json()["error"]
        assert (refused["param"], refused["code"]) == ("input", "context_length_exceeded")
        refused = (await ask(edge, "/v1/responses", max_output_tokens=60)).json()["error"]
        assert refused["param"] == "max_output_tokens"

    run(scenario)


@pytest.mark.parametrize(("path", "param"), [("/v1/responses", "input"), ("/v1/chat/completions", "messages")])
def test_o8_what_a_template_refuses_is_named_as_the_client_named_it(path: str, param: str) -> None:
    async def scenario(edge: Edge) -> None:
        tokenizer = edge.models.current
        assert tokenizer is not None
        body = {"input": "hi"} if path == "/v1/responses" else {"messages": [USER]}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tokenizer.tokenizer, "_template", None)
            refused = await edge.client.post(path, json={"model": "m", **body})
        assert refused.json()["error"]["param"] == param

    run(scenario)
