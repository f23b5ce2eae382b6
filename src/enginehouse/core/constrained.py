"""Decides whether a failure is the engine's, or that of what the client wants the answer held to.

Engines compile constraints when a request is already theirs. What their library accepts and then cannot go on with
(a grammar without an end, a class without a character) ends as an internal error, as if the engine were at fault.
"""

from __future__ import annotations

from enginehouse.domain.errors import ConstraintFailed, EngineError, EngineFailed, EngineRejected, HandoverFailed
from enginehouse.domain.link import LinkError, LinkErrorKind


def unheld(error: EngineError | None, field: str | None) -> bool:
    """Whether a failure says nothing against the engine: it may be that of the constraint.

    field: the client's, of which the constraint comes; None: there is none. The engine answers, and says no more than
    that it failed. A hand-over counts that is only presumed to be what failed, as the engine did not say.
    """
    if field is None:
        return False
    if isinstance(error, HandoverFailed):
        return type(error.__cause__) is EngineFailed
    return type(error) is EngineFailed


def told(error: EngineError, field: str | None, *, tokens: int, engines: int) -> EngineError:
    """The failure as the client should hear of it.

    tokens: of the answer that came. A first one does not count: engines send it though the constraint has ruled it out.
    engines: how many have failed the request so, this one included. Two that fail it midway leave no doubt either.
    """
    if unheld(error, field) and (tokens <= 1 or engines > 1):
        made = ConstraintFailed(
            f"'{field}' cannot be served: the engine failed while it held the answer to it, so most likely it cannot"
            " compile it; what is wanted must have an end, and some text must fit it",
            param=field,
        )
        made.__cause__ = error
        return made
    if field is not None and isinstance(error, EngineRejected) and error.param is None and not _too_large(error):
        error.param = field
    return error


def _too_large(error: EngineError) -> bool:
    cause = error.__cause__
    return isinstance(cause, LinkError) and cause.kind is LinkErrorKind.TOO_LARGE
