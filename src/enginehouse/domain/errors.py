"""Every failure that a client may see, by whose fault it is; each class holds HTTP status, OpenAI type and code."""

from __future__ import annotations

from typing import ClassVar


class EnginehouseError(Exception):
    """Base. `param` names the request field at fault; `retry_after` is in seconds."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None
    default_retry_after: ClassVar[int | None] = None

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code
        self.retry_after = retry_after if retry_after is not None else self.default_retry_after


# The caller's doing.


class InvalidRequest(EnginehouseError):
    """The request cannot be served as written."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """Prompt, or prompt and answer together, do not fit the model's context.

    asked: tokens of the prompt, and of the answer where both together are too many; limit: what would fit.
    """

    default_code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        asked: tuple[int, ...] = (),
        limit: int = 0,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.asked = asked
        self.limit = limit


class ModelNotFound(EnginehouseError):
    """No fleet of ours serves a model of this name."""

    status = 404
    type = "invalid_request_error"
    default_code = "model_not_found"


class NotFound(EnginehouseError):
    """No such path."""

    status = 404
    type = "invalid_request_error"
    default_code = "not_found"


class MethodNotAllowed(EnginehouseError):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"


class RequestTooLarge(EnginehouseError):
    """The body is above the limit."""

    status = 413
    type = "invalid_request_error"
    default_code = "request_too_large"


class RequestTimeout(EnginehouseError):
    """The client takes too long to send its request."""

    status = 408
    type = "invalid_request_error"
    default_code = "request_timeout"


class HeadersTooLarge(EnginehouseError):
    """The head of the request is above the limit."""

    status = 431
    type = "invalid_request_error"
    default_code = "headers_too_large"


# Capacity.


class NoEngine(EnginehouseError):
    """The model is known, but no engine can take a request now."""

    status = 503
    type = "server_error"
    default_code = "no_engine"
    default_retry_after = 1


class Overloaded(EnginehouseError):
    """The engines (or we) refuse more work for now."""

    status = 429
    type = "rate_limit_error"
    default_code = "overloaded"
    default_retry_after = 1


class ShuttingDown(EnginehouseError):
    """This frontend is leaving."""

    status = 503
    type = "server_error"
    default_code = "shutting_down"
    default_retry_after = 1


# The engine's doing.


class EngineError(EnginehouseError):
    """An attempt failed at the engine or on the way.

    retryable: another engine may do better, as long as nothing was sent to the client. suspect: the engine, not just
    this request, is in doubt and should be checked before it gets more.
    """

    status = 500
    default_code = "engine_error"
    retryable: ClassVar[bool] = True
    suspect: ClassVar[bool] = False


class EngineUnavailable(EngineError):
    """Not reachable, refusing connections, gone, or leaving."""

    status = 503
    default_code = "engine_unavailable"
    default_retry_after = 1
    suspect = True


class EngineTimeout(EngineError):
    """Connect, first token or next token took too long."""

    status = 504
    default_code = "engine_timeout"
    suspect = True


class EngineBroken(EngineError):
    """It answered, but not with what its protocol allows: an end without a terminal message, garbage, bad order."""

    status = 502
    default_code = "engine_broken"
    suspect = True


class EngineOverloaded(EngineError):
    """It is well, and full."""

    status = 429
    type = "rate_limit_error"
    default_code = "engine_overloaded"
    default_retry_after = 1


class EngineFailed(EngineError):
    """It failed this request (internal error, abort not asked for)."""

    status = 500
    default_code = "engine_failed"


class ConstraintFailed(EngineFailed):
    """It failed a request whose answer it had to hold to a constraint, at once or as another one did. Most likely it
    cannot compile it, and no engine can. Nothing speaks against the engine."""

    status = 400
    type = "invalid_request_error"
    default_code = "invalid_constraint"


class AdapterNotLoaded(EngineError):
    """It has not loaded the adapter that was asked for, or no longer. Nothing speaks against the engine."""

    status = 404
    type = "invalid_request_error"
    default_code = "model_not_found"


class HandoverFailed(EngineFailed):
    """The KV cache did not pass from one engine to the other. Either may be at fault, or the way between them."""

    status = 502
    default_code = "handover_failed"


class HandoverTimeout(HandoverFailed):
    """Nothing was heard of the decode engine in the time that a hand-over may take."""

    status = 504
    default_code = "handover_timeout"


class EngineRejected(EngineError):
    """It says the request itself is wrong: no other engine would take it either."""

    status = 400
    type = "invalid_request_error"
    default_code = "engine_rejected"
    retryable = False


class EngineCancelled(EngineError):
    """We cancelled the attempt ourselves; never shown to a client."""

    status = 499
    default_code = "cancelled"
    retryable = False


class ProbeFailed(Exception):
    """An engine cannot be admitted (yet). The text is shown to operators; `permanent` only stretches the back-off."""

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent
