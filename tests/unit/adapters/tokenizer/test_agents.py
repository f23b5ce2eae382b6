"""What agents send, through the templates of all families: a template may refuse it, and none loses any of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from enginehouse.adapters.tokenizer.template import ChatTemplate
from enginehouse.core.anthropic.parse import parse_message
from enginehouse.core.openai.requests import ChatRequest
from enginehouse.core.responses.parse import parse_response
from enginehouse.domain.errors import InvalidRequest

TEMPLATES = sorted((Path(__file__).parent / "templates").glob("*.jinja"))


def said(role: str, *texts: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text} for text in texts]}


RESPONSE = {
    "instructions": "w1w",
    "input": [said("developer", "w2w", "w3w"), said("user", "w4w"), said("user", "w5w"), said("user")],
}
MESSAGE = {
    "max_tokens": 9,
    "system": [{"type": "text", "text": "w1w"}, {"type": "text", "text": "w2w"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "w3w"}, {"type": "text", "text": "w4w"}]},
        {"role": "user", "content": "w5w"},
    ],
}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize(("parse", "body"), [(parse_response, RESPONSE), (parse_message, MESSAGE)])
def test_instructions_in_pieces_and_texts_that_follow_each_other_all_reach_the_model(
    path: Path, parse: Any, body: dict[str, Any]
) -> None:
    request: ChatRequest = parse(json.dumps({"model": "m", **body}).encode())
    template = ChatTemplate(path.read_text(), {"bos_token": "<s>", "eos_token": "</s>"})
    if path.stem == "gemma2":  # it has no place for instructions
        with pytest.raises(InvalidRequest):
            template.render(request.messages, request.template_options)
        return
    text = template.render(request.messages, request.template_options)
    places = [text.find(f"w{number}w") for number in range(1, 6)]
    assert -1 not in places
    assert places == sorted(places)
