"""What makes one API out of the pipeline that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from enginehouse.core.openai.requests import ChatRequest, CompletionRequest
from enginehouse.core.output.answer import Choice, Frames, Identity, Usage
from enginehouse.domain.errors import EnginehouseError

R = TypeVar("R", bound=ChatRequest | CompletionRequest)


@dataclass(frozen=True)
class Api(Generic[R]):
    """An API that generates: a body in, an answer out, streamed or whole. `Endpoint(api, ...)` serves it.

    An API is two translations. `parse` makes the one internal request of its body; where its answers have to repeat
    more of the body than that has, R is a subclass of ChatRequest with fields for it. `frames` and `whole` make bytes
    of what came out: each choice as pieces (content, reasoning, calls) and an end. Everything between is the same for
    every API: encoding, choosing engines, retries, parsing of the model's text, usage, clients that are slow or gone.

    Errors have the API's own form too. What fails before the first frame is `error` with the error's HTTP status; what
    fails later is `Frames.error`, and nothing after it.
    """

    path: str
    prefix: str
    """Of the ids that answers get: prefix, then 32 hex digits."""
    parse: Callable[[bytes], R]
    """Raises InvalidRequest. `request.stream` says which of the two answers is wanted."""
    frames: Callable[[Identity, R], Frames]
    whole: Callable[[Identity, R, Sequence[Choice], Usage], bytes]
    """The choices by their index."""
    error: Callable[[EnginehouseError], bytes]
    id_headers: Sequence[bytes] = (b"x-request-id",)
    """Where clients of the API look for the id of their request."""
