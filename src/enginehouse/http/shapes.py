"""OpenAI's two completion APIs on the shared pipeline."""

from __future__ import annotations

from enginehouse.core.openai.answers import chat_answer, completion_answer, error_body
from enginehouse.core.openai.chat_frames import ChatFrames
from enginehouse.core.openai.completion_frames import CompletionFrames
from enginehouse.core.openai.parse import parse_chat, parse_completion
from enginehouse.core.openai.requests import ChatRequest, CompletionRequest
from enginehouse.http.api import Api


def chat_api(reasoning_field: str = "reasoning_content") -> Api[ChatRequest]:
    """`/v1/chat/completions`; reasoning_field: where clients look for the model's thinking."""
    return Api(
        "/v1/chat/completions",
        "chatcmpl-",
        parse_chat,
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


COMPLETION: Api[CompletionRequest] = Api(
    "/v1/completions",
    "cmpl-",
    parse_completion,
    lambda identity, request: CompletionFrames(
        identity, choices=request.n * (1 + len(request.more_prompts)), include_usage=request.include_usage
    ),
    lambda identity, request, choices, usage: completion_answer(identity, choices, usage),
    error_body,
)
