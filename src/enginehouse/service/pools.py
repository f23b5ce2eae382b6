"""Owns the candidates for routing: every rank of the engines of now, in one tuple for each pool."""

from __future__ import annotations

from collections.abc import Sequence

from enginehouse.core.membership.roles import Topology
from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.ledger import Ledger
from enginehouse.service.fleet import Fleet
from enginehouse.service.membership import Member
from enginehouse.service.watch import Watch


class Pool:
    """The candidates of one list of members; made anew only when the list has changed."""

    __slots__ = ("_pools", "_watch", "candidates", "members")

    def __init__(self, pools: Pools, watch: Watch[tuple[Member, ...]]) -> None:
        self._pools = pools
        self._watch = watch
        self.members: tuple[Member, ...] = ()
        """Those that `candidates` were made from; a candidate's `member` is its place here."""
        self.candidates: tuple[Candidate, ...] = ()

    def now(self) -> tuple[Candidate, ...]:
        """Of the engines as they are."""
        members = self._watch.get()
        if members is not self.members:
            self.members = members
            self.candidates = self._pools.candidates(members)
            self._pools.changed_one()
        return self.candidates

    def member(self, candidate: Candidate) -> Member:
        """Whose rank it is. Before the next `now()`."""
        return self.members[candidate.member]

    def others(self, key: tuple[str, int], excluded: set[tuple[str, int]]) -> bool:
        """Whether another engine than this one could be tried."""
        return any((own := (m.engine_id, m.incarnation)) != key and own not in excluded for m in self._watch.get())


class Pools:
    """Both pools of a fleet. `serving` gives answers; `prefill` is empty in an aggregated fleet."""

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self.serving = Pool(self, fleet.serving)
        self.prefill = Pool(self, fleet.prefill)
        self.changes: Watch[int] = Watch(0)
        """Published whenever one of them has changed."""
        fleet.serving.listen(self._changed)
        fleet.prefill.listen(self._changed)

    def there(self) -> set[tuple[str, int]]:
        """Id and incarnation of every engine of both."""
        members = (*self._fleet.serving.get(), *self._fleet.prefill.get())
        return {(m.engine_id, m.incarnation) for m in members}

    def candidates(self, members: Sequence[Member]) -> tuple[Candidate, ...]:
        load, apart = self._ledger.load, self._fleet.topology is Topology.DISAGGREGATED
        return tuple(
            Candidate(
                m.engine_id,
                m.incarnation,
                m.name,
                rank,
                load(m.engine_id, m.incarnation, rank),
                position,
                m.info.kv_capacity_tokens,
                m.info.max_running,
                m.pairing if apart else None,
            )
            for position, m in enumerate(members)
            for rank in _ranks(m)
        )

    def changed_one(self) -> None:
        """Called by a pool whose candidates are new: the loads of those that are in neither may be forgotten."""
        both = (*self.serving.candidates, *self.prefill.candidates)
        self._ledger.keep_only(frozenset((c.engine_id, c.incarnation, c.rank) for c in both))

    def _changed(self, members: tuple[Member, ...]) -> None:
        self.changes.publish(self.changes.get() + 1)


def _ranks(member: Member) -> Sequence[int | None]:
    info = member.info
    return (None,) if info.ranks <= 1 else range(info.first_rank, info.first_rank + info.ranks)
