"""Holds predictions against what engines say they found in their caches: a correction, and when to stop believing.

One request proves nothing: blocks may be evicted between the choice and the prefill, and two requests may cross. So
only a window of the last ones speaks, and what is lost there has to be more than half.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

WINDOW = 16
"""Requests that a judgement looks back on. It is made only when there are so many."""
WRONG_BELOW = 0.5
"""Less than this share of the predicted tokens was there: predictions are wrong."""
BLIND_BELOW = 0.5
"""Less than this share of the tokens that were there had been predicted: predictions are blind."""
RIGHT_FROM = 0.75
"""From this share on, both ways, predictions that were not believed are believed again."""
WEIGHT = 1 / 8
"""Weight of the newest request in the correction."""
EXACT_FROM = 0.85
"""A correction this near to 1 is none: one race in a row is no reason to take blocks off every right prediction."""
ERROR_BOUNDS = (-0.5, -0.25, -0.1, -0.02, 0.0, 0.02, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds of the histogram of (reported - predicted) / prompt."""


class Verdict(StrEnum):
    """What the window says of the predictions."""

    RIGHT = "right"
    WRONG = "wrong"
    """They promise what is not there."""
    BLIND = "blind"
    """They miss what is there."""


class Accuracy:
    """One source of predictions for one rank."""

    __slots__ = ("_found", "_promised", "_ratio", "verdict")

    def __init__(self) -> None:
        self._promised: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        """Predicted, and how much of that was there: of requests with a prediction."""
        self._found: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        """Reported, and how much of that was predicted or about to come: of requests that found a block."""
        self._ratio = 1.0
        self.verdict = Verdict.RIGHT

    @property
    def correction(self) -> float:
        """Factor for predictions, from 0 to 1."""
        return 1.0 if self._ratio >= EXACT_FROM else self._ratio

    def observe(self, predicted: int, reported: int, block: int, *, likely: int = 0) -> Verdict:
        """A request ended: so many tokens were promised, and the engine says how many it had.

        block: what a cache takes or leaves together; less is no prediction and no hit. likely: what was foreseen by
        other means (requests under way), which excuses a prediction for missing it. Returns the new verdict.
        """
        if predicted >= block:
            there = min(predicted, reported)
            self._promised.append((predicted, there))
            self._ratio += WEIGHT * (there / predicted - self._ratio)
        if reported >= block:
            self._found.append((reported, min(reported, max(predicted, likely))))
        self._judge()
        return self.verdict

    def restart(self) -> None:
        """What predictions rest on is made anew: the past says nothing of it. A verdict stands until disproved."""
        self._promised.clear()
        self._found.clear()
        self._ratio = 1.0

    def _judge(self) -> None:
        if self.verdict is Verdict.RIGHT:
            if _share(self._promised) < WRONG_BELOW:
                self._turn(Verdict.WRONG)
            elif _share(self._found) < BLIND_BELOW:
                self._turn(Verdict.BLIND)
        elif _full(self._found if self.verdict is Verdict.BLIND else self._promised) and all(
            _share(window) >= RIGHT_FROM for window in (self._promised, self._found)
        ):
            self._turn(Verdict.RIGHT)

    def _turn(self, verdict: Verdict) -> None:
        """Judge anew, from requests that come after this."""
        self.verdict = verdict
        if verdict is Verdict.RIGHT:
            self._ratio = 1.0
        self._promised.clear()
        self._found.clear()


def bucket(predicted: int, reported: int, prompt: int) -> int:
    """Where a request belongs in a histogram of ERROR_BOUNDS."""
    error = (reported - predicted) / max(prompt, 1)
    return next((n for n, bound in enumerate(ERROR_BOUNDS) if error <= bound), len(ERROR_BOUNDS) - 1)


def _full(window: deque[tuple[int, int]]) -> bool:
    return len(window) == WINDOW


def _share(window: deque[tuple[int, int]]) -> float:
    """Share of the first numbers that the second ones make up; 1 while there are too few to say."""
    if not _full(window):
        return 1.0
    return sum(part for _, part in window) / sum(whole for whole, _ in window)
