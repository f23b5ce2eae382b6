"""OpenAI's client for Node against the whole program: what it puts together of streams is what it reads whole."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from enginehouse.mock.embedding import embedding
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.support import Engine, Front
from tests.support import PYTHON, ROOT, starter

pytestmark = [pytest.mark.e2e, pytest.mark.rig("node")]

CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "/tmp/é.txt"}}\n</tool_call>'
SAID = {
    "the file says 42": "<think>\nNow I know.\n</think>\n\nIt says 42.",
    "look into the file": f"<think>\nI have to read it.\n</think>\n\nLet me look.\n{CALL}",
    "count to four": "one two three four",
}
"""By a part of the prompt."""

NODE = ROOT / "tests" / "rigs" / "node.py"
SCRIPT = ROOT / "tests" / "e2e" / "node_client.mjs"


def play(front: Front, scenario: str) -> Any:
    """What the client made of it."""
    command = [PYTHON, NODE, "run", SCRIPT, f"http://127.0.0.1:{front.port}/v1", scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A frontend on an engine that says its part."""
    with starter() as start:
        folder = tmp_path_factory.mktemp("served")
        one = Engine(start, folder, "a", tokens_per_second=0, context_length=4096, say_to=json.dumps(SAID)).run()
        yield Front(start, "--engine", one.url, "--tool-parser", "hermes", "--reasoning-parser", "qwen3")


@pytest.mark.parametrize("way", ["chat_whole", "chat_streamed"])
def test_o5_a_chat_with_thinking_and_a_call(served: Front, way: str) -> None:
    got = play(served, way)
    (choice,) = got["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["reasoning_content"].strip() == "I have to read it."
    assert message["content"].strip() == "Let me look."
    (call,) = message["tool_calls"]
    assert call["id"].startswith("call_")
    assert json.loads(call["function"]["arguments"]) == {"path": "/tmp/é.txt"}
    assert got["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_o5_the_client_runs_a_tool_and_goes_on(served: Front) -> None:
    got = play(served, "chat_tools_run")
    assert got["seen"] == [{"path": "/tmp/é.txt"}]
    assert got["content"].strip() == "It says 42."


def test_a_completion(served: Front) -> None:
    assert play(served, "completion_streamed") == {"text": "one two three four", "reason": "stop"}


@pytest.mark.parametrize("way", ["response_whole", "response_streamed"])
def test_o5_a_response_with_thinking_and_a_call(served: Front, way: str) -> None:
    got = play(served, way)
    assert got["status"] == "completed"
    assert [item["type"] for item in got["output"]] == ["reasoning", "message", "function_call"]
    assert got["output_text"].strip() == "Let me look."
    assert json.loads(got["output"][2]["arguments"]) == {"path": "/tmp/é.txt"}


def test_models(served: Front) -> None:
    assert play(served, "models") == {"found": ["mock"], "one": "mock"}


def test_o8_errors(served: Front) -> None:
    invalid = "invalid_request_error"
    assert play(served, "errors") == {
        "model": {
            "kind": "NotFoundError",
            "status": 404,
            "code": "model_not_found",
            "param": "model",
            "type": invalid,
        },
        "field": {"kind": "BadRequestError", "status": 400, "code": None, "param": "temperature", "type": invalid},
        "response": {
            "kind": "BadRequestError",
            "status": 400,
            "code": "unsupported_parameter",
            "param": "store",
            "type": invalid,
        },
        "path": {"kind": "NotFoundError", "status": 404, "code": "not_found", "param": None, "type": invalid},
    }


def test_embeddings(engine: MakeEngine, front: MakeFront) -> None:
    one = engine("a", embeds=True, embedding_size=8).run()
    serving = front("--engine", one.url)
    assert play(serving, "embeddings") == [embedding([300, 301], 8), embedding([302], 8)]
