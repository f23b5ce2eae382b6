"""A client whose constraints no engine can compile costs nobody else an engine, and is told which field it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from openai import BadRequestError, OpenAI

from tests.e2e.fleets import urls
from tests.e2e.support import WITHIN, Front

if TYPE_CHECKING:
    from tests.e2e.conftest import MakeEngine, MakeFront

pytestmark = pytest.mark.e2e

ASKED: dict[str, Any] = {"model": "mock", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("guided_choice", {"extra_body": {"guided_choice": ["a", "b"]}}),
    ("response_format", {"response_format": SCHEMA}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": "required"}),
]


def client_of(front: Front) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="none", max_retries=0, timeout=WITHIN)


@pytest.mark.parametrize("protocol", ["sglang", "vllm", "vllm-native"])
def test_engines_stay_in_service_under_constraints_that_they_fail(
    protocol: str, engine: MakeEngine, front: MakeFront
) -> None:
    a, b = (engine(name, protocol=protocol, tokens_per_second=0, fail_constrained=True).run() for name in "ab")
    running = front(*urls(a, b))
    for one in (a, b):
        running.wait_state(one, "serving")
    with client_of(running) as client, ThreadPoolExecutor(8) as pool:

        def refused(number: int) -> None:
            field, more = WAYS[number % len(WAYS)]
            with pytest.raises(BadRequestError) as caught:
                client.chat.completions.create(**ASKED, **more, stream=number % 2 == 1)
            assert (caught.value.param, caught.value.code) == (field, "invalid_constraint")
            assert "failed while it held the answer to it" in caught.value.message

        def served(_: int) -> None:
            assert client.chat.completions.create(**ASKED).choices[0].message.content

        for done in [pool.submit(what, number) for number in range(50) for what in (refused, served)]:
            done.result(WITHIN)
    assert [running.state(one) for one in (a, b)] == ["serving", "serving"]
    running.wait_idle()
    assert "suspect" not in running.child.output
    assert sum("constraint" in line for one in (a, b) for line in one.seen("request")) == 100  # two engines each


def test_an_engine_that_rejects_a_constraint_is_quoted_with_the_field(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a", protocol="vllm", tokens_per_second=0).run()
    running = front(*urls(one))
    running.wait_state(one, "serving")
    one.faults(refuse="INVALID_ARGUMENT")
    with client_of(running) as client:
        for field, more in WAYS:
            with pytest.raises(BadRequestError) as caught:
                client.chat.completions.create(**ASKED, **more)
            assert (caught.value.param, caught.value.code) == (field, "engine_rejected")
        with pytest.raises(BadRequestError) as caught:
            client.chat.completions.create(**ASKED)
        assert caught.value.param is None
