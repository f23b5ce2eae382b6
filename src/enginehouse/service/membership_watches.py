"""Owns what others follow of the fleet: one watch for each question, told only of real changes."""

from __future__ import annotations

from collections.abc import Callable

from enginehouse.core.membership import projections
from enginehouse.core.membership.card import ModelCard
from enginehouse.core.membership.fleet import Entry, Fleet
from enginehouse.domain.engine import Role
from enginehouse.ports import Engine
from enginehouse.service.membership import Member, RuntimeConfig
from enginehouse.service.membership_holds import Key
from enginehouse.service.watch import Watch


class Watches:
    """All watches of one fleet. `engine` gives the open engine of an incarnation that has one."""

    def __init__(self, fleet: Fleet, feeds: tuple[str, ...], engine: Callable[[Key], Engine]) -> None:
        self._feeds = feeds
        self._engine = engine
        self._members: dict[Key, Member] = {}
        self.serving: Watch[tuple[Member, ...]] = Watch(())
        self.prefill: Watch[tuple[Member, ...]] = Watch(())
        self.runtime_configs: Watch[tuple[RuntimeConfig, ...]] = Watch(())
        self.card: Watch[ModelCard | None] = Watch(None)
        self.missing: Watch[tuple[str, ...]] = Watch(projections.missing(fleet, feeds))
        self.steps: Watch[int] = Watch(0)
        """Published after every change of whatever kind."""

    def publish(self, fleet: Fleet) -> None:
        """Tell of everything that is not as it was.

        Configurations first: whoever listens there knows an engine before a request can be sent to it.
        """
        self.runtime_configs.publish(projections.runtime_configs(fleet))
        members = [self.member(engine_id, entry) for engine_id, entry in projections.routable(fleet)]
        self.serving.publish(tuple(member for member in members if member.role is not Role.PREFILL))
        self.prefill.publish(tuple(member for member in members if member.role is Role.PREFILL))
        self.card.publish(fleet.card)
        self.missing.publish(projections.missing(fleet, self._feeds))
        self.stir()

    def stir(self) -> None:
        """Let whoever waits for any change look again."""
        self.steps.publish(self.steps.get() + 1)

    def member(self, engine_id: str, entry: Entry) -> Member:
        """The member that stands for a serving entry; the same object as long as nothing about it changes."""
        key = engine_id, entry.incarnation
        known = self._members.get(key)
        assert entry.info is not None
        assert entry.role is not None
        assert entry.target is not None
        if known is None or known.info != entry.info or known.role is not entry.role:
            known = Member(*key, entry.name, entry.role, entry.info, entry.target, self._engine(key))
            self._members[key] = known
        return known

    def forget(self, key: Key) -> None:
        """The incarnation is gone."""
        self._members.pop(key, None)

    def close(self) -> None:
        """Nothing more will be told; last values stay."""
        for watch in (self.serving, self.prefill, self.runtime_configs, self.card, self.missing, self.steps):
            watch.close()
