"""May a failed attempt be repeated? Not where: routing decides that, with the engines that failed excluded."""

from __future__ import annotations

from typing import Final

from enginehouse.domain.errors import ConstraintFailed, EngineError

MOST_UNHELD: Final = 2
"""Engines that may fail one request before what it holds its answer to is what is wrong."""


def may_retry(error: EngineError, *, sent: bool, attempts: int, max_attempts: int, unheld: int = 0) -> bool:
    """Whether to try again after `attempts` attempts of which the last ended with `error`.

    sent: text of this answer is with the client or on its way; it cannot be taken back, so nothing is repeated. A
    request that may have been processed is repeated all the same: generation has no side effect that a client sees.
    unheld: attempts that failed as one does whose constraint cannot be compiled, this one included.
    """
    if isinstance(error, ConstraintFailed) and unheld >= MOST_UNHELD:
        return False
    return not sent and error.retryable and attempts < max_attempts
