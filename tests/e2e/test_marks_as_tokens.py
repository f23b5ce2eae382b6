"""Models whose marks are special tokens, each a token of its own: the parser sees them, and no client does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from enginehouse.domain.engine import ProtocolName
from enginehouse.mock.vocabulary import BUNDLED
from tests.e2e.support import Engine, Front
from tests.support import starter

pytestmark = pytest.mark.e2e

MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é 🚂"}}\n</tool_call>'
SAYS = {"both": f"<think>\nTwo.\n</think>\n\nI call.\n{CALL}\n{CALL}", "plain": "Hello <|im_start|>there."}
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


def marked(folder: Path) -> Path:
    """The bundled model, with a special token for each mark."""
    shutil.copytree(BUNDLED, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    first = 1 + max(tokenizer["model"]["vocab"].values())
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [{**like, "id": first + at, "content": mark} for at, mark in enumerate(MARKS)]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=list(ProtocolName))
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    with starter() as start:
        base = tmp_path_factory.mktemp("marked")
        options = {"protocol": request.param.value, "model_path": marked(base / "model"), "tokens_per_second": 0}
        one = Engine(start, base, "a", **options, say_to=json.dumps(SAYS)).run()
        front = Front(start, "--engine", one.url, "--tool-parser", "hermes", "--reasoning-parser", "qwen3")
        with OpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="none", max_retries=0, timeout=30) as made:
            yield made


@pytest.mark.parametrize("stream", [False, True])
def test_o6_marks_that_are_tokens_are_read_and_not_shown(client: OpenAI, stream: bool) -> None:
    asked: Any = {"model": "mock", "messages": [{"role": "user", "content": "both"}], "tools": TOOLS}
    if stream:
        with client.chat.completions.stream(**asked) as events:
            for _ in events:
                pass
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.create(**asked)
    message: Any = answer.choices[0].message
    assert (message.content, message.model_extra["reasoning_content"]) == ("I call.", "Two.")
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"a": 1, "b": "é 🚂"}] * 2
    assert answer.choices[0].finish_reason == "tool_calls"


def test_other_special_tokens_stay_unseen(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="mock", messages=[{"role": "user", "content": "plain"}])
    assert answer.choices[0].message.content == "Hello there."
