"""The response object: what the first and the last events of a stream carry, and a whole answer's body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from enginehouse.core.output.answer import Choice, End, Identity, Usage
from enginehouse.core.responses.items import Ids, output_items
from enginehouse.core.responses.request import ResponseRequest
from enginehouse.domain.errors import EnginehouseError
from enginehouse.domain.stream import Finish
from enginehouse.wire.sse import to_json


def response(
    identity: Identity,
    request: ResponseRequest,
    status: str,
    output: Sequence[dict[str, Any]] = (),
    usage: Usage | None = None,
    error: EnginehouseError | None = None,
) -> dict[str, Any]:
    """The object with this much of the answer in it."""
    return {
        "id": identity.answer_id,
        "object": "response",
        "created_at": identity.created,
        "model": identity.model,
        "status": status,
        "error": None if error is None else {"code": _error_code(error), "message": error.message},
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output,
        "usage": None if usage is None else usage_of(usage),
        **request.repeated,
    }


def usage_of(usage: Usage) -> dict[str, Any]:
    """The `usage` object. Its details are never left out: clients read them without looking; unknown is 0."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def status_of(end: End) -> str:
    """How a response stands that has ended by itself."""
    return "incomplete" if end.finish is Finish.LENGTH else "completed"


def response_answer(identity: Identity, request: ResponseRequest, choices: Sequence[Choice], usage: Usage) -> bytes:
    """Body of a whole answer."""
    choice = choices[0]
    cut = choice.end.finish is Finish.LENGTH
    ids, likelihoods = Ids(identity.answer_id), choice.likelihoods or ()
    output = output_items(ids, request, choice.pieces, cut=cut, likelihoods=likelihoods)
    return to_json(response(identity, request, status_of(choice.end), output, usage))


def _error_code(error: EnginehouseError) -> str:
    """The API knows few codes; what is more exact stands in the message and in the `error` event."""
    return "rate_limit_exceeded" if error.status == 429 else "server_error"
