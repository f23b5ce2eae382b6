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
        "tokens": [token.token for token in everything],
        "token_logprobs": [token.logprob for token in everything],
        "top_logprobs": [_top(token) for token in everything],
        "text_offset": [*(token.offset for token in prompt), *(before + token.offset for token in tokens)],
    }


def _top(token: Likelihood) -> dict[str, float] | None:
    """The token itself is always among them. Of tokens that look the same the likeliest counts."""
    if token.logprob is None:
        return None
    found: dict[str, float] = {}
    for name, _, logprob in token.top:
        found.setdefault(name, logprob)
    found.setdefault(token.token, token.logprob)
    return found
