"""When a failed attempt may be repeated elsewhere, as a table."""

import pytest

from enginehouse.core.retry import may_retry
from enginehouse.domain import errors


@pytest.mark.parametrize(
    ("error", "sent", "attempts", "expected"),
    [
        (errors.EngineUnavailable("x"), False, 1, True),
        (errors.EngineTimeout("x"), False, 2, True),
        (errors.EngineBroken("x"), False, 1, True),
        (errors.EngineFailed("x"), False, 1, True),
        (errors.EngineOverloaded("x"), False, 1, True),
        (errors.EngineRejected("x"), False, 1, False),
        (errors.EngineCancelled("x"), False, 1, False),
        (errors.EngineUnavailable("x"), True, 1, False),
        (errors.EngineUnavailable("x"), False, 3, False),
    ],
)
def test_may_retry(error: errors.EngineError, sent: bool, attempts: int, expected: bool) -> None:
    assert may_retry(error, sent=sent, attempts=attempts, max_attempts=3) is expected


@pytest.mark.parametrize(
    ("error", "unheld", "expected"),
    [
        (errors.ConstraintFailed("x"), 1, True),
        (errors.ConstraintFailed("x"), 2, False),
        (errors.EngineUnavailable("x"), 1, True),  # another one failed it before this one was lost
        (errors.EngineFailed("x"), 0, True),
    ],
)
def test_what_two_engines_cannot_hold_an_answer_to_is_tried_on_no_third(
    error: errors.EngineError, unheld: int, expected: bool
) -> None:
    assert may_retry(error, sent=False, attempts=2, max_attempts=9, unheld=unheld) is expected
