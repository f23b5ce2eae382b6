"""May a failed attempt be repeated? Not where: routing decides that, with the engines that failed excluded."""

from __future__ import annotations

from enginehouse.domain.errors import EngineError


def may_retry(error: EngineError, *, sent: bool, attempts: int, max_attempts: int) -> bool:
    """Whether to try again after `attempts` attempts of which the last ended with `error`.

    sent: text of this answer is with the client or on its way; it cannot be taken back, so nothing is repeated. A
    request that may have been processed is repeated all the same: generation has no side effect that a client sees.
    """
    return not sent and error.retryable and attempts < max_attempts
