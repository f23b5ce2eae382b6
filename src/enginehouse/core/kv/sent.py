"""Owns what was promised of one prompt when it was sent, until its end says how much of that was there."""

from __future__ import annotations

from enginehouse.core.kv.prompt import KvPrompt
from enginehouse.core.kv.rank import Rank
from enginehouse.core.kv.view import Policy

EVENTS_DUE = 2.0
"""Seconds after the first token in which the prompt's events must have come. Engines publish with the step that made
the token; what is not told by then is not going to be."""


class Sent:
    """One prompt on its way to a rank, and what was promised of it."""

    __slots__ = (
        "_answered",
        "_approximate",
        "_events",
        "_expected",
        "_keys",
        "_likely",
        "_predicted",
        "_prompt",
        "_rank",
        "_sent",
    )

    def __init__(self, rank: Rank, prompt: KvPrompt) -> None:
        self._rank = rank
        self._prompt = prompt.tokens
        self._events = prompt.by_events(rank) if rank.credited else None
        self._likely = prompt.by_expected(rank)
        self._sent = prompt.by_sent(rank)
        by_events = (self._events or 0) if rank.counted else 0
        by_sent = self._sent if rank.policy is Policy.APPROXIMATE else 0
        self._predicted = max(by_events, by_sent, self._likely)
        self._keys = prompt.keys(rank.own)
        self._expected = rank.expected
        self._approximate = rank.sent
        self._answered = False
        self._expected.sent(self._keys)

    def answered(self, now: float) -> None:
        """The first token came: the prompt is in the cache, and its events are due."""
        if not self._answered:
            self._answered = True
            self._approximate.sent(self._keys, now)
            if self._rank.events:
                self._expected.answered(self._keys, now + EVENTS_DUE)
            else:
                self._expected.drop(self._keys)

    def ended(self, cached: int | None) -> None:
        """The request is over, however. cached: tokens that the engine says it had, whatever number that is; None: it
        did not say."""
        if not self._answered:
            self._expected.drop(self._keys)
        self._answered = True
        if cached is None:
            return
        rank = self._rank
        rank.observe(
            self._prompt,
            min(max(cached, 0), self._prompt),
            # What was promised before its cache was cleared, or its view made anew, says nothing of what is known now.
            events=self._events if self._expected is rank.expected else None,
            expected=self._likely,
            sent=self._sent if self._approximate is rank.sent else None,
            predicted=self._predicted,
        )
