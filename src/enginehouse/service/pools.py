"""Owns the candidates for routing: every rank of the engines of now, in one tuple for each pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enginehouse.core.membership.roles import Topology
from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.ledger import Ledger
from enginehouse.service.able import Needs, can_answer, can_prefill
from enginehouse.service.fleet import Fleet
from enginehouse.service.membership import Member
from enginehouse.service.watch import Watch


class Pool:
    """The candidates of one list of members; made anew only when the list has changed."""

    __slots__ = ("_can", "_found", "_pools", "_watch", "candidates", "members")

    def __init__(
        self,
        pools: Pools,
        watch: Watch[tuple[Member, ...]],
        can: Callable[[Member, Needs], bool],
    ) -> None:
        """can: whether a member can do its part of a request with these needs."""
        self._pools = pools
        self._watch = watch
        self._can = can
        self._found: dict[Needs, tuple[Candidate, ...]] = {}
        self.members: tuple[Member, ...] = ()
        """Those that `candidates` were made from; a candidate's `member` is its place here."""
        self.candidates: tuple[Candidate, ...] = ()

    def now(self) -> tuple[Candidate, ...]:
        """Of the engines as they are."""
        members = self._watch.get()
        if members is not self.members:
            self.members = members
            self.candidates = self._pools.candidates(members)
            self._found.clear()
            self._pools.changed_one()
        return self.candidates

    def able(self, needs: Needs) -> tuple[Candidate, ...]:
        """Of the engines as they are, those that can do all of it: the same tuple until they change."""
        candidates = self.now()
        found = self._found.get(needs)
        if found is None:
            can = [self._can(member, needs) for member in self.members]
            found = candidates if all(can) else tuple(c for c in candidates if can[c.member])
            self._found[needs] = found
        return found

    def member(self, candidate: Candidate) -> Member:
        """Whose rank it is. Before the next `now()`."""
        return self.members[candidate.member]

    def others(self, key: tuple[str, int], excluded: set[tuple[str, int]], needs: Needs) -> bool:
        """Whether another engine than this one could be tried."""
        return any(
            (own := (m.engine_id, m.incarnation)) != key and own not in excluded and self._can(m, needs)
            for m in self._watch.get()
        )


class Pools:
    """Both pools of a fleet. `serving` gives answers; `prefill` is empty in an aggregated fleet."""

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self.serving = Pool(self, fleet.serving, can_answer)
        self.prefill = Pool(self, fleet.prefill, can_prefill)
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
