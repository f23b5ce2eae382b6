"""Frontend and mock engines in one process: what clients cannot do, and what they see when an engine fails midway."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from enginehouse.app import Frontend, frontend
from enginehouse.core.routing.policy import RoutingSettings
from enginehouse.domain.engine import Target
from enginehouse.http.server import HttpSettings
from enginehouse.mock import MockEngine, MockSettings
from enginehouse.settings import Settings

SETTINGS = Settings(
    http=HttpSettings(port=0, shutdown_grace=0.0, shutdown_timeout=5.0), routing=RoutingSettings(policy="round-robin")
)


def serving(scene: Callable[[Frontend], Awaitable[None]]) -> None:
    """Run a scene with a frontend without engines."""

    async def run() -> None:
        async with asyncio.timeout(40), frontend(SETTINGS, feeds=()) as running:
            await scene(running)
            await running.leave()

    asyncio.run(run())


async def call(port: int, method: str, path: str, body: object = None) -> tuple[int, dict[str, str], str]:
    def exchange() -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()

    return await asyncio.to_thread(exchange)


async def known(running: Frontend) -> None:
    """Wait until the model can be served."""
    while running.readiness.reasons():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_s5_no_request_brings_an_engine_in_or_takes_one_out(method: str) -> None:
    async def scene(running: Frontend) -> None:
        async with MockEngine(MockSettings(tokens_per_second=0)) as mock:
            await running.fleet.add(Target.parse(mock.url))
            await known(running)
            before = running.fleet.view().engines
            body = {"url": "grpc://169.254.169.254:80", "worker": mock.url, "id": mock.url, "engine_id": mock.url}
            for path in ("/engines", f"/engines/{mock.url}", "/workers", "/add_worker", "/v1/models", "/metrics"):
                status, _, text = await call(running.port, method, path, body)
                assert status in (404, 405), (path, text)
            after = running.fleet.view().engines
            assert [(e.engine_id, e.incarnation, e.state) for e in after] == [
                (e.engine_id, e.incarnation, e.state) for e in before
            ]

    serving(scene)


def test_d28_m8_an_empty_fleet_says_so_everywhere() -> None:
    async def scene(running: Frontend) -> None:
        port = running.port
        assert (await call(port, "GET", "/livez"))[0] == 200
        status, _, text = await call(port, "GET", "/readyz")
        assert status == 503
        assert json.loads(text)["reasons"]
        status, headers, text = await call(port, "POST", "/v1/completions", {"model": "m", "prompt": "x"})
        assert status == 503
        assert int(headers["retry-after"]) > 0
        assert json.loads(text)["error"]["code"]
        status, _, text = await call(port, "GET", "/engines")
        assert (status, json.loads(text)["engines"]) == (200, [])
        status, headers, text = await call(port, "GET", "/metrics")
        assert status == 200
        assert "enginehouse_ready 0.0" in text

    serving(scene)


def test_m2_m4_an_answer_that_was_cut_ends_in_an_error_and_is_not_spliced() -> None:
    async def scene(running: Frontend) -> None:
        settings = MockSettings(tokens_per_second=200)
        async with MockEngine(settings) as good, MockEngine(settings) as bad:
            for mock in (good, bad):
                await running.fleet.add(Target.parse(mock.url))
            await known(running)
            bad.set_faults(error_after_tokens=10)
            prompt = [11, 12, 13]
            body = {"model": "mock", "prompt": prompt, "max_tokens": 30, "stream": True, "ignore_eos": True}
            answers = [(await call(running.port, "POST", "/v1/completions", body))[2] for _ in range(2)]
            assert [("[DONE]" in text, '"error"' in text) for text in sorted(answers, key=len)] == [
                (False, True),
                (True, False),
            ]
            broken, whole = sorted((read_events(text) for text in answers), key=len)
            text = texts(whole)
            assert finishes(whole) == ["length"]
            assert "error" in broken[-1], "the error is the last event"
            assert finishes(broken) == []
            assert 0 < len(texts(broken)) < len(text)
            assert text.startswith(texts(broken)), "only what the first engine said"

    serving(scene)


def read_events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def texts(events: list[dict[str, Any]]) -> str:
    return "".join(choice["text"] for event in events for choice in event.get("choices", ()))


def finishes(events: list[dict[str, Any]]) -> list[str]:
    reasons = [choice["finish_reason"] for event in events for choice in event.get("choices", ())]
    return [reason for reason in reasons if reason]


def test_cached_tokens_and_requests_reach_the_metrics() -> None:
    async def scene(running: Frontend) -> None:
        async with MockEngine(MockSettings(tokens_per_second=0)) as mock:
            await running.fleet.add(Target.parse(mock.url))
            await known(running)
            body = {"model": "mock", "prompt": list(range(5, 69)), "max_tokens": 3}
            for _ in range(2):
                status, _, text = await call(running.port, "POST", "/v1/completions", body)
                assert status == 200, text
            cached = json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached > 0
            _, _, metrics = await call(running.port, "GET", "/metrics")
            assert 'enginehouse_requests_total{code="",endpoint="/v1/completions",status="200"} 2.0' in metrics
            assert "enginehouse_completion_tokens_total 6.0" in metrics
            assert f"enginehouse_cached_tokens_total {cached:.1f}" in metrics

    serving(scene)


def test_s6_junk_models_and_paths_make_no_series() -> None:
    async def scene(running: Frontend) -> None:
        async with MockEngine(MockSettings(tokens_per_second=0)) as mock:
            await running.fleet.add(Target.parse(mock.url))
            await known(running)

            async def junk(number: int) -> None:
                body = {"model": f"junk-{number}", "prompt": "x"}
                status, _, text = await call(running.port, "POST", "/v1/completions", body)
                assert (status, json.loads(text)["error"]["code"]) == (404, "model_not_found")
                assert (await call(running.port, "GET", f"/junk/{number}"))[0] == 404

            async def series() -> int:
                _, _, metrics = await call(running.port, "GET", "/metrics")
                assert "junk" not in metrics
                return sum(not line.startswith("#") for line in metrics.splitlines())

            await junk(0)
            before = await series()
            await asyncio.gather(*(junk(number) for number in range(100)))
            assert await series() == before

    serving(scene)
