"""Owns all that is known of the engines' caches: who holds what, how far that may be believed, how well it came true.

It hears events in order and knows no clock; it decides neither their order (`cursor`) nor a choice (`routing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from enginehouse.core.kv.blocks import Scheme
from enginehouse.core.kv.index import KvIndex
from enginehouse.core.kv.prompt import KvPrompt
from enginehouse.core.kv.rank import Rank
from enginehouse.core.kv.sent import Sent
from enginehouse.core.kv.settings import KvSettings
from enginehouse.core.kv.view import Heard, KvView, RankView
from enginehouse.core.routing.candidate import Candidate
from enginehouse.domain.kv import Cleared, KvEvent, RankKey, Removed, Stored, Trust

__all__ = ["Knowledge", "Sent"]

MOST_SCHEMES = 8
"""Block sizes that a prompt is hashed for, of the events of all ranks together: those of the most ranks."""
_SENT_SHARE = 4
"""What we sent may take this part of the index's blocks, besides them: its blocks are as large, or smaller."""


class Knowledge:
    """All ranks. Single-rank engines have rank 0 here, whatever number they give themselves."""

    def __init__(self, settings: KvSettings) -> None:
        self._settings = settings
        self._index = KvIndex(settings.kv_index_blocks)
        self._ranks: dict[tuple[str, int, int], Rank] = {}
        self._schemes: Counter[Scheme] = Counter()
        """Of the ranks' events, with the number of ranks."""
        self._looked_up: tuple[Scheme, ...] | None = ()
        """Of these, those that count; None: to be found anew."""
        self._shared = True
        """Each rank has its share of the room for what we send."""

    def join(
        self,
        key: RankKey,
        *,
        block_size: int | None = None,
        capacity_tokens: int | None = None,
        events: bool = True,
        wrong: Callable[[str], None] | None = None,
    ) -> None:
        """A rank of a new incarnation: nothing is known of it. `wrong` is told why, when its events prove wrong."""
        assert key not in self._ranks, key
        self._ranks[key] = Rank(
            key,
            self._index.join(),
            block_size=block_size,
            capacity_tokens=capacity_tokens,
            events=events,
            ttl=self._settings.kv_approximate_ttl,
            wrong=wrong,
        )
        self._shared = False

    def leave(self, key: RankKey) -> None:
        """Forget a rank. What is still under way for it changes nothing any more."""
        rank = self._ranks.pop(key, None)
        if rank is not None:
            self._index.leave(rank.holder)
            self._schemes.subtract(rank.schemes)
            self._schemes += Counter()  # without those that nobody uses
            self._looked_up = None
            self._shared = False

    def believe(self, key: RankKey, trust: Trust, reason: str) -> None:
        """How far the rank's events may be believed from now on."""
        self._ranks[key].believe(trust, reason)

    def clear(self, key: RankKey, *, sent: bool) -> None:
        """Its events no longer tell what it holds. sent: it holds nothing, of what we sent it neither."""
        rank = self._ranks[key]
        self._index.clear(rank.holder)
        rank.forget(sent=sent)

    def lost(self, key: RankKey) -> None:
        """It was out of reach, and may be another process by now. Its events, if any, tell for themselves."""
        self._ranks[key].forget_sent()

    def apply(self, key: RankKey, event: KvEvent) -> None:
        """Take in one event, or a slice of one."""
        rank = self._ranks[key]
        match event:
            case Stored():
                scheme = Scheme(event.block_size, event.pairs)
                if scheme in rank.schemes:
                    self._index.store(rank.holder, event)
                elif not rank.full and self._index.store(rank.holder, event):
                    rank.learn(scheme)
                    self._schemes[scheme] += 1
                    self._looked_up = None
            case Removed():
                self._index.remove(rank.holder, event)
            case Cleared():
                self.clear(key, sent=True)

    def sweep(self, budget: int) -> bool:
        """Take apart about so many blocks of what is gone; true: there is more to do."""
        return self._index.sweep(budget)

    def heard(self, key: RankKey) -> Heard:
        """The rank's counts, for whoever hears its events."""
        return self._ranks[key].heard

    def prompt(self, token_ids: Sequence[int], *, namespace: str = "", session: str | None, now: float) -> KvPrompt:
        """One request, to be asked what each rank holds of it."""
        return KvPrompt(token_ids, namespace, session, now, index=self._index, schemes=self._most_used, find=self._find)

    def dispatched(self, prompt: KvPrompt, candidate: Candidate) -> Sent | None:
        """The prompt goes there now, and what it leaves in the cache counts from now on. None: the rank is unknown."""
        if not self._shared:
            self._share_room()
        rank = self._find(candidate)
        return None if rank is None else Sent(rank, prompt)

    def view(self, now: float) -> KvView:
        """Everything there is to know, for people and metrics."""
        index = self._index
        ranks = tuple([_view(rank, now) for rank in self._ranks.values()])
        return KvView(ranks, index.blocks, index.memory, index.evicted, index.max_blocks)

    def check(self) -> None:
        """Invariants, for tests."""
        self._index.check()
        used = Counter(scheme for rank in self._ranks.values() for scheme in rank.schemes)
        assert used == self._schemes, (used, self._schemes)
        assert len(self._most_used()) == min(MOST_SCHEMES, len(used))
        for key, rank in self._ranks.items():
            assert key == rank.key
            rank.sent.check()

    def _find(self, candidate: Candidate) -> Rank | None:
        return self._ranks.get((candidate.engine_id, candidate.incarnation, candidate.rank or 0))

    def _most_used(self) -> tuple[Scheme, ...]:
        if self._looked_up is None:
            self._looked_up = tuple([scheme for scheme, _ in self._schemes.most_common(MOST_SCHEMES)])
        return self._looked_up

    def _share_room(self) -> None:
        """Once for all ranks that joined or left since the last request: each of them changes every share."""
        self._shared = True
        each = self._settings.kv_index_blocks // _SENT_SHARE // max(1, len(self._ranks))
        for rank in self._ranks.values():
            rank.share(each)


def _view(rank: Rank, now: float) -> RankView:
    heard = rank.heard
    rank.expected.expire(now)
    rank.sent.age(now)
    return RankView(
        key=rank.key,
        trust=rank.trust,
        trust_reason=rank.trust_reason,
        policy=rank.policy,
        policy_reason=rank.policy_reason,
        block_size=rank.block_size,
        block_sizes_disagree=rank.disagrees,
        blocks=rank.holder.blocks,
        approximate_blocks=len(rank.sent),
        expected_blocks=len(rank.expected),
        orphans=rank.holder.orphans,
        heard=heard,
        event_age=None if heard.last_at is None else max(0.0, now - heard.last_at),
        waiting_age=None if heard.waiting_since is None else max(0.0, now - heard.waiting_since),
        event_rate=heard.pace.at(now),
        verdict=rank.by_events.verdict,
        correction=rank.correction,
        requests=rank.requests,
        hits=rank.hits,
        predicted_tokens=rank.predicted,
        reported_tokens=rank.reported,
        prompt_tokens=rank.prompts,
        errors=tuple(rank.errors),
    )
