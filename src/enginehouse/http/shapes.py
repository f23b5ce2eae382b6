"""OpenAI's two completion APIs on the shared pipeline."""

from __future__ import annotations

from functools import partial

from enginehouse.core.openai.answers import chat_answer, completion_answer, error_body
from enginehouse.core.openai.chat_frames import ChatFrames
from enginehouse.core.openai.completion_frames import CompletionFrames
from enginehouse.core.openai.parse import parse_chat, parse_completion
from enginehouse.core.openai.requests import ChatRequest, CompletionRequest
from enginehouse.http.api import Api


def chat_api(reasoning_field: str = "reasoning_content", *, client_priority: bool = False) -> Api[ChatRequest]:
    """`/v1/chat/completions`.

    reasoning_field: where clients look for the model's thinking. client_priority: they may say how urgent they are.
    """
    return Api(
        "/v1/chat/completions",
        "chatcmpl-",
        partial(parse_chat, client_priority=client_priority),
        lambda identity, request: ChatFrames(
            identity,
            choices=request.n,
            include_usage=request.include_usage,
            reasoning_field=reasoning_field,
            calls=bool(request.tools),
        ),
        lambda identity, request, choices, usage: chat_answer(identity, choices, usage, reasoning_field),
        error_body,
    )


def completion_api(*, client_priority: bool = False) -> Api[CompletionRequest]:
    """`/v1/completions`; client_priority: as for a chat."""
    return Api(
        "/v1/completions",
        "cmpl-",
        partial(parse_completion, client_priority=client_priority),
        lambda identity, request: CompletionFrames(
            identity, choices=request.n * (1 + len(request.more_prompts)), include_usage=request.include_usage
        ),
        lambda identity, request, choices, usage: completion_answer(identity, choices, usage),
        error_body,
    )
