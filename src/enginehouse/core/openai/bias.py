"""`logit_bias`: what is added to the chances of certain tokens, by their ids."""

from __future__ import annotations

from typing import Any, Final

from enginehouse.core.openai.fields import MAX_BIASES, TOKEN_ID_MAX
from enginehouse.core.openai.refusals import printable, shown, wrong_value
from enginehouse.domain.errors import InvalidRequest

_MOST: Final = 100


def read_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Raises InvalidRequest. Whether the model has such tokens is seen when the model is known."""
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise wrong_value("logit_bias", value)
    return tuple([(_token(key), _number(key, amount)) for key, amount in value.items()])


def _token(key: str) -> int:
    # More digits than any token id has: int() would take quadratic time.
    number = int(key) if key.isascii() and key.isdecimal() and len(key) <= 10 else -1
    if not 0 <= number <= TOKEN_ID_MAX:
        raise _wrong(f"the key '{printable(key)}' of 'logit_bias' is no token id")
    return number


def _number(key: str, amount: Any) -> float:
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not -_MOST <= amount <= _MOST:
        raise _wrong(f"'logit_bias.{key}' is {shown(amount)}")
    return float(amount)


def _wrong(problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"{problem}; 'logit_bias' must be an object with token ids (as strings of digits, from 0 to {TOKEN_ID_MAX}) "
        f"and numbers from -{_MOST} to {_MOST}",
        param="logit_bias",
    )
