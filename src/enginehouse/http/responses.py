"""`/v1/responses` on the shared pipeline."""

from __future__ import annotations

from enginehouse.core.openai.answers import error_body
from enginehouse.core.responses.answer import response_answer
from enginehouse.core.responses.frames import ResponseFrames
from enginehouse.core.responses.parse import parse_response
from enginehouse.core.responses.request import ResponseRequest
from enginehouse.http.api import Api

RESPONSES: Api[ResponseRequest] = Api(
    "/v1/responses", "resp_", parse_response, ResponseFrames, response_answer, error_body
)
