"""A message of the assistant, and the envelope of errors, as Anthropic's API has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from enginehouse.core.anthropic.request import MessageRequest
from enginehouse.core.api.sealed import sealed
from enginehouse.core.output.answer import Choice, End, Identity, Usage
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall, joined
from enginehouse.domain.errors import ContextLengthExceeded, EnginehouseError
from enginehouse.domain.stream import Finish
from enginehouse.wire.sse import to_json

SIGNATURE: Final = "unsigned"
"""Of thinking. Clients leave thinking out of the history that has none; ours is not looked at when it comes back."""

_NO_THREADS: Final = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""Clients that try a thread first look for this, and then send the whole conversation with each request."""

_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def message(
    identity: Identity, content: Sequence[dict[str, Any]], end: End | None, usage: dict[str, Any]
) -> dict[str, Any]:
    """The message object; end: None while it goes on."""
    return {
        "id": identity.answer_id,
        "type": "message",
        "role": "assistant",
        "model": identity.model,
        "content": content,
        "stop_reason": None if end is None else stop_reason(end),
        "stop_sequence": None if end is None else stop_sequence(end),
        "usage": usage,
    }


def stop_reason(end: End) -> str:
    """Why the message ended."""
    if end.finish is Finish.LENGTH:
        return "max_tokens"
    if end.called:
        return "tool_use"
    return "end_turn" if end.stop is None else "stop_sequence"


def stop_sequence(end: End) -> str | None:
    """Which one ended it, where one did."""
    return end.stop if stop_reason(end) == "stop_sequence" else None


def block(piece: Piece, *, omits_thinking: bool = False) -> dict[str, Any]:
    """A piece of the answer as a content block."""
    match piece:
        case Content(text):
            return {"type": "text", "text": text}
        case Reasoning(text):
            shown = "" if omits_thinking else text
            return {"type": "thinking", "thinking": shown, "signature": signature(text, omits_thinking)}
        case ToolCall(name, arguments, call_id):
            return {"type": "tool_use", "id": call_id, "name": name, "input": msgspec.Raw(arguments.encode())}


def signature(text: str, omitted: bool) -> str:
    """Of a block of thinking; omitted: its text is not in the block, so that the next request would not have it."""
    return sealed(text) if omitted else SIGNATURE


def usage_of(usage: Usage) -> dict[str, Any]:
    """The `usage` object. Unlike elsewhere, the prompt's tokens that came from a cache are not input tokens too."""
    cached = usage.cached_tokens or 0
    return {
        **started(usage.prompt_tokens - cached),
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens or 0},
    }


def started(input_tokens: int) -> dict[str, Any]:
    """What is known of the usage before an engine has said anything."""
    return {
        "input_tokens": input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }


def message_answer(identity: Identity, request: MessageRequest, choices: Sequence[Choice], usage: Usage) -> bytes:
    """Body of a whole answer. An answer without anything in it has no block, as with Anthropic."""
    choice = choices[0]
    blocks = [block(piece, omits_thinking=request.omits_thinking) for piece in joined(choice.pieces)]
    return to_json(message(identity, blocks, choice.end, usage_of(usage)))


def error_answer(error: EnginehouseError) -> bytes:
    """The envelope, whole or as the data of an `error` event.

    Agents look for the words that Anthropic's API has for what does not fit, and for the numbers in them: they shorten
    the conversation then, or ask for fewer tokens.
    """
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    words = _does_not_fit(error) if isinstance(error, ContextLengthExceeded) else ""
    told: dict[str, Any] = {"type": kind, "message": f"{words}{error.message}"}
    if error.param == "thread":
        told["details"] = _NO_THREADS
    return to_json({"type": "error", "error": told})


def _does_not_fit(error: ContextLengthExceeded) -> str:
    if error.param == "max_tokens" and error.asked:
        sizes = " + ".join(map(str, error.asked))
        return f"input length and `max_tokens` exceed context limit: {sizes} > {error.limit}: "
    if error.param != "messages":
        return ""
    return (
        f"prompt is too long: {error.asked[0]} tokens > {error.limit} maximum: "
        if error.asked
        else "prompt is too long: "
    )
