"""Decides what may be believed of one rank's cache: its events, or what we sent it. It does not hold the index."""

from __future__ import annotations

from collections.abc import Callable

from enginehouse.core.kv.accuracy import ERROR_BOUNDS, WINDOW, Accuracy, Verdict, bucket
from enginehouse.core.kv.approximate import Approximate, Expected
from enginehouse.core.kv.blocks import Scheme
from enginehouse.core.kv.index import Holder
from enginehouse.core.kv.view import Heard, Policy
from enginehouse.domain.kv import RankKey, Trust

OWN_BLOCK = 16
"""Tokens in the blocks of what we sent, at least: an engine with pages of one token needs no index that fine."""
DEFAULT_CAPACITY = 262_144
"""Tokens that a rank is taken to hold which does not say."""
MOST_SCHEMES = 4
"""Block sizes that one rank's events may have; each costs every prompt a hashing."""

CREDITED = frozenset({Trust.SYNCED, Trust.PARTIAL})

_WORDS = {
    Verdict.WRONG: f"its cache held less than half of what its events promised for the last {WINDOW} prompts",
    Verdict.BLIND: f"its events told of less than half of what its cache held for the last {WINDOW} prompts",
}


class Rank:
    """All that is known of one rank."""

    def __init__(
        self,
        key: RankKey,
        holder: Holder,
        *,
        block_size: int | None,
        capacity_tokens: int | None,
        events: bool,
        ttl: float,
        wrong: Callable[[str], None] | None,
    ) -> None:
        self.key = key
        self.holder = holder
        self.events = events
        self.trust = Trust.NONE
        self.trust_reason = "" if events else "it publishes no KV events"
        self.heard = Heard()
        self.schemes: set[Scheme] = set()
        """Of its events."""
        self.told = block_size
        self.expected = Expected()
        self.by_events = Accuracy()
        self.by_sent = Accuracy()
        self.requests = self.hits = self.predicted = self.reported = self.prompts = 0
        self.errors = [0] * len(ERROR_BOUNDS)
        self._capacity = capacity_tokens or DEFAULT_CAPACITY
        self._wrong = wrong
        self._ttl = ttl
        self._room = self._capacity
        self.block_size = block_size
        self.own = Scheme(_own_block(block_size))
        self.sent = self._nothing_sent()
        self._settle()

    @property
    def capacity_blocks(self) -> int:
        """Blocks of our own size that fit its cache."""
        return max(1, self._capacity // self.own.block_size)

    @property
    def unit(self) -> int:
        """Tokens that its cache takes or leaves together."""
        return self.block_size or self.own.block_size

    @property
    def disagrees(self) -> bool:
        """Its events come in other blocks than it told."""
        return self.told is not None and self.block_size != self.told

    def believe(self, trust: Trust, reason: str) -> None:
        """How far its events may be believed from now on."""
        self.trust, self.trust_reason = trust, reason
        self._settle()

    @property
    def full(self) -> bool:
        """It has as many schemes as it may have."""
        return len(self.schemes) >= MOST_SCHEMES

    def learn(self, scheme: Scheme) -> None:
        """Its events come in such blocks, too, whatever it told."""
        if not self.schemes and scheme.block_size != self.block_size:
            self.block_size = scheme.block_size
            own = Scheme(_own_block(scheme.block_size))
            if own != self.own:  # what was sent is remembered in blocks of another size
                self.own = own
                self.forget_sent()
        self.schemes.add(scheme)

    def share(self, room: int) -> None:
        """Remember no more blocks than this of what we send it."""
        self._room = room
        self.sent.limit(min(room, self.capacity_blocks))

    def forget(self, *, sent: bool) -> None:
        """It holds nothing any more, or nothing is known of what it holds. sent: also nothing of what we sent it."""
        self.expected = Expected()
        self.by_events.restart()
        if sent:
            self.forget_sent()

    def forget_sent(self) -> None:
        """What we sent it counts no more; nor does what is under way, which holds on to the old ones."""
        self.expected = Expected()
        self.sent = self._nothing_sent()

    def observe(
        self, prompt: int, reported: int, *, events: int | None, expected: int, sent: int | None, predicted: int
    ) -> None:
        """A request of `prompt` tokens is over: what each source promised at its choice, and what the engine found.

        events, sent: None: not to be judged by it; predicted: by the policy in force, not corrected.
        """
        self.requests += 1
        self.hits += reported >= self.unit
        self.predicted += predicted
        self.reported += reported
        self.prompts += prompt
        self.errors[bucket(predicted, reported, prompt)] += 1
        if sent is not None:
            self.by_sent.observe(sent, reported, self.unit)
        if events is None:
            return
        before = self.by_events.verdict
        verdict = self.by_events.observe(events, reported, self.unit, likely=expected)
        if verdict is not before:
            self._settle()
            if verdict is Verdict.WRONG and self._wrong is not None:
                self._wrong(_WORDS[verdict])

    @property
    def correction(self) -> float:
        """Factor for predictions by the policy in force."""
        return (self.by_events if self.policy is Policy.EVENTS else self.by_sent).correction

    def _nothing_sent(self) -> Approximate:
        return Approximate(min(self._room, self.capacity_blocks), self._ttl)

    def _settle(self) -> None:
        verdict = self.by_events.verdict
        self.credited = self.trust in CREDITED
        """Its events may be compared with what it reports."""
        self.counted = self.credited and verdict is not Verdict.WRONG
        """Its events count for a choice."""
        self.policy = Policy.EVENTS if self.credited and verdict is Verdict.RIGHT else Policy.APPROXIMATE
        if not self.credited:
            self.policy_reason = self.trust_reason or "nothing was heard of its KV events yet"
        else:
            self.policy_reason = _WORDS.get(verdict, "")


def _own_block(block_size: int | None) -> int:
    """The smallest multiple of the engine's blocks that is no smaller than OWN_BLOCK."""
    return OWN_BLOCK if not block_size else -(-OWN_BLOCK // block_size) * block_size
