"""A fleet of all three protocols, in which not every engine can do what a request needs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from openai import BadRequestError, OpenAI

from tests.e2e.fleets import urls
from tests.e2e.support import Engine, Front

if TYPE_CHECKING:
    from tests.e2e.conftest import MakeEngine, MakeFront

pytestmark = pytest.mark.e2e

PROTOCOLS = ("sglang", "vllm", "vllm-native")


def asked(client: OpenAI, **more: Any) -> str:
    answer = client.chat.completions.create(
        model="mock", messages=[{"role": "user", "content": "hello"}], max_tokens=3, **more
    )
    return str(answer.choices[0].message.content)


def client_of(front: Front) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="none", max_retries=0, timeout=30)


def shares(engines: dict[str, Engine], key: str | None = None) -> dict[str, int]:
    """Requests of clients that each engine got; with this wish, where one is named."""
    return {
        name: sum(key is None or key in line for line in one.seen("request") if line["prompt_tokens"] > 1)
        for name, one in engines.items()
    }


def test_a_request_goes_only_where_it_can_be_served(engine: MakeEngine, front: MakeFront) -> None:
    engines = {name: engine(name, protocol=name, tokens_per_second=0).run() for name in PROTOCOLS}
    running = front(*urls(*engines.values()))
    for one in engines.values():
        running.wait_state(one, "serving")
    told = {row["url"]: row["abilities"] for row in running.page()["engines"]}
    assert {name for name in PROTOCOLS if "logit_bias" in told[engines[name].url]} == {"vllm", "vllm-native"}
    with client_of(running) as client:
        for _ in range(9):
            asked(client)
        assert all(shares(engines).values())
        for _ in range(8):
            asked(client, logit_bias={"300": 5})
        assert shares(engines, "logit_bias") == {"sglang": 0, "vllm": 4, "vllm-native": 4}
        answers = {asked(client, logprobs=True, top_logprobs=2) for _ in range(9)}
        assert len(answers) == 1
        assert all(shares(engines, "logprobs").values())
        for name in ("vllm", "vllm-native"):
            assert engines[name].child is not None
            engines[name].kill()
            running.wait_state(engines[name], "suspect", "failed")
        with pytest.raises(BadRequestError) as caught:
            asked(client, logit_bias={"300": 5})
        assert (caught.value.param, caught.value.code) == ("logit_bias", "unsupported_value")
        assert asked(client)


def test_an_older_sglang_holds_answers_to_schemas_and_to_nothing_newer(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a", protocol="sglang", tokens_per_second=0, old_release=True).run()
    running = front(*urls(one))
    with client_of(running) as client:
        schema = {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"]}
        held = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        answer = client.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": "hello"}], response_format=held
        )
        assert json.loads(answer.choices[0].message.content or "") == {"a": 5}
        with pytest.raises(BadRequestError) as caught:
            asked(client, extra_body={"guided_choice": ["a", "b"]})
        assert caught.value.param == "guided_choice"
    assert [line["constraint"]["kind"] for line in one.seen("request") if "constraint" in line] == ["JsonSchema"]
