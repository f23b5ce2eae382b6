"""Anthropic's `/v1/messages` on the shared pipeline, and `/v1/messages/count_tokens` beside it."""

from __future__ import annotations

import msgspec

from enginehouse.core.anthropic.answer import error_answer, message_answer
from enginehouse.core.anthropic.frames import MessageFrames
from enginehouse.core.anthropic.parse import parse_count, parse_message
from enginehouse.core.anthropic.request import MessageRequest
from enginehouse.http.api import Api
from enginehouse.http.completions import EdgeOptions
from enginehouse.http.questions import Question
from enginehouse.ports import Meters, RequestMeter
from enginehouse.service.models import Models

_ID_HEADERS = (b"x-request-id", b"request-id")
"""Anthropic's clients look for the latter."""

MESSAGES: Api[MessageRequest] = Api(
    "/v1/messages", "msg_", parse_message, MessageFrames, message_answer, error_answer, _ID_HEADERS
)


def count_tokens(models: Models, meters: Meters, options: EdgeOptions) -> Question:
    """How many tokens the prompt of a message would have, also one that does not fit. No engine is asked."""

    async def reply(body: bytes, meter: RequestMeter) -> bytes:
        request = parse_count(body)
        model = await models.find(request.model)
        encoded = await model.tokenizer.encode_chat(request.messages, request.template_options)
        return msgspec.json.encode({"input_tokens": len(encoded.token_ids)})

    return Question("/v1/messages/count_tokens", reply, meters, options, error_answer, _ID_HEADERS)
