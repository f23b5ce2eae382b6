"""Conversations that began with other models: ids, and calls, in forms that a template would refuse."""

import re
from pathlib import Path
from typing import Any

import pytest

from enginehouse.adapters.tokenizer.template import ChatTemplate
from enginehouse.domain.errors import InvalidRequest

FOLDER = Path(__file__).parent / "templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ASK = {"role": "user", "content": "Weather?"}
THEIRS = ("call_5fQ2zJdmKxW0nYb1aH3uLr8s", "toolu_01A09q90qw90lq917835lq9", "functions.get_weather:0", "1", "kept00009")


def template(name: str, tokens: Any = None) -> ChatTemplate:
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text(), TOKENS if tokens is None else tokens)


def history(*ids: str) -> list[dict[str, Any]]:
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": {"n": one}}} for one in ids]
    results = [{"role": "tool", "tool_call_id": one, "content": f"result {at}"} for at, one in enumerate(ids)]
    return [ASK, {"role": "assistant", "tool_calls": calls}, *results]


def test_o5_ids_of_other_makers_become_such_as_the_template_takes() -> None:
    shown = template("mistral_v3").render(history(*THEIRS), {})
    made = re.findall(r'"id": "([^"]*)"', shown)
    assert all(re.fullmatch("[A-Za-z0-9]{9}", one) for one in made)
    assert len(set(made)) == len(THEIRS)
    assert re.findall(r'"call_id": "([^"]*)"', shown) == made
    assert made[-1] == "kept00009"
    longer = template("mistral_v3").render([*history(*THEIRS), {"role": "assistant", "content": "x"}, ASK], {})
    assert re.findall(r'"id": "([^"]*)"', longer) == made  # or the engine's cache would not have it


@pytest.mark.parametrize("name", ["kimi_k2", "magistral"])
def test_o5_ids_stay_where_a_template_takes_them(name: str) -> None:
    source = (FOLDER / f"{name}.jinja").read_text() + "{% for m in messages %}|{{ m.tool_call_id }}{% endfor %}"
    shown = ChatTemplate(source, TOKENS).render(history(*THEIRS), {})
    assert all(f"|{one}" in shown for one in THEIRS)


def test_the_messages_of_the_caller_keep_their_ids() -> None:
    messages = history("call_abc")
    template("mistral_v3").render(messages, {})
    assert messages == history("call_abc")


@pytest.mark.parametrize("name", ["zephyr", "phi4", "idefics", "chatml", "gemma2"])
def test_o5_calls_without_content_render_where_there_is_no_place_for_calls(name: str) -> None:
    call = {"id": "call_abc", "type": "function", "function": {"name": "f", "arguments": {}}}
    for message in ({"content": None}, {}, {"content": ""}):
        shown = template(name).render([ASK, {"role": "assistant", "tool_calls": [call], **message}], {})
        assert "None" not in shown
        assert "Weather?" in shown


def test_a_token_that_the_tokenizer_does_not_name_is_said_to_be_missing() -> None:
    with pytest.raises(InvalidRequest) as caught:
        template("llama2", {"eos_token": "</s>"}).render([ASK], {})
    assert caught.value.message == (
        "the model's chat template needs 'bos_token', which the files of its tokenizer do not name; "
        "that is for the operator of this server to mend"
    )
    assert template("llama2", {"bos_token": "<s>"}).render([ASK], {}).startswith("<s>[INST]")
