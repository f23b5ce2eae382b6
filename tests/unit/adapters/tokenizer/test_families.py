"""What models get of a conversation, against `transformers`: the same text and the same ids.

The templates in `templates/` are ours, written in the forms and with the constructs of the families that they are named
after.
"""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, processors
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from enginehouse.adapters.tokenizer import ModelTokenizer, TokenizerSettings, environment
from enginehouse.core.openai.parse import parse_chat
from enginehouse.domain.errors import InvalidRequest
from tests.unit.adapters.tokenizer import models

FOLDER = Path(__file__).parent / "templates"
BOS, EOS = "<s>", "</s>"
_MARKS = re.compile(r"<\|[\w ▁]*\|?>|<\w+\|>|<｜[\w▁]+｜>|\[/?[A-Z_]+\]|\[\|\w+\|\]|</?think>|<\w+_of_\w+>")
ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True)
class Family:
    """How one family reads messages: what a client's conversation has to be made for it."""

    parts: frozenset[str] = frozenset()
    """Roles whose content may be a list of parts; that of others has to be a string."""
    only_parts: bool = False
    developer: bool = False
    """It has a role of this name."""
    text_arguments: bool = False
    null_content: bool = False
    """Calls are seen only beside content that is null, which `transformers` takes out of messages by now."""
    needs_content: bool = False
    """It has no place for calls, and fails where they stand without content."""


FAMILIES: dict[str, Family] = {
    "chatml": Family(),
    "command_r": Family(),
    "deepseek_r1": Family(),
    "deepseek_v3": Family(text_arguments=True, null_content=True),
    "deepseek_v31": Family(text_arguments=True),
    "exaone": Family(),
    "gemma2": Family(),
    "gemma3": Family(parts=ROLES - {"tool"}),
    "gemma4": Family(parts=ROLES - {"tool"}, developer=True),
    "glm45": Family(parts=ROLES),
    "gpt_oss": Family(developer=True),
    "granite33": Family(),
    "hermes3": Family(),
    "idefics": Family(parts=ROLES, only_parts=True, needs_content=True),
    "kimi_k2": Family(parts=ROLES),
    "llama2": Family(),
    "llama31": Family(),
    "llama4": Family(parts=ROLES),
    "magistral": Family(parts=ROLES - {"tool"}),
    "minimax_m2": Family(parts=ROLES),
    "mistral_v3": Family(),
    "nemotron": Family(),
    "phi4": Family(needs_content=True),
    "phi4_mini": Family(),
    "qwen25": Family(),
    "qwen3": Family(),
    "qwen3_coder": Family(),
    "smollm3": Family(),
    "zephyr": Family(needs_content=True),
}

USER = {"role": "user", "content": " What's <b>the</b> weather & 天気 in {{ Zürich }}? 🚂\n"}
ANSWER = {"role": "assistant", "content": "Sunny, 23°C.\n\n"}
THANKS = {"role": "user", "content": "Thanks — and tomorrow?"}
PARTS = [{"type": "text", "text": "One.\n"}, {"type": "text", "text": "Two; "}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a <city>.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name, e.g. Köln"},
                    "days": {"type": "integer", "default": 1, "minimum": 1},
                    "units": {"type": "string", "enum": ["C", "F"]},
                    "where": {"type": ["string", "null"]},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "deep": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "Time.", "parameters": {"type": "object", "properties": {}}},
    },
]


def call(arguments: dict[str, Any], number: int = 1, name: str = "get_weather") -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def calls(*made: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(made)} | more


def result(text: str, number: int = 1) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": "get_weather", "content": text}


BERN, ROM = call({"city": "Bern"}), call({"city": "Rom", "days": 2}, 2)
ODD = call({"s": 'a"b\n<é>', "i": -3, "f": 0.5, "b": True, "n": None, "l": [1, "x", [True]], "o": {"k": {"z": ""}}})
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one question": {"messages": [USER]},
    "system": {"messages": [{"role": "system", "content": "Be brief.\n"}, USER]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    "several turns": {"messages": [USER, ANSWER, THANKS]},
    "no prompt for an answer": {"messages": [USER, ANSWER], "add_generation_prompt": False},
    "prefill": {"messages": [USER, {"role": "assistant", "content": "It is "}], "continue_final_message": True},
    "prefill without a space": {
        "messages": [USER, {"role": "assistant", "content": "It is"}],
        "continue_final_message": True,
    },
    "prefill of parts": {"messages": [USER, {"role": "assistant", "content": PARTS}], "continue_final_message": True},
    "prefill with thinking": {
        "messages": [USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nIt is"}],
        "continue_final_message": True,
    },
    "parts": {"messages": [{"role": "system", "content": PARTS[:1]}, {"role": "user", "content": PARTS}]},
    "parts of an answer": {"messages": [USER, {"role": "assistant", "content": PARTS}, THANKS]},
    "thinking in a field": {"messages": [USER, ANSWER | {"reasoning_content": "Hm.\n"}, THANKS]},
    "thinking last": {"messages": [USER, ANSWER | {"reasoning": "Hm."}], "add_generation_prompt": False},
    "thinking in the content": {
        "messages": [USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nSunny."}, THANKS]
    },
    "tools": {"messages": [{"role": "system", "content": "Be brief."}, USER], "tools": TOOLS},
    "tools without system": {"messages": [USER], "tools": TOOLS},
    "a call": {"messages": [USER, calls(BERN), result("23")], "tools": TOOLS},
    "a call and words": {
        "messages": [USER, calls(BERN, content="Let me see.", reasoning_content=None), result("23")],
        "tools": TOOLS,
    },
    "a call and an empty string": {"messages": [USER, calls(BERN, content=""), result("23")], "tools": TOOLS},
    "two calls": {"messages": [USER, calls(BERN, ROM), result("23"), result('{"t": "é"}', 2)], "tools": TOOLS},
    "after a call": {"messages": [USER, calls(BERN), result("23"), ANSWER, THANKS], "tools": TOOLS},
    "thought before a call": {
        "messages": [USER, calls(BERN, reasoning_content="I should look."), result("23")],
        "tools": TOOLS,
    },
    "odd values": {"messages": [USER, calls(ODD), result("23")], "tools": TOOLS},
    "parts of a result": {"messages": [USER, calls(BERN), result("") | {"content": PARTS}], "tools": TOOLS},
    "documents": {
        "messages": [USER],
        "documents": [{"title": "A", "text": "Über <a>"}, {"doc_id": 7, "title": "B", "text": "b"}],
    },
    "no thinking": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    "thinking": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
    "effort": {"messages": [USER], "reasoning_effort": "high"},
    "other switches": {
        "messages": [USER],
        "chat_template_kwargs": {
            "builtin_tools": ["code_interpreter", "search"],
            "date_string": "1 Jan 2025",
            "controls": {"length": "long"},
        },
    },
    "switched off in the system": {"messages": [{"role": "system", "content": "Short. /no_think"}, USER]},
    "roles out of turn": {"messages": [USER, USER]},
}


class _Frozen(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> "_Frozen":
        return cls(2026, 3, 4, 5, 6, 7)


@pytest.fixture(autouse=True)
def _one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "datetime", _Frozen)
    monkeypatch.setattr(chat_template_utils, "datetime", _Frozen)


@cache
def library(name: str) -> Tokenizer:
    """A tokenizer that has the template's marks as special tokens, and of its own accord begins texts with BOS."""
    tokenizer = Tokenizer.from_str(models.byte_level().to_str())
    marks = sorted(set(_MARKS.findall((FOLDER / f"{name}.jinja").read_text())))
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in (BOS, EOS, *marks)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


@cache
def ours(name: str) -> ModelTokenizer:
    config = {"bos_token": BOS, "eos_token": {"content": EOS}}
    files = models.files(library(name), tokenizer_config=config)
    return ModelTokenizer(files | {"chat_template.jinja": (FOLDER / f"{name}.jinja").read_bytes()}, TokenizerSettings())


@cache
def theirs(name: str) -> Any:
    source = (FOLDER / f"{name}.jinja").read_text()
    return PreTrainedTokenizerFast(
        tokenizer_object=library(name),
        bos_token=BOS,
        eos_token=EOS,
        chat_template=source,
        clean_up_tokenization_spaces=False,
    )


def as_read(message: dict[str, Any], family: Family) -> dict[str, Any]:
    """A message as a caller of `transformers` would have to write it for this family."""
    message = {key: value for key, value in message.items() if value is not None}
    if message["role"] == "developer" and not family.developer:
        message["role"] = "system"
    if family.needs_content and "tool_calls" in message:
        message.setdefault("content", "")
    content = message.get("content")
    role = "system" if message["role"] == "developer" else message["role"]
    if isinstance(content, list) and role not in family.parts:
        message["content"] = "\n".join([part["text"] for part in content])
    elif isinstance(content, str) and family.only_parts:
        message["content"] = [{"type": "text", "text": content}]
    if "tool_calls" in message:
        for made in message["tool_calls"]:
            if not family.text_arguments:
                made["function"]["arguments"] = json.loads(made["function"]["arguments"])
        if family.null_content and not message.get("content"):
            message["content"] = None
    return message


def expected(name: str, conversation: dict[str, Any]) -> tuple[str, list[int]]:
    family, tokenizer = FAMILIES[name], theirs(name)
    asked = json.loads(json.dumps(conversation))
    messages = [as_read(message, family) for message in asked["messages"]]
    options = {
        "tools": asked.get("tools"),
        "documents": asked.get("documents"),
        "continue_final_message": asked.get("continue_final_message", False),
        "add_generation_prompt": asked.get("add_generation_prompt", not asked.get("continue_final_message")),
        **asked.get("chat_template_kwargs", {}),
    }
    if "reasoning_effort" in asked:
        options["reasoning_effort"] = asked["reasoning_effort"]
    if family.null_content:
        (text,), _ = chat_template_utils.render_jinja_template(
            [messages], chat_template=tokenizer.chat_template, **tokenizer.special_tokens_map, **options
        )
        return text, tokenizer(text, add_special_tokens=False)["input_ids"]
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return text, tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options)


def rendered(name: str, conversation: dict[str, Any]) -> tuple[str, list[int]]:
    """From the body that a client sends."""
    request = parse_chat(json.dumps({"model": "m"} | conversation).encode())
    encoded = asyncio.run(ours(name).encode_chat(request.messages, request.template_options))
    text = ours(name).decoder(skip_special_tokens=False)
    whole = text.push(encoded.token_ids) + text.flush()
    assert whole.endswith(encoded.tail)
    return whole, list(encoded.token_ids)


def outcome(make: Callable[[], tuple[str, list[int]]]) -> tuple[str, list[int]] | None:
    try:
        return make()
    except Exception:
        return None


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_o12_prompts_are_those_of_the_reference(name: str, conversation: str) -> None:
    asked = CONVERSATIONS[conversation]
    want = outcome(lambda: expected(name, asked))
    if want is None:
        with pytest.raises(InvalidRequest) as caught:
            rendered(name, asked)
        assert caught.value.param in ("messages", "continue_final_message")
        return
    text, ids = rendered(name, asked)
    assert text == want[0]
    assert ids == want[1]
    assert ids.count(library(name).token_to_id(BOS)) == text.count(BOS)


def test_o12_the_folder_and_the_table_are_of_the_same_families() -> None:
    assert {path.stem for path in FOLDER.glob("*.jinja")} == set(FAMILIES)
    assert len(FAMILIES) >= 20
