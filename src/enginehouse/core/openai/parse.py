"""Request bodies to requests. What is not understood is refused by name, never ignored.

One way for every body: how much it holds, its keys, the parameters that are not ours, then values, their types and
limits. A key that stands twice counts as it stands last, as in every common JSON reader.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from enginehouse.core.openai.bounds import MAX_FIELD_BYTES, MAX_KEYS, MAX_VALUES, few_strings, plainly_few, values_in
from enginehouse.core.openai.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    IGNORED,
    ChatFields,
    CompletionFields,
    Fields,
)
from enginehouse.core.openai.messages import read_messages
from enginehouse.core.openai.prompts import read_many_ids, read_prompt
from enginehouse.core.openai.refusals import kind, not_json, settle, too_much, wrong_field
from enginehouse.core.openai.requests import ChatRequest, CompletionRequest
from enginehouse.domain.errors import InvalidRequest
from enginehouse.domain.request import Sampling

_F = TypeVar("_F", bound=Fields)
_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_OURS_IN_TEMPLATES = ("messages", "tools", "documents", "add_generation_prompt", "chat_template")


def parse_chat(body: bytes) -> ChatRequest:
    """Read a body of `/v1/chat/completions`. Raises InvalidRequest."""
    fields = _read(body, ChatFields, CHAT_FIELDS)
    limit, limit_param = fields.max_tokens, "max_tokens"
    if fields.max_completion_tokens is not None:
        if limit is not None and limit != fields.max_completion_tokens:
            raise InvalidRequest(
                f"'max_tokens' is {limit} and 'max_completion_tokens' is {fields.max_completion_tokens}; give one only",
                param="max_completion_tokens",
            )
        limit, limit_param = fields.max_completion_tokens, "max_completion_tokens"
    options: dict[str, Any] = {"add_generation_prompt": fields.add_generation_prompt is not False}
    if fields.chat_template_kwargs:
        for name in _OURS_IN_TEMPLATES:
            if name in fields.chat_template_kwargs:
                where = f"chat_template_kwargs.{name}"
                raise InvalidRequest(f"'{where}' is refused: it is not an option of a template", param=where)
        options["chat_template_kwargs"] = fields.chat_template_kwargs
    return ChatRequest(
        **_common(fields, limit),
        max_tokens_param=limit_param,
        messages=read_messages(fields.messages),
        template_options=options,
    )


def parse_completion(body: bytes) -> CompletionRequest:
    """Read a body of `/v1/completions`. Raises InvalidRequest."""
    fields = _read(body, CompletionFields, COMPLETION_FIELDS)
    return CompletionRequest(
        **_common(fields, fields.max_tokens),
        prompt=read_prompt(fields.prompt),
        add_special_tokens=fields.add_special_tokens is not False,
    )


def parse_either(body: bytes) -> ChatRequest | CompletionRequest:
    """Read a body of either path: with a `prompt` and no `messages` it is a completion. Raises InvalidRequest."""
    return parse_completion(body) if _has_prompt_only(body) else parse_chat(body)


def _has_prompt_only(body: bytes) -> bool:
    if not plainly_few(body) and not few_strings(body):
        return False
    try:
        raw = _top(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return "prompt" in raw and "messages" not in raw


def _read(body: bytes, shape: type[_F], known: frozenset[str]) -> _F:
    if not body.strip():
        raise InvalidRequest("the body is empty; it must be a JSON object", code="invalid_json")
    try:
        bounded = plainly_few(body)
        if not bounded and not few_strings(body):
            raise InvalidRequest(f"the body has more than {MAX_VALUES} texts and keys, which is the limit")
        raw = _object(body)
        if len(raw) > MAX_KEYS:
            raise InvalidRequest(f"the body has {len(raw)} keys; at most {MAX_KEYS} are taken")
        settle(raw, known)
        decoded = {name: _value(name, value, bounded) for name, value in raw.items()}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise not_json(error) from None
    try:
        return msgspec.convert(decoded, shape)
    except msgspec.ValidationError as error:
        raise wrong_field(error, decoded) from None
    except RecursionError as error:
        raise not_json(error) from None


def _object(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _top(body)
    except msgspec.ValidationError:  # JSON, as far as it was read, but no object
        what = kind(msgspec.json.decode(body) if plainly_few(body) else [])
        raise InvalidRequest(f"the body is {what}; it must be a JSON object", code="invalid_json") from None


def _value(name: str, raw: msgspec.Raw, bounded: bool) -> Any:
    """A field's value; what is ignored is not built, nor what is far beyond anything that is taken."""
    size = len(memoryview(raw))
    if name in IGNORED and bytes(memoryview(raw)[:1]) == msgspec.json.encode(IGNORED[name])[:1]:
        return IGNORED[name]
    if name not in ("messages", "prompt"):
        if size > MAX_FIELD_BYTES:
            raise too_much(name, f"has {size} bytes; at most {MAX_FIELD_BYTES} are taken")
    elif not bounded:
        data = bytes(raw)
        if name == "prompt" and data.startswith(b"[") and b'"' not in data:
            return read_many_ids(data)
        if values_in(data) > MAX_VALUES:
            raise too_much(name, f"has more than {MAX_VALUES} values, which is the limit")
    return msgspec.json.decode(raw)


def _common(fields: Fields, limit: int | None) -> dict[str, Any]:
    options = fields.stream_options
    min_tokens = fields.min_tokens or 0
    if limit is not None and min_tokens > limit:
        raise InvalidRequest(f"'min_tokens' is {min_tokens}, above the {limit} tokens allowed", param="min_tokens")
    stop = fields.stop
    return {
        "model": fields.model,
        "stream": fields.stream is True,
        "include_usage": options is not None and options.include_usage is True,
        "max_tokens": limit,
        "stop": () if stop is None else (stop,) if isinstance(stop, str) else tuple(dict.fromkeys(stop)),
        "skip_special_tokens": fields.skip_special_tokens is not False,
        "user": fields.user,
        "prompt_cache_key": fields.prompt_cache_key,
        "sampling": Sampling(
            temperature=fields.temperature,
            top_p=fields.top_p,
            top_k=-1 if fields.top_k == 0 else fields.top_k,
            min_p=fields.min_p,
            frequency_penalty=fields.frequency_penalty,
            presence_penalty=fields.presence_penalty,
            repetition_penalty=fields.repetition_penalty,
            seed=fields.seed,
            stop_token_ids=tuple(fields.stop_token_ids or ()),
            ignore_eos=fields.ignore_eos is True,
            min_tokens=min_tokens,
        ),
    }
