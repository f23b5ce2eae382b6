"""May a failed attempt be repeated on another engine? Not where: routing decides that, with the failed ones excluded."""

from __future__ import annotations

from enginehouse.domain.errors import EngineError


def may_retry(error: EngineError, *, sent: bool, attempts: int, max_attempts: int) -> bool:
    """Whether to try again after `attempts` attempts of which the last ended with `error`.

    sent: text of this answer has reached (or is on its way to) the client; it cannot be taken back, so nothing is repeated.
    A request that may have been processed is repeated all the same: generation has no side effect that a client sees.
    """
    return not sent and error.retryable and attempts < max_attempts
