"""Request bodies to requests. What is not understood is refused by name, never ignored.

One way for every body: how much it holds, its keys, the parameters that are not ours, then values, their types and
limits. A key that stands twice counts as it stands last, as in every common JSON reader.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from enginehouse.core.openai.bias import read_bias
from enginehouse.core.openai.bounds import (
    LARGE,
    MAX_ANSWERS,
    MAX_FIELD_BYTES,
    MAX_KEYS,
    MAX_VALUES,
    few_strings,
    plainly_few,
    values_in,
)
from enginehouse.core.openai.constraints import CONSTRAINTS, read_constraint
from enginehouse.core.openai.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    IGNORED,
    ChatFields,
    CompletionFields,
    Fields,
)
from enginehouse.core.openai.forms import constraint_of
from enginehouse.core.openai.messages import read_messages
from enginehouse.core.openai.nulls import without_nulls
from enginehouse.core.openai.prompts import read_many_ids, read_prompts
from enginehouse.core.openai.refusals import kind, not_json, settle, too_much, wrong_field
from enginehouse.core.openai.requests import ChatRequest, CompletionRequest
from enginehouse.core.openai.template_options import template_options
from enginehouse.core.openai.tools import Offer, read_tools
from enginehouse.domain.constraint import Constraint
from enginehouse.domain.errors import InvalidRequest
from enginehouse.domain.request import Sampling

_F = TypeVar("_F", bound=Fields)
_top = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_EITHER = CHAT_FIELDS | COMPLETION_FIELDS
_CHAT, _COMPLETION = CHAT_FIELDS - {"priority"}, COMPLETION_FIELDS - {"priority"}
"""What is taken of a client that may not say how urgent its request is."""


def parse_chat(body: bytes, *, client_priority: bool = False) -> ChatRequest:
    """Read a body of `/v1/chat/completions`. Raises InvalidRequest.

    client_priority: a client may say how urgent its request is.
    """
    fields = _read(body, ChatFields, CHAT_FIELDS if client_priority else _CHAT)
    limit, limit_param = fields.max_tokens, "max_tokens"
    if fields.max_completion_tokens is not None:
        if limit is not None and limit != fields.max_completion_tokens:
            raise InvalidRequest(
                f"'max_tokens' is {limit} and 'max_completion_tokens' is {fields.max_completion_tokens}; give one only",
                param="max_completion_tokens",
            )
        limit, limit_param = fields.max_completion_tokens, "max_completion_tokens"
    if fields.top_logprobs and not fields.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true", param="top_logprobs")
    parallel = fields.parallel_tool_calls is not False
    offer = read_tools(fields.tools, fields.tool_choice)
    constraint, source = _constraint_of_chat(fields, offer, parallel)
    messages = read_messages(fields.messages)
    return ChatRequest(
        **_common(fields, limit, (fields.top_logprobs or 0) if fields.logprobs else None, constraint, source),
        max_tokens_param=limit_param,
        messages=messages,
        template_options=template_options(fields, messages, offer),
        tools=offer.tools,
        tool_choice=offer.choice,
        parallel_tool_calls=parallel,
        separate_reasoning=fields.separate_reasoning is not False,
    )


def parse_completion(body: bytes, *, client_priority: bool = False) -> CompletionRequest:
    """Read a body of `/v1/completions`. Raises InvalidRequest. client_priority: as for parse_chat."""
    fields = _read(body, CompletionFields, COMPLETION_FIELDS if client_priority else _COMPLETION)
    if fields.logprobs is True:  # what a chat means by it
        raise InvalidRequest(
            "'logprobs' is true; in a completion it must be a whole number from 0 to 20", param="logprobs"
        )
    logprobs = None if fields.logprobs is False else fields.logprobs
    first, *others = read_prompts(fields.prompt)
    answers = (fields.n or 1) * (1 + len(others))
    if answers > MAX_ANSWERS:
        raise too_much("prompt", f"and 'n' ask for {answers} answers; at most {MAX_ANSWERS} are given at once")
    echo = fields.echo is True
    constraint, source = read_constraint(_asked(fields))
    return CompletionRequest(
        **_common(fields, fields.max_tokens, logprobs, constraint, source, logprobs if echo else None),
        prompt=first,
        more_prompts=tuple(others),
        add_special_tokens=fields.add_special_tokens is not False,
        echo=echo,
    )


def parse_either(body: bytes, *, client_priority: bool = False) -> ChatRequest | CompletionRequest:
    """Read a body of either path: with a `prompt` and no `messages` it is a completion. Raises InvalidRequest."""
    parse = parse_completion if _has_prompt_only(body) else parse_chat
    return parse(body, client_priority=client_priority)


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
        settle(raw, known, _EITHER)
        decoded = {name: _value(name, value, bounded) for name, value in raw.items()}
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise not_json(error) from None
    try:
        try:
            return msgspec.convert(decoded, shape)
        except msgspec.ValidationError:
            return msgspec.convert(without_nulls(decoded, shape), shape)
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
    if name not in LARGE:
        if size > MAX_FIELD_BYTES:
            raise too_much(name, f"has {size} bytes; at most {MAX_FIELD_BYTES} are taken")
    elif not bounded:
        data = bytes(raw)
        if name == "prompt" and data.startswith(b"[") and b'"' not in data:
            return read_many_ids(data)
        if values_in(data) > MAX_VALUES:
            raise too_much(name, f"has more than {MAX_VALUES} values, which is the limit")
    return msgspec.json.decode(raw)


def _asked(fields: Fields) -> dict[str, Any]:
    return {name: value for name in CONSTRAINTS if (value := getattr(fields, name)) is not None}


def _constraint_of_chat(fields: ChatFields, offer: Offer, parallel: bool) -> tuple[Constraint | None, str]:
    form, source = read_constraint(_asked(fields))
    constraint, param = constraint_of(form, source, offer, parallel)
    if form is not None and param == "tool_choice" and source != "response_format":
        raise InvalidRequest(f"'{source}' and 'tool_choice' both say what the answer must be; give one", param=source)
    return constraint, param


def _common(
    fields: Fields,
    limit: int | None,
    logprobs: int | None,
    constraint: Constraint | None,
    constraint_param: str,
    prompt_logprobs: int | None = None,
) -> dict[str, Any]:
    options = fields.stream_options
    min_tokens = fields.min_tokens or 0
    if limit is not None and min_tokens > limit:
        raise InvalidRequest(f"'min_tokens' is {min_tokens}, above the {limit} tokens allowed", param="min_tokens")
    answers = fields.n or 1
    if fields.best_of not in (None, answers):
        raise InvalidRequest(
            f"'best_of' is {fields.best_of} and 'n' is {answers}; they must be equal, for every answer is given",
            param="best_of",
            code="unsupported_value",
        )
    stop = fields.stop
    return {
        "model": fields.model,
        "stream": fields.stream is True,
        "include_usage": options is not None and options.include_usage is True,
        "max_tokens": limit,
        "n": answers,
        "stop": () if stop is None else (stop,) if isinstance(stop, str) else tuple(dict.fromkeys(stop)),
        "keep_stop": fields.include_stop_str_in_output is True or fields.no_stop_trim is True,
        "skip_special_tokens": fields.skip_special_tokens is not False,
        "return_token_ids": fields.return_token_ids is True,
        "user": fields.user,
        "prompt_cache_key": fields.prompt_cache_key,
        "constraint_param": constraint_param,
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
            logit_bias=read_bias(fields.logit_bias),
            constraint=constraint,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            priority=fields.priority or 0,
        ),
    }
