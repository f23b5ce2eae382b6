"""How likely a mock engine finds its tokens: a rule by the token alone, with numbers that every float holds exactly."""

from __future__ import annotations

from typing import NamedTuple


class Likely(NamedTuple):
    """One token at its place."""

    token: int
    logprob: float
    rank: int
    """From 1, the most likely."""
    best: tuple[tuple[int, float], ...]
    """The most likely tokens there, best first, and their log probabilities; the token itself may be one of them."""


def likely(token: int, most: int, size: int) -> Likely:
    """A token is the first to fourth most likely one at its place, by its number; others follow it by theirs.

    most: how many of the best to tell; size: of the vocabulary.
    """
    place = token % 4
    others = ((token + 1 + n) % size for n in range(most))
    best = tuple((token if n == place else next(others), _logprob(n)) for n in range(most))
    return Likely(token, _logprob(place), place + 1, best)


def _logprob(place: int) -> float:
    return -(place + 1) / 4
