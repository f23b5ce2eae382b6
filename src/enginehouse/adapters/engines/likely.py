"""What the readers of log probabilities share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

M = TypeVar("M")

FLOOR: Final = -9999.0
"""Stands for what is even less likely, which JSON could not always carry: engines tell of minus infinity."""
LEFT_OUT: Final = "the engine left out log probabilities that it was asked for"


def sound(logprob: float | None) -> float:
    """The number, or the floor."""
    return logprob if logprob is not None and logprob >= FLOOR else FLOOR


class Keeping(Generic[M]):
    """Reads a message for a decoder that looks at its ids, and keeps it for one that looks at the rest."""

    __slots__ = ("_read", "last")

    last: M
    """Not before the first."""

    def __init__(self, read: Callable[[bytes], M]) -> None:
        self._read = read

    def __call__(self, message: bytes) -> M:
        self.last = found = self._read(message)
        return found
