"""Models with more than one template, in all the places where their files keep them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from enginehouse.adapters.tokenizer import TokenizerError, load_tokenizer
from enginehouse.adapters.tokenizer.templates import find_templates
from tests.unit.adapters.tokenizer import models

HELLO = [{"role": "user", "content": "the dog"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
DOCUMENTS = [{"text": "x"}]
NAMED = {name: f"{name}: {{{{ messages[0].content }}}}" for name in ("default", "tool_use", "rag", "other")}


def listed(**named: str) -> dict[str, bytes]:
    templates = [{"name": name, "template": source} for name, source in named.items()]
    return {"tokenizer_config.json": json.dumps({"chat_template": templates}).encode()}


def apart(default: bool = True) -> dict[str, bytes]:
    files = {f"additional_chat_templates/{name}.jinja": NAMED[name].encode() for name in ("tool_use", "rag", "other")}
    return files | ({"chat_template.jinja": NAMED["default"].encode()} if default else {})


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "default"),
        ({"tools": []}, "default"),
        ({"tools": TOOLS}, "tool_use"),
        ({"documents": DOCUMENTS}, "rag"),
        ({"documents": DOCUMENTS, "tools": TOOLS}, "tool_use"),
    ],
)
@pytest.mark.parametrize(
    "files",
    [listed(**NAMED), apart(), {"tokenizer_config.json": json.dumps({"chat_template": NAMED}).encode()}],
)
def test_o12_a_conversation_gets_the_template_that_is_for_it(
    files: dict[str, bytes], options: Any, wanted: str
) -> None:
    templates = find_templates(files)
    assert templates is not None
    assert templates.render(HELLO, options) == f"{wanted}: the dog"
    assert all(source in templates.source for source in NAMED.values())


@pytest.mark.parametrize("options", [{}, {"tools": TOOLS}, {"documents": DOCUMENTS}])
def test_what_is_for_nothing_of_it_falls_back(options: Any) -> None:
    for files, wanted in (
        (listed(default=NAMED["default"]), "default"),
        (listed(other=NAMED["other"]), "other"),
        (listed(other=NAMED["other"], default=NAMED["default"]), "default"),
    ):
        templates = find_templates(files)
        assert templates is not None
        assert templates.render(HELLO, options) == f"{wanted}: the dog"


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("content", [listed(**NAMED), apart(), apart() | listed(default="old", tool_use="old")])
def test_o12_a_folder_is_read_as_the_reference_reads_it(tmp_path: Path, content: dict[str, bytes], tools: Any) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if "tokenizer_config.json" in content:
        config |= json.loads(content["tokenizer_config.json"])
    content = content | {"tokenizer_config.json": json.dumps(config).encode()}
    for name, data in (models.files(models.byte_level()) | content).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    reference = AutoTokenizer.from_pretrained(str(tmp_path))
    want = reference.apply_chat_template(HELLO, tools=tools, return_dict=False)
    ours = load_tokenizer(str(tmp_path))
    assert list(asyncio.run(ours.encode_chat(HELLO, {"tools": tools})).token_ids) == want


def test_a_template_of_the_operator_replaces_all_of_the_models(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("mine: {{ messages[0].content }}", encoding="utf-8")
    for content in (listed(**NAMED), apart(), {}):
        files = models.files(models.byte_level()) | content
        tokenizer = load_tokenizer(files=files, chat_template=path)
        for options in ({}, {"tools": TOOLS}, {"documents": DOCUMENTS}):
            ids = asyncio.run(tokenizer.encode_chat(HELLO, options)).token_ids
            assert tokenizer.decoder().push(ids) == "mine: the dog"
        assert tokenizer.chat_template == "mine: {{ messages[0].content }}"
        assert tokenizer.digest == load_tokenizer(files=files).digest


def test_a_template_of_the_operator_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    files = models.files(models.byte_level()) | apart()
    with pytest.raises(TokenizerError, match=r"missing\.jinja cannot be read"):
        load_tokenizer(files=files, chat_template=tmp_path / "missing.jinja")
    for content, words in ((b"{% if %}", "cannot be compiled"), (b"\xff", "not UTF-8")):
        (tmp_path / "broken.jinja").write_bytes(content)
        with pytest.raises(TokenizerError, match=words):
            load_tokenizer(files=files, chat_template=tmp_path / "broken.jinja")


def test_o12_special_tokens_with_names_of_their_own_reach_the_template() -> None:
    config = {"chat_template": "{{ image_token }}{{ bos_token }}", "bos_token": "<s>"}
    for extra in ({"image_token": "<img>"}, {"image_token": {"content": "<img>"}, "more": "x"}):
        files = {"tokenizer_config.json": json.dumps(config | {"extra_special_tokens": extra}).encode()}
        templates = find_templates(files)
        assert templates is not None
        assert templates.render(HELLO, {}) == "<img><s>"
