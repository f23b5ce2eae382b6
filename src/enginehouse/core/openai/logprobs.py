"""The two shapes in which `logprobs` are given out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enginehouse.core.output.answer import Likelihood


def chat_logprobs(tokens: Sequence[Likelihood]) -> dict[str, Any]:
    """Of a chat: all tokens of the message, those of its thinking and calls too."""
    return {"content": [_token(token) for token in tokens], "refusal": None}


def _token(token: Likelihood) -> dict[str, Any]:
    return {
        **_one(token.token, token.raw, token.logprob),
        "top_logprobs": [_one(*other) for other in token.top],
    }


def _one(token: str, raw: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(raw)}


def completion_logprobs(
    tokens: Sequence[Likelihood], before: int = 0, prompt: Sequence[Likelihood] = ()
) -> dict[str, Any]:
    """Of a text completion; before: characters of a prompt that stands before it, whose tokens may be given too."""
    everything = [*prompt, *tokens]
    return {
        "tokens": [_name(token.token, token.raw) for token in everything],
        "token_logprobs": [token.logprob for token in everything],
        "top_logprobs": [_top(token) for token in everything],
        "text_offset": [*(token.offset for token in prompt), *(before + token.offset for token in tokens)],
    }


def _top(token: Likelihood) -> dict[str, float] | None:
    """The token itself is always among them, with its own value. Of others that look the same the likeliest counts."""
    if token.logprob is None:
        return None
    found: dict[str, float] = {}
    for text, raw, logprob in token.top:
        found.setdefault(_name(text, raw), logprob)
    found[_name(token.token, token.raw)] = token.logprob
    return found


def _name(text: str, raw: bytes) -> str:
    """The token as a key: parts of characters, which all look the same as text, are told by their bytes."""
    if "\ufffd" not in text:
        return text
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join([chr(one) if 32 <= one < 127 and one != 92 else f"\\x{one:02x}" for one in raw])
