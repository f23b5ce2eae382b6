"""The served OpenAPI document against the server: no failure of ours, no status and no shape that is not in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.errors import InvalidSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from enginehouse.core.openai.constraints import CONSTRAINTS
from enginehouse.core.openapi.paths import PATHS, Path
from tests.e2e.support import Engine, Front
from tests.support import starter

pytestmark = pytest.mark.e2e

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
BOUNDS = {"max_tokens": 6, "max_completion_tokens": 6, "max_output_tokens": 6, "n": 2}
"""So that examples take no longer than they are worth."""


def _fronts(folder: Any, **options: Any) -> Iterator[Front]:
    with starter() as start:
        one = Engine(start, folder, "a", tokens_per_second=0, context_length=512, **options).run()
        yield Front(start, "--engine", one.url, "--tool-parser", "hermes", "--reasoning-parser", "qwen3")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A frontend on an engine that generates."""
    yield from _fronts(tmp_path_factory.mktemp("served"), eos_after=5)


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A frontend on an engine that makes embeddings."""
    yield from _fronts(tmp_path_factory.mktemp("embedding"), embeds=True)


bounded = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def _settle(body: dict[str, Any]) -> None:
    """Let a body cost little, and not contradict itself where the document has no way to say so."""
    if isinstance(body.get("model"), str) and body["model"]:
        body["model"] = "mock"
    for name, most in BOUNDS.items():
        if type(body.get(name)) is int:
            body[name] = min(body[name], most)
    forms = [name for name in CONSTRAINTS if body.get(name) is not None]
    for name in ("ignore_eos", "min_tokens", "best_of", *forms[1:]):
        body.pop(name, None)
    if body.get("top_logprobs") and body.get("logprobs") is False:
        body["logprobs"] = True


@st.composite
def _cases(draw: st.DrawFn, operation: Any, mode: GenerationMode) -> Case:
    """Examples, but for those that the generator gives up on half-way: it cannot fill some lists that it thinks of."""
    try:
        case: Case = draw(operation.as_strategy(generation_mode=mode))
    except InvalidSchema:
        reject()
    return case


def _hold(front: Front, path: Path, mode: GenerationMode, *, streams: bool = False) -> None:
    """Send what the document says of this path, or what it does not say, and look at the answers."""
    document = schemathesis.openapi.from_url(f"http://127.0.0.1:{front.port}/openapi.json")
    operation = document[path.path]["POST" if path.body else "GET"]
    answered: set[int] = set()

    @given(_cases(operation, mode))
    @bounded
    def each(case: Case) -> None:
        if isinstance(case.body, dict):
            _settle(case.body)
            if streams:
                case.body["stream"] = True
        answered.add(case.call_and_validate(checks=CHECKS, timeout=20).status_code)

    each()
    # At least some of what the document allows is taken, and what it does not allow is not.
    expected = 404 if path.found else 200
    assert (expected if mode is GenerationMode.POSITIVE else 400) in answered, answered


@pytest.mark.parametrize("path", [path for path in PATHS if path.path != "/v1/embeddings"], ids=lambda path: path.path)
def test_no_answer_is_other_than_the_document_says(served: Front, path: Path) -> None:
    _hold(served, path, GenerationMode.POSITIVE)


@pytest.mark.parametrize("path", [path for path in PATHS if path.streams], ids=lambda path: path.path)
def test_no_stream_is_other_than_the_document_says(served: Front, path: Path) -> None:
    _hold(served, path, GenerationMode.POSITIVE, streams=True)


@pytest.mark.parametrize("path", [path for path in PATHS if path.body], ids=lambda path: path.path)
def test_no_answer_to_what_it_does_not_allow_is_either(served: Front, path: Path) -> None:
    _hold(served, path, GenerationMode.NEGATIVE)


def test_no_answer_of_an_embedding_model_is_other_than_the_document_says(embedding: Front) -> None:
    (path,) = [path for path in PATHS if path.path == "/v1/embeddings"]
    _hold(embedding, path, GenerationMode.POSITIVE)
