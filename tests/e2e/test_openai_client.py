"""The official client against the whole program: it streams, it does not, and it can parse every error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from enginehouse.domain.engine import ProtocolName
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.support import Engine, Front
from tests.support import starter

pytestmark = pytest.mark.e2e

MESSAGES: Any = [{"role": "user", "content": "which engine are you"}]
EXTRA = {"ignore_eos": True}


def client_of(front: Front) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="none", max_retries=0, timeout=30)


@pytest.fixture(scope="module", params=list(ProtocolName))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A frontend on one engine of each protocol; these tests leave nothing behind in it."""
    with starter() as start:
        options = {"protocol": request.param.value, "tokens_per_second": 200, "context_length": 512, "eos_after": 20}
        one = Engine(start, tmp_path_factory.mktemp("served"), "a", **options).run()
        yield Front(start, "--engine", one.url, "--max-body-bytes", 100_000)


@pytest.fixture
def client(served: Front) -> Iterator[OpenAI]:
    with client_of(served) as one:
        yield one
    served.wait_idle()


def test_chat_streamed_and_whole_say_the_same(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=8, extra_body=EXTRA)
    assert whole.choices[0].finish_reason == "length"
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.usage.total_tokens) == (8, 8 + whole.usage.prompt_tokens)

    stream = client.chat.completions.create(
        model="mock",
        messages=MESSAGES,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=EXTRA,
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, 8)
    assert usage.prompt_tokens_details is not None
    # The same prompt came before: all its whole blocks were in the engine's cache.
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16


def test_completions_from_text_and_from_tokens(client: OpenAI) -> None:
    whole = client.completions.create(model="mock", prompt="the engine", max_tokens=6, extra_body=EXTRA)
    chunks = list(
        client.completions.create(model="mock", prompt="the engine", max_tokens=6, stream=True, extra_body=EXTRA)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    tokens = client.completions.create(model="mock", prompt=[300, 301, 302], max_tokens=6, extra_body=EXTRA)
    assert tokens.usage is not None
    assert (tokens.usage.prompt_tokens, tokens.choices[0].finish_reason) == (3, "length")


def test_an_answer_ends_at_eos_and_at_a_stop_string(client: OpenAI) -> None:
    ended = client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=200)
    assert ended.usage is not None
    assert (ended.choices[0].finish_reason, ended.usage.completion_tokens) == ("stop", 20)
    text = ended.choices[0].message.content
    assert text
    assert "<|im_end|>" not in text
    stop = text[len(text) // 2 :][:5]
    cut = client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=200, stop=stop)
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].message.content == text[: text.index(stop)]


def test_without_a_limit_an_answer_may_fill_the_context(client: OpenAI) -> None:
    """G11: the engines' own default would be 16 or 128."""
    answer = client.chat.completions.create(model="mock", messages=MESSAGES, extra_body=EXTRA)
    assert answer.usage is not None
    assert answer.usage.total_tokens >= 511  # SGLang itself keeps one token of its context back
    assert answer.choices[0].finish_reason == "length"


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["mock"]
    assert client.models.retrieve("mock").id == "mock"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nope")
    assert caught.value.code == "model_not_found"


def _chat(**more: Any) -> Callable[[OpenAI], object]:
    return lambda client: client.chat.completions.create(**{"model": "mock", "messages": MESSAGES, **more})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("call", "kind", "code", "param"),
    [
        ({"model": "nope"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": 9.0}, openai.BadRequestError, None, "temperature"),
        ({"temperature": "hot"}, openai.BadRequestError, None, "temperature"),
        ({"max_tokens": 0}, openai.BadRequestError, None, "max_tokens"),
        ({"messages": []}, openai.BadRequestError, None, "messages"),
        (
            {"messages": [{"role": "user", "content": "word " * 2000}]},
            openai.BadRequestError,
            "context_length_exceeded",
            ...,
        ),
        ({"n": 0}, openai.BadRequestError, None, "n"),
        ({"top_logprobs": 2}, openai.BadRequestError, None, "top_logprobs"),
        ({"logit_bias": {"5": 101}}, openai.BadRequestError, None, "logit_bias"),
        ({"tools": [{"type": "web"}]}, openai.BadRequestError, None, "tools[0].type"),
        ({"extra_body": {"no_such_parameter": 1}}, openai.BadRequestError, None, "no_such_parameter"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, openai.APIStatusError, "request_too_large", ...),
    ],
)
def test_o8_errors_of_a_request(
    client: OpenAI, stream: bool, call: dict[str, Any], kind: type[openai.APIStatusError], code: str | None, param: Any
) -> None:
    with pytest.raises(kind) as caught:
        _chat(stream=stream, **call)(client)
    error = caught.value
    assert error.status_code == {openai.NotFoundError: 404, openai.BadRequestError: 400}.get(kind, 413)
    assert isinstance(error.body, dict)
    assert {"message", "type", "param", "code"} <= set(error.body)
    assert error.type == "invalid_request_error"
    if code is not None:
        assert error.code == code
    if param is not ...:
        assert error.param == param


def test_o8_errors_of_route_and_method(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as nowhere:
        client.post("/no/such/path", cast_to=object)
    assert nowhere.value.code == "not_found"
    with pytest.raises(openai.APIStatusError) as method:
        client.get("/chat/completions", cast_to=object)
    assert (method.value.status_code, method.value.code) == (405, "method_not_allowed")
    with pytest.raises(openai.BadRequestError) as garbage:
        client.post("/chat/completions", cast_to=object, content=b"{", options={"headers": {"X-Test": "1"}})
    assert garbage.value.type == "invalid_request_error"


def test_m8_a_known_model_without_engines_is_503_with_retry_after(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a").run()
    serving = front("--engine", one.url)
    one.kill()
    serving.wait_state(one, "suspect", "failed", "probing")
    with client_of(serving) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            _chat()(client)
        assert (caught.value.status_code, caught.value.code) == (503, "no_engine")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        with pytest.raises(openai.NotFoundError) as unknown:
            _chat(model="nope")(client)
        assert unknown.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("faults", "status", "kind"),
    [
        ({"refuse": "RESOURCE_EXHAUSTED"}, 429, openai.RateLimitError),
        ({"refuse": "INVALID_ARGUMENT"}, 400, openai.BadRequestError),
        ({"refuse": "INTERNAL"}, 500, openai.InternalServerError),
        ({"refuse": "UNAVAILABLE"}, 503, openai.InternalServerError),
    ],
)
def test_g4_errors_of_an_engine(
    engine: MakeEngine, front: MakeFront, faults: dict[str, Any], status: int, kind: type[openai.APIStatusError]
) -> None:
    one = engine("a").run()
    serving = front("--engine", one.url)
    one.faults(**faults)
    with client_of(serving) as client:
        with pytest.raises(kind) as caught:
            _chat()(client)
        assert caught.value.status_code == status
        assert isinstance(caught.value.body, dict)
        one.faults()
        serving.wait_state(one, "serving")
        assert client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=2).choices
    serving.wait_idle()


def test_an_error_after_the_first_token_reaches_the_client_as_an_exception(
    engine: MakeEngine, front: MakeFront
) -> None:
    # Without a pace each token is handed on before the next is made.
    one = engine("a", error_after_tokens=3, tokens_per_second=0).run()
    serving = front("--engine", one.url)
    with client_of(serving) as client:
        stream = client.chat.completions.create(model="mock", messages=MESSAGES, max_tokens=9, stream=True)
        got = []
        with pytest.raises(openai.APIError) as caught:
            got.extend(stream)
        assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in got) == 3
        assert isinstance(caught.value.body, dict)
        assert caught.value.code == "engine_failed"
    serving.wait_idle()
