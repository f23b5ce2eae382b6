"""What of a body is refused, and in which words; and which settings of features we lack ask for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from enginehouse.core.openai.fields import RIGHT
from enginehouse.domain.errors import InvalidRequest

_NO: Final = (False,)
_EITHER: Final = (True, False)
_EMPTY_LIST: Final[tuple[Any, ...]] = ([],)

UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "suffix": ("",),
    "prompt_logprobs": _NO,
    "functions": _EMPTY_LIST,
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
    "store": _NO,
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    "chat_template": (),
    "spaces_between_special_tokens": _EITHER,  # an old decoder's option, without effect on today's tokenizers
    "truncate_prompt_tokens": (),
    "return_tokens_as_token_ids": _NO,
    "return_hidden_states": _NO,
    "use_beam_search": _NO,
    "length_penalty": (1, 1.0),
    "allowed_token_ids": (),
    "bad_words": _EMPTY_LIST,
    "logits_processors": _EMPTY_LIST,
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "stream_reasoning": _EITHER,
    "enable_thinking": (),
    "thinking": (),
    "reasoning": (),
    "lora_path": (),
    "mm_processor_kwargs": (),
}
"""Parameters that we know and do not serve, each with the values that ask for nothing and so are taken."""

_INSTEAD: Final[Mapping[str, str]] = {
    "functions": "give 'tools'",
    "function_call": "give 'tool_choice'",
    "prompt_logprobs": "give 'echo' with 'logprobs' to /v1/completions",
    "chat_template": "the template comes with the model",
    "include_reasoning": "thinking comes in a field of its own, which can be left unread",
    **dict.fromkeys(
        ("enable_thinking", "thinking", "reasoning"),
        "give 'reasoning_effort', or in 'chat_template_kwargs' what the model's template knows",
    ),
    "truncate_prompt_tokens": "send what fits the context",
}
"""What to do about some of them."""

STEERING: Final = frozenset(
    {
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "cache_salt",
        "custom_params",
        "data_parallel_rank",
        "data_parallel_rank_decode",
        "disagg_prefill_dp_rank",
        "dp_rank",
        "ec_transfer_params",
        "extra_key",
        "kv_transfer_params",
        "nvext",
        "priority",
        "request_id",
        "rid",
        "routed_dp_rank",
        "routing_key",
        "session_params",
        "vllm_xargs",
        "worker_id",
    }
)
"""Parameters by which other servers let a client choose an engine, a rank, a room, an id or a place in the queue."""


_LONGEST_HARMLESS: Final = 10_000
"""Bytes of a value that is compared with the harmless ones; they are short, but may be written with many spaces."""


def settle(body: dict[str, msgspec.Raw], known: frozenset[str], elsewhere: frozenset[str] = frozenset()) -> None:
    """Take out of `body` what asks for nothing; raise InvalidRequest, naming it, for what we do not serve.

    elsewhere: parameters that another path takes.
    """
    for name in sorted(body.keys() - known):
        if len(memoryview(body[name])) > _LONGEST_HARMLESS:
            raise _refused(name, elsewhere)
        value = msgspec.json.decode(body[name])
        if value is not None and not any(
            value == harmless and type(value) is type(harmless) for harmless in UNSUPPORTED.get(name, ())
        ):
            raise _refused(name, elsewhere)
        del body[name]


def printable(text: str, length: int = 64) -> str:
    """What a client sent, as it may stand in an answer or a log: short, and with nothing that moves a cursor."""
    shown = text if len(text) <= length else text[: length - 3] + "..."
    if shown.isprintable():
        return shown
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown])


def _refused(name: str, elsewhere: frozenset[str]) -> InvalidRequest:
    shown = printable(name)
    if name in STEERING:
        text = f"'{shown}' is refused: where, when and under which id a request runs is not for the client to say"
        return InvalidRequest(text, param=shown, code="unsupported_parameter")
    if name in UNSUPPORTED:
        harmless = UNSUPPORTED[name]
        allowed = ", ".join(msgspec.json.encode(value).decode() for value in harmless)
        text = f"'{shown}' is not supported; leave it out" + (f" or give {allowed}" if harmless else "")
        text += f": {_INSTEAD[name]}" if name in _INSTEAD else ""
        return InvalidRequest(text, param=shown, code="unsupported_parameter")
    where = "a parameter of this path" if name in elsewhere else "a known parameter"
    return InvalidRequest(f"'{shown}' is not {where}", param=shown, code="unknown_parameter")


def not_json(error: Exception) -> InvalidRequest:
    """The body cannot be read at all."""
    detail = str(error)
    if isinstance(error, RecursionError):
        reason = "it is nested too deeply"
    elif "out of range" in detail:
        reason = "it has a number that is out of range"
    elif detail.startswith("JSON is malformed: "):
        reason = detail.removeprefix("JSON is malformed: ")
    elif "UTF-8" in detail:
        reason = "it is not UTF-8"
    else:  # the decoder says the same for a cut body and for half a surrogate pair
        reason = "it ends too early, or has half a surrogate pair"
    return InvalidRequest(f"the body is not valid JSON: {reason}", code="invalid_json")


def wrong_field(error: msgspec.ValidationError, body: Mapping[str, Any]) -> InvalidRequest:
    """A field is missing, of the wrong type or out of range: say which, what it is, and what would be right."""
    text = str(error)
    what, _, tail = text.partition(" - at `$.")
    path = tail.rstrip("`")
    if what.startswith("Object missing required field"):
        name = what.split("`")[1]
        return InvalidRequest(f"'{name}' is missing; it must be {RIGHT[name]}", param=name)
    top = path.split(".")[0].split("[")[0]
    if what.startswith("Object contains unknown field"):
        name = f"{path}.{printable(what.split('`')[1])}"
        return InvalidRequest(f"'{name}' is not a known parameter", param=name, code="unknown_parameter")
    right, top = (RIGHT[path], path) if path in RIGHT else (RIGHT[top], top)
    subject = "it" if path == top else f"'{top}'"
    value = _at(body, path)
    got = f"'{printable(value)}'" if what.startswith("Invalid ") and isinstance(value, str) else shown(value)
    return InvalidRequest(f"'{path}' is {got}; {subject} must be {right}", param=top)


def wrong_value(name: str, value: object) -> InvalidRequest:
    """A field that is as a whole not what it must be."""
    return InvalidRequest(f"'{name}' is {shown(value)}; it must be {RIGHT[name]}", param=name)


def too_much(name: str, problem: str) -> InvalidRequest:
    """A field that holds more than is taken of anyone."""
    return InvalidRequest(f"'{name}' {problem}", param=name, code="too_large")


def kind(value: object) -> str:
    """The JSON type of a value, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
    return "an object"


def shown(value: object) -> str:
    """A value as it may stand in an error text: numbers as they are, text never (it may be somebody's prompt)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() <= 64:
        return str(value)
    if isinstance(value, int):
        return "a number of more than 64 bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return "an empty string" if not value else f"a string of {len(value)} characters"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return kind(value)


def _at(body: Any, path: str) -> Any:
    for step in path.replace("[", ".[").split("."):
        body = body[int(step[1:-1])] if step.startswith("[") else body[step]
    return body
