"""Every path that the frontend answers on, with what it takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from msgspec import Struct

from enginehouse.core.anthropic.fields import CountFields, MessageFields
from enginehouse.core.openai.embeddings import EmbeddingFields
from enginehouse.core.openai.fields import ChatFields, CompletionFields
from enginehouse.core.openai.tokenize import DetokenizeFields, TokenizeFields
from enginehouse.core.openapi import answers, other_answers
from enginehouse.core.responses.fields import ResponseFields

_Form = Literal["openai", "anthropic"]


@dataclass(frozen=True)
class Path:
    """One of them."""

    path: str
    summary: str
    answer: type[Struct] | dict[str, Any] | None
    """Of status 200: JSON of this, or of a schema; None: plain text."""
    body: tuple[type[Struct], ...] = ()
    """What a POST takes, one of these; none: it is a GET."""
    streams: bool = False
    """With `stream` the answer is a stream of events."""
    form: _Form = "openai"
    """Of errors."""
    not_ready: bool = False
    """503 has the same body as 200."""
    found: bool = False
    """A GET that may find nothing."""


PATHS: Final = (
    Path("/v1/chat/completions", "Answer a conversation.", answers.ChatCompletion, (ChatFields,), streams=True),
    Path("/v1/completions", "Go on with a text.", answers.Completion, (CompletionFields,), streams=True),
    Path("/v1/responses", "Answer a conversation of items.", other_answers.Response, (ResponseFields,), streams=True),
    Path(
        "/v1/messages",
        "Answer a conversation, by Anthropic's API.",
        other_answers.MessageAnswer,
        (MessageFields,),
        streams=True,
        form="anthropic",
    ),
    Path(
        "/v1/messages/count_tokens",
        "How many tokens the prompt of a message would have.",
        other_answers.TokenCount,
        (CountFields,),
        form="anthropic",
    ),
    Path("/v1/embeddings", "Vectors of texts.", answers.Embeddings, (EmbeddingFields,)),
    Path("/v1/models", "Which models are served.", answers.Models),
    Path("/v1/models/{name}", "One of them.", answers.Model, found=True),
    Path("/tokenize", "A text or a conversation as token ids.", answers.Tokens, (TokenizeFields,)),
    Path("/detokenize", "Token ids as text.", answers.Detokenized, (DetokenizeFields,)),
    Path(
        "/explain", "Where a request would go, without sending it.", {"type": "object"}, (ChatFields, CompletionFields)
    ),
    Path("/engines", "The fleet as it is.", other_answers.Engines),
    Path("/livez", "Whether the process answers.", None),
    Path("/readyz", "Whether requests can be served.", other_answers.Readiness, not_ready=True),
    Path("/health", "The same with counts.", other_answers.Health, not_ready=True),
    Path("/metrics", "Measurements, in the form of Prometheus.", None),
    Path("/openapi.json", "This document.", {"type": "object"}),
)
