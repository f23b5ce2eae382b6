"""Adapters as clients see them: names of models that some engines have, over plain ASGI."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from enginehouse.domain import errors
from enginehouse.domain.stream import Finish
from tests.unit.http.test_completions import Edge, run

MESSAGES = [{"role": "user", "content": "hi"}]


async def loaded(edge: Edge, *loras: str) -> None:
    """The engine says that it has these."""
    edge.process.info = replace(edge.process.info, loras=loras)
    edge.process.lives = True
    edge.process.break_links()  # it is asked again at once
    while not [m for m in edge.fleet.serving.get() if m.info.loras == loras]:
        await asyncio.sleep(0.001)


def test_o14_an_answer_of_an_adapter_bears_its_name() -> None:
    async def scenario(edge: Edge) -> None:
        await loaded(edge, "x")
        whole = await edge.answer(edge.post(model="x"), "hello", Finish.STOP)
        assert (whole.status_code, whole.json()["model"]) == (200, "x")
        assert whole.json()["choices"][0]["message"]["content"] == "hello"
        for path in ("/v1/chat/completions", "/v1/completions"):
            streamed = await edge.answer(edge.post(path, model="x", stream=True), "hello", Finish.STOP)
            assert '"model":"x"' in streamed.text
            assert '"model":"m"' not in streamed.text
        assert {call.request.lora for engine in edge.process.opened for call in engine.calls} == {"x"}
        plain = await edge.answer(edge.post(), "hello", Finish.STOP)
        assert plain.json()["model"] == "m"

    run(scenario)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_o14_the_other_apis_take_one_too(path: str) -> None:
    body: dict[str, Any] = {"model": "x", "max_tokens": 9, "messages": MESSAGES}
    if path == "/v1/responses":
        body = {"model": "x", "input": "hi"}

    async def scenario(edge: Edge) -> None:
        await loaded(edge, "x")
        answer = await edge.answer(edge.client.post(path, json=body), "hello", Finish.STOP)
        assert (answer.status_code, answer.json()["model"]) == (200, "x")

    run(scenario)


def test_o14_the_list_of_models_has_the_adapters_of_all_engines() -> None:
    async def scenario(edge: Edge) -> None:
        await loaded(edge, "y", "x", "m")
        data = (await edge.client.get("/v1/models")).json()["data"]
        assert [(one["id"], one["root"], one["parent"]) for one in data] == [
            ("m", "m", None),
            ("x", "m", "m"),
            ("y", "m", "m"),
        ]
        assert (await edge.client.get("/v1/models/x")).json() == data[1]
        (engine,) = (await edge.client.get("/engines")).json()["engines"]
        assert engine["loras"] == ["y", "x", "m"]
        await loaded(edge, "y")
        assert [one["id"] for one in (await edge.client.get("/v1/models")).json()["data"]] == ["m", "y"]
        assert (await edge.client.get("/v1/models/x")).status_code == 404

    run(scenario)


def test_o14_an_adapter_that_nobody_has_is_not_found_and_the_answer_says_what_there_is() -> None:
    async def scenario(edge: Edge) -> None:
        await loaded(edge, *(f"a{number:02}" for number in range(22)))
        for path, body in (
            ("/v1/chat/completions", {"messages": MESSAGES}),
            ("/v1/completions", {"prompt": "hi"}),
            ("/explain", {"prompt": "hi"}),
            ("/tokenize", {"prompt": "hi"}),
        ):
            answer = await edge.client.post(path, json={"model": "x", **body})
            told = answer.json()["error"]
            assert (answer.status_code, told["code"], told["param"]) == (404, "model_not_found", "model")
            assert told["message"] == (
                "The model 'x' does not exist. This frontend serves 'm' with the adapters "
                + ", ".join(f"'a{number:02}'" for number in range(20))
                + " and 2 more."
            )

    run(scenario)


def test_o14_an_adapter_that_goes_between_two_looks_is_not_found_either() -> None:
    gone = errors.AdapterNotLoaded("the adapter is not loaded any more", param="model")

    async def scenario(edge: Edge) -> None:
        await loaded(edge, "x")
        edge.process.fails = lambda request: gone
        answer = await edge.post(model="x")
        told = answer.json()["error"]
        assert (answer.status_code, told["type"], told["code"], told["param"]) == (
            404,
            "invalid_request_error",
            "model_not_found",
            "model",
        )

    run(scenario)


def test_o14_while_no_engine_is_there_its_adapters_are_known_still() -> None:
    async def scenario(edge: Edge) -> None:
        await loaded(edge, "x")
        edge.feed.list()
        while edge.fleet.runtime_configs.get():
            await asyncio.sleep(0.001)
        assert (await edge.post(model="x")).status_code == 503
        assert (await edge.post(model="y")).status_code == 404
        assert [one["id"] for one in (await edge.client.get("/v1/models")).json()["data"]] == ["m", "x"]

    run(scenario)


def test_o14_the_paths_beside_take_an_adapter_for_the_model() -> None:
    async def scenario(edge: Edge) -> None:
        await loaded(edge, "x")
        counted = await edge.client.post("/tokenize", json={"model": "x", "prompt": "hi"})
        assert counted.json() == (await edge.client.post("/tokenize", json={"model": "m", "prompt": "hi"})).json()
        text = await edge.client.post("/detokenize", json={"model": "x", "tokens": counted.json()["tokens"]})
        assert text.status_code == 200
        told = await edge.client.post("/explain", json={"model": "x", "messages": MESSAGES})
        assert told.status_code == 200
        body = {"model": "x", "messages": MESSAGES}
        assert (await edge.client.post("/v1/messages/count_tokens", json=body)).status_code == 200
        vector = await edge.client.post("/v1/embeddings", json={"model": "x", "input": "hi"})
        assert (vector.status_code, vector.json()["error"]["param"]) == (400, "model")

    run(scenario)
