"""Adapters on some engines of a fleet, which load and unload them while it serves, as OpenAI's client sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import NotFoundError, OpenAI

from tests.e2e.fleets import urls
from tests.e2e.support import Engine
from tests.e2e.test_abilities import client_of
from tests.support import until

if TYPE_CHECKING:
    from tests.e2e.conftest import MakeEngine, MakeFront

pytestmark = pytest.mark.e2e

QUICK = ("--check-interval", 0.1)


def ask(client: OpenAI, model: str, **more: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "tell " * 40}], max_tokens=3, **more
    )


def listed(client: OpenAI) -> list[str]:
    return [model.id for model in client.models.list()]


def shares(engines: dict[str, Engine], lora: str) -> dict[str, int]:
    """Requests for an adapter that each engine got."""
    return {name: sum(line.get("lora") == lora for line in engine.seen("request")) for name, engine in engines.items()}


def test_o14_an_adapter_on_one_of_three_engines(engine: MakeEngine, front: MakeFront) -> None:
    protocols = {"a": "sglang", "b": "vllm-native", "c": "vllm"}
    engines = {name: engine(name, protocol=kind, tokens_per_second=0) for name, kind in protocols.items()}
    for name, one in engines.items():
        one.run(**({"loras": "x"} if name == "b" else {}))
    running = front(*urls(*engines.values()), *QUICK)
    for one in engines.values():
        running.wait_state(one, "serving")
    with client_of(running) as client:
        assert listed(client) == ["mock", "x"]
        for _ in range(6):
            assert ask(client, "x").model == "x"
        assert {chunk.model for chunk in ask(client, "x", stream=True)} == {"x"}
        assert shares(engines, "x") == {"a": 0, "b": 7, "c": 0}

        engines["a"].faults(loras="x,y")  # a second one loads it, and another
        until(lambda: listed(client) == ["mock", "x", "y"], saying="the union is not listed")
        for _ in range(6):
            ask(client, "x")
        assert shares(engines, "x") == {"a": 3, "b": 10, "c": 0}
        assert {row["url"]: row["loras"] for row in running.page()["engines"]} == {
            engines["a"].url: ["x", "y"],
            engines["b"].url: ["x"],
            engines["c"].url: [],
        }

        engines["b"].faults(loras="")
        for _ in range(4):  # it is not known at once that b has it no more: a takes over what b refuses
            assert ask(client, "x").model == "x"
        engines["a"].faults(loras="y")
        with pytest.raises(NotFoundError) as caught:  # whether or not the engines were asked again since
            ask(client, "x")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        until(lambda: listed(client) == ["mock", "y"], saying="what nobody has any more is listed")
        with pytest.raises(NotFoundError, match="serves 'mock' with the adapters 'y'"):
            ask(client, "x")
        assert ask(client, "y").model == "y"
        assert all(row["state"] == "serving" for row in running.page()["engines"])
        assert shares(engines, "x")["c"] == shares(engines, "y")["c"] == 0


@pytest.mark.parametrize("protocol", ["sglang", "vllm-native"])
def test_o14_a_prompts_cache_is_its_adapters_own(protocol: str, engine: MakeEngine, front: MakeFront) -> None:
    one = engine(
        "a", protocol=protocol, tokens_per_second=0, loras="x,y", kv_events_port=0, kv_replay_port=0, block_size=16
    ).run()
    running = front(*urls(one), policy="kv")
    running.wait_state(one, "serving")
    with client_of(running) as client:

        def held(model: str) -> int:
            body = {"model": model, "messages": [{"role": "user", "content": "tell " * 40}]}
            told: Any = client.post(f"http://127.0.0.1:{running.port}/explain", body=body, cast_to=object)
            return int(told["candidates"][0]["held"])

        def cached(model: str) -> int:
            details = ask(client, model).usage.prompt_tokens_details
            return int(details.cached_tokens)

        assert cached("x") == 0
        until(lambda: held("x") > 0, saying="what the engine holds with the adapter is not known")
        assert (held("mock"), held("y")) == (0, 0)
        assert cached("x") == held("x")
        assert cached("mock") == 0
        until(lambda: held("mock") > 0, saying="what the engine holds of the model itself is not known")
        assert held("y") == 0
        assert cached("y") == 0
