"""`/tokenize` and `/detokenize`: what a model makes of a text or a conversation, and the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from enginehouse.core.api.body import Body
from enginehouse.core.openai.fields import ChatFields, TokenId
from enginehouse.core.openai.messages import read_messages
from enginehouse.core.openai.template_options import template_options
from enginehouse.core.openai.tools import read_tools
from enginehouse.domain.errors import InvalidRequest

_Model = Annotated[str, Meta(min_length=1)]


class TokenizeFields(Struct, kw_only=True, frozen=True):
    """`POST /tokenize`: either a prompt, or messages with what a chat template takes besides."""

    model: _Model | None = None
    prompt: str | None = None
    messages: list[Any] | None = None  # read_messages checks it
    tools: list[Any] | None = None  # read_tools checks it
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeFields(Struct, kw_only=True, frozen=True):
    """`POST /detokenize`."""

    tokens: list[TokenId]
    model: _Model | None = None


TOKENIZE: Final = Body(TokenizeFields, large=frozenset({"prompt", "messages", "tools"}))
DETOKENIZE: Final = Body(DetokenizeFields, large=frozenset({"tokens"}))


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt as it is."""

    text: str
    add_special_tokens: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, for the chat template."""

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A body of `/tokenize`."""

    model: str | None
    """None: the one that is served."""
    of: Text | Conversation
    with_texts: bool


def parse_tokenize(body: bytes) -> TokenizeRequest:
    """Raises InvalidRequest."""
    fields = TOKENIZE.read(body)
    if (fields.prompt is None) is (fields.messages is None):
        raise InvalidRequest("give either 'prompt' or 'messages'", param="prompt")
    of = _conversation(fields) if fields.prompt is None else _text(fields, fields.prompt)
    return TokenizeRequest(fields.model, of, fields.return_token_strs is True)


def _text(fields: TokenizeFields, prompt: str) -> Text:
    for name in ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
        if getattr(fields, name) is not None:
            raise InvalidRequest(f"'{name}' is for 'messages'; leave it out with 'prompt'", param=name)
    return Text(prompt, fields.add_special_tokens is not False)


def _conversation(fields: TokenizeFields) -> Conversation:
    if fields.add_special_tokens:
        raise InvalidRequest(
            "'add_special_tokens' is true, and a chat template writes special tokens itself; leave it out",
            param="add_special_tokens",
        )
    messages = read_messages(fields.messages)
    chat = ChatFields(
        model="-",
        messages=messages,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        chat_template_kwargs=fields.chat_template_kwargs,
    )
    return Conversation(messages, template_options(chat, messages, read_tools(fields.tools, None)))


def tokenize_answer(token_ids: Sequence[int], context_length: int | None, texts: Sequence[str] | None) -> bytes:
    """The body. texts: of each token, where they were asked for."""
    return msgspec.json.encode(
        {
            "count": len(token_ids),
            "max_model_len": context_length,
            "tokens": list(token_ids),
            "token_strs": texts,
        }
    )


def parse_detokenize(body: bytes) -> DetokenizeFields:
    """Raises InvalidRequest."""
    return DETOKENIZE.read(body)


def check_tokens(token_ids: Sequence[int], vocab_size: int) -> None:
    """Whether a model has these. Raises InvalidRequest."""
    for at, token in enumerate(token_ids):
        if token >= vocab_size:
            raise InvalidRequest(
                f"'tokens[{at}]' is {token}; this model's token ids end at {vocab_size - 1}", param=f"tokens[{at}]"
            )


def detokenize_answer(text: str) -> bytes:
    """The body."""
    return msgspec.json.encode({"prompt": text})
