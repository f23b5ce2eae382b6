"""What a choice was made from: `/explain` and the debug header, which tell numbers and never what was asked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from enginehouse.core.routing.candidate import Candidate, Load
from enginehouse.core.routing.cost import Parts
from enginehouse.core.routing.decision import Decision
from enginehouse.core.routing.pairs import Alone, PairDecision
from enginehouse.core.routing.settings import RoutingSettings
from enginehouse.domain import errors
from enginehouse.domain.stream import Finish
from enginehouse.http.debug import header
from enginehouse.http.session import session_source
from enginehouse.testing.feeds import fake_wanted
from tests.unit.http.test_completions import Edge, error, run

ASK = {"x-enginehouse-debug": "explain"}
SECRET = "xylophone"


async def ask(edge: Edge, path: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return await edge.client.post(path, json={"model": "m", **fields}, headers=headers or {})


@pytest.mark.parametrize("policy", ["round-robin", "random", "least-loaded", "power-of-two", "kv"])
@pytest.mark.parametrize(
    "body", [{"messages": [{"role": "user", "content": SECRET}]}, {"prompt": SECRET}, {"prompt": [321, 322, 323]}]
)
def test_explain_answers_for_every_policy_and_sends_nothing(policy: Any, body: dict[str, Any]) -> None:
    async def scenario(edge: Edge) -> None:
        response = await ask(edge, "/explain", **body)
        told = response.json()
        assert response.status_code == 200
        assert told["policy"] == policy
        assert told["rule"] == "only-one"
        assert told["considered"] == 1
        (candidate,) = told["candidates"]
        assert candidate["chosen"]
        assert candidate["engine"] == told["chosen"]["engine"]
        assert SECRET not in response.text
        assert "321" not in response.text
        assert not any(engine.calls for engine in edge.process.opened)
        assert edge.ledger.in_flight == 0

    run(scenario, routing=RoutingSettings(policy=policy))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "hi", "model": "other"}, (404, "model_not_found", "model")),
        ({"prompt": "hi", "temperature": 9}, (400, None, "temperature")),
        ({"prompt": "word " * 200}, (400, "context_length_exceeded", "prompt")),
        ({"prompt": "word " * 5000}, (413, "request_too_large", None)),
        ({}, (400, None, "messages")),
    ],
)
def test_o8_explain_refuses_as_the_api_does(
    fields: dict[str, Any], expected: tuple[int, str | None, str | None]
) -> None:
    async def scenario(edge: Edge) -> None:
        assert error(await ask(edge, "/explain", **fields)) == expected

    run(scenario)


def test_explain_says_when_there_is_no_engine_and_when_all_are_full() -> None:
    async def scenario(edge: Edge) -> None:
        running = asyncio.create_task(edge.post())
        call = await edge.call()
        assert error(await ask(edge, "/explain", prompt="hi"))[0] == 429
        call.deliver([9], Finish.LENGTH)
        await running
        assert (await ask(edge, "/explain", prompt="hi")).status_code == 200
        edge.feed.list()
        assert error(await ask(edge, "/explain", prompt="hi"))[:2] == (503, "no_engine")

    run(scenario, routing=RoutingSettings(max_requests_per_engine=1))


@pytest.mark.parametrize("stream", [True, False])
def test_the_decision_is_told_where_it_is_allowed_and_asked_for(stream: bool) -> None:
    async def scenario(edge: Edge) -> None:
        edge.process.answers = True
        plain = await ask(edge, "/v1/completions", prompt=SECRET, max_tokens=2, stream=stream)
        assert "x-enginehouse-decision" not in plain.headers
        other = {"x-enginehouse-debug": "everything"}
        assert (
            "x-enginehouse-decision"
            not in (await ask(edge, "/v1/completions", other, prompt="hi", max_tokens=2, stream=stream)).headers
        )
        asked = await ask(edge, "/v1/completions", ASK, prompt=SECRET, max_tokens=2, stream=stream)
        assert asked.status_code == 200
        told = json.loads(asked.headers["x-enginehouse-decision"])
        assert told["engine"] == edge.fleet.serving.get()[0].name
        assert told["rule"] == "only-one"
        assert told["considered"] == 1

    run(scenario, debug_headers=True)


def test_by_default_nobody_is_told() -> None:
    async def scenario(edge: Edge) -> None:
        edge.process.answers = True
        answer = await ask(edge, "/v1/completions", ASK, prompt="hi", max_tokens=2)
        assert answer.status_code == 200
        assert "x-enginehouse-decision" not in answer.headers

    run(scenario)


@pytest.mark.parametrize("affinity", ["header", "user", "prompt-cache-key"])
def test_requests_of_one_session_go_to_one_engine_and_explain_says_so(affinity: Any) -> None:
    async def scenario(edge: Edge) -> None:
        others = [edge.engines.listen(f"10.0.0.{n}:9000", context_length=64) for n in range(2, 6)]
        edge.feed.list(*(fake_wanted(f"e{n}", f"10.0.0.{n}:9000") for n in range(1, 6)))
        while len(edge.fleet.serving.get()) < 5:
            await asyncio.sleep(0.001)
        for process in (edge.process, *others):
            process.answers = True

        async def go(path: str, key: str, **prompt: Any) -> Any:
            fields = {"user": key} if affinity == "user" else {"prompt_cache_key": key}
            headers = {**ASK, "x-chat": key} if affinity == "header" else ASK
            body = {**(prompt or {"prompt": "hi"}), "max_tokens": 2, **({} if affinity == "header" else fields)}
            return await ask(edge, path, headers, **body)

        homes = set()
        for key in map(str, range(12)):
            told = [json.loads((await go("/v1/completions", key)).headers["x-enginehouse-decision"]) for _ in range(3)]
            explained = (await go("/explain", key)).json()
            chat = (await go("/explain", key, messages=[{"role": "user", "content": "hi"}])).json()
            assert chat["chosen"] == explained["chosen"]
            assert {one["rule"] for one in told} == {"affinity"} == {explained["rule"]}
            (home,) = {one["engine"] for one in told} | {explained["chosen"]["engine"]}
            homes.add(home)
        assert len(homes) > 1
        long = await go("/v1/completions", "k" * 600)
        assert error(long)[0] == 400

    run(
        scenario,
        routing=RoutingSettings(policy="random", affinity=affinity),
        session_of=session_source(affinity, "X-Chat"),
        debug_headers=True,
    )


@pytest.mark.parametrize("stream", [True, False])
def test_after_a_retry_the_last_choice_is_told_and_only_that(stream: bool) -> None:
    async def scenario(edge: Edge) -> None:
        other = edge.engines.listen("10.0.0.2:9000", context_length=64)
        other.answers = False
        edge.feed.list(fake_wanted("a", "10.0.0.1:9000"), fake_wanted("b", "10.0.0.2:9000"))
        while len(edge.fleet.serving.get()) < 2:
            await asyncio.sleep(0.001)
        request = asyncio.create_task(ask(edge, "/v1/completions", ASK, prompt="hi", stream=stream))

        def open_call() -> tuple[str, Any] | None:
            for name, process in (("a", edge.process), ("b", other)):
                for engine in process.opened:
                    for call in engine.calls:
                        if not call.over:
                            return name, call
            return None

        async def next_call() -> tuple[str, Any]:
            while (found := open_call()) is None:
                await asyncio.sleep(0.001)
            return found

        first, call = await next_call()
        call.end(errors.EngineUnavailable("gone"))
        second, call = await next_call()
        assert first != second
        call.deliver([9], Finish.LENGTH)
        answer = await request
        assert answer.status_code == 200
        told = [value for name, value in answer.headers.multi_items() if name == "x-enginehouse-decision"]
        members = {m.engine_id: m.name for m in edge.fleet.serving.get()}
        assert [json.loads(value)["engine"] for value in told] == [members.get(second, second)]

    run(scenario, debug_headers=True)


def decision(name: str) -> Decision:
    return Decision(Candidate(name, 1, name, None, Load(), 0), "kv", 2, "why", "best", 100, 64)


def test_the_header_names_both_engines_of_a_pair() -> None:
    name = "n" * 5000
    value = header(PairDecision(decision(name), decision(name)))
    assert len(value) < 1100
    told = json.loads(header(PairDecision(decision("p"), decision("d"))))
    assert {part: one["engine"] for part, one in told.items()} == {"prefill": "p", "decode": "d"}
    assert told["prefill"]["predicted_cached_tokens"] == 64


def test_the_header_says_why_a_decode_engine_worked_alone() -> None:
    told = json.loads(header(Alone(decision("d"), "short-prompt")))
    assert told["alone"] == "short-prompt"
    assert told["decode"]["engine"] == "d"


def test_the_header_is_short_ascii_whatever_an_engine_is_called() -> None:
    name = "größe\r\nx-evil: 1" + "n" * 5000
    chosen = Candidate(name, 1, name, 3, Load(), 0)
    part = Parts(name, name, 3, chosen=True, full=False, requests=1, tokens=10, queued=5, cost=123.456)
    other = Parts("b", "b", 3, chosen=False, full=False, requests=1, tokens=10, queued=5, cost=999.0)
    value = header(Decision(chosen, "kv", 2, "why", "best", 100, 64, (other, part)))
    assert value.isascii()
    assert len(value) < 1100
    assert b"\r" not in value
    assert b"\n" not in value
    told = json.loads(value)
    assert name.startswith(told.pop("engine"))
    assert told == {
        "rank": 3,
        "policy": "kv",
        "rule": "best",
        "considered": 2,
        "prompt_tokens": 100,
        "predicted_cached_tokens": 64,
        "cost": 123.5,
    }


def test_s1_a_client_that_leaves_before_it_has_asked_is_told_nothing() -> None:
    async def scenario(edge: Edge) -> None:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await edge.app({"type": "http", "method": "POST", "path": "/explain", "headers": []}, receive, send)
        assert sent == []

    run(scenario)


def test_choices_are_counted_by_rule_and_explaining_makes_none() -> None:
    async def scenario(edge: Edge) -> None:
        edge.process.answers = True
        for _ in range(2):
            assert (await ask(edge, "/v1/completions", prompt="hi", max_tokens=2)).status_code == 200
        assert (await ask(edge, "/explain", prompt="hi")).status_code == 200
        assert 'enginehouse_decisions_total{rule="only-one"} 2.0' in (await edge.client.get("/metrics")).text

    run(scenario)
