"""Owns the working copy of a fleet during one step: records are replaced, moves checked, intents collected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from enginehouse.core.membership.card import ModelCard
from enginehouse.core.membership.fleet import Entry, Fleet, Slot
from enginehouse.core.membership.intents import CancelProbe, Drain, Ignored, Intent, Moved, StartCheck
from enginehouse.core.membership.states import LINKED, Cause, State, permit
from enginehouse.core.membership.wants import Desire
from enginehouse.domain.feed import Wanted


class Turn:
    """One step under way."""

    def __init__(self, fleet: Fleet, now: float) -> None:
        self.before = fleet
        self.settings = fleet.settings
        self.now = now
        self.slots: dict[str, Slot] = dict(fleet.slots)
        self.card: ModelCard | None = fleet.card
        self.topology = fleet.topology
        self.topology_reason = fleet.topology_reason
        self.listed = fleet.listed
        self.leaving = fleet.leaving
        self.number = fleet.last_number
        self.intents: list[Intent] = []
        self.touched: set[str] = set()
        """Engine ids of which anything was replaced."""
        self.news = False
        """Something changed that others see, or that admission depends on."""
        self.parted = False
        """A member left, or says something else of itself: the model card has to be made anew."""
        self.applicants: dict[str, Cause] = {}
        """Engine ids whose current incarnation asks to be let in, and why it does so now."""
        self.outdated: dict[str, Cause] = {}
        """Engine ids whose current incarnation turned out to be over, and why."""

    def finish(self, wake_at: float | None) -> tuple[Fleet, tuple[Intent, ...]]:
        """The new fleet, and what to do."""
        fleet = Fleet(
            settings=self.settings,
            model=self.before.model,
            topology=self.topology,
            topology_reason=self.topology_reason,
            slots=MappingProxyType(self.slots),
            card=self.card,
            listed=self.listed,
            last_number=self.number,
            wake_at=wake_at,
            leaving=self.leaving,
            revision=self.before.revision + self.news,
        )
        return fleet, tuple(self.intents)

    def next_number(self) -> int:
        """A number never used before, in this fleet."""
        self.number += 1
        return self.number

    def put(self, slot: Slot) -> Slot:
        """Replace a slot; one that holds nothing any more is forgotten."""
        self.touched.add(slot.engine_id)
        if slot.wants or slot.current is not None or slot.draining:
            self.slots[slot.engine_id] = slot
        else:
            self.slots.pop(slot.engine_id, None)
        return slot

    def set_wants(self, engine_id: str, feed: str, wanted: Wanted | None) -> None:
        """Note what one feed says of one engine id."""
        slot = self.slots.get(engine_id) or Slot(engine_id)
        wants = dict(slot.wants)
        if wanted is None:
            wants.pop(feed, None)
        else:
            wants[feed] = wanted
        self.put(replace(slot, wants=MappingProxyType(wants)))

    def current(self, engine_id: str, incarnation: int) -> Entry | None:
        """The current entry if it is this incarnation; else the event is counted as ignored."""
        slot = self.slots.get(engine_id)
        if slot is not None and slot.current is not None and slot.current.incarnation == incarnation:
            return slot.current
        self.intents.append(Ignored(engine_id, incarnation))
        return None

    def serving(self) -> Iterator[Entry]:
        """Every entry in state SERVING."""
        for slot in self.slots.values():
            if slot.current is not None and slot.current.state is State.SERVING:
                yield slot.current

    def create(self, engine_id: str, wish: Desire, *, failures: int = 0, canary: bool = False) -> Entry:
        """A new incarnation, waiting."""
        entry = Entry(
            incarnation=self.next_number(),
            name=wish.wanted.name,
            target=wish.wanted.target,
            generations=wish.generations,
            state=State.WAITING,
            since=self.now,
            reason=wish.reason,
            failures=failures,
            canary=canary,
        )
        self.put(replace(self.slots[engine_id], current=entry))
        return entry

    def change(self, engine_id: str, entry: Entry, **fields: Any) -> Entry:
        """Replace fields of the current entry, its state not among them."""
        if all(getattr(entry, name) == value for name, value in fields.items()):
            return entry
        if "info" in fields and fields["info"] != entry.info:
            self.news = True
            self.parted |= entry.state in (State.SERVING, State.SUSPECT)
        changed = replace(entry, **fields)
        self.put(replace(self.slots[engine_id], current=changed))
        return changed

    def move(self, engine_id: str, entry: Entry, cause: Cause, to: State, reason: str = "", **fields: Any) -> Entry:
        """Take the current entry to another state of the table; `reason` is what people will read there."""
        self._note(engine_id, entry, cause, to, reason)
        since = entry.since if to is entry.state else self.now
        moved = replace(entry, state=to, reason=reason, since=since, **fields)
        self.put(replace(self.slots[engine_id], current=moved))
        return moved

    def check(self, engine_id: str, entry: Entry) -> None:
        """Start a check of the current entry, unless one is under way."""
        if not entry.checking:
            self.change(engine_id, entry, checking=True, next_at=None)
            self.intents.append(StartCheck(engine_id, entry.incarnation, entry.canary))

    def retire(self, engine_id: str, entry: Entry, cause: Cause, reason: str) -> None:
        """The current entry is over: forget it, or let its streams end."""
        slot = self.slots[engine_id]
        self.applicants.pop(engine_id, None)
        if entry.state in LINKED:
            self._note(engine_id, entry, cause, State.DRAINING, reason)
            drain = self.settings.drain_timeout if self.leaving is None else self.leaving
            draining = replace(
                entry,
                state=State.DRAINING,
                since=self.now,
                reason=reason,
                next_at=self.now + drain,
                checking=False,
            )
            self.put(replace(slot, current=None, draining=(*slot.draining, draining)))
            self.intents.append(Drain(engine_id, entry.incarnation))
        else:
            self._note(engine_id, entry, cause, State.GONE, reason)
            if entry.state is State.PROBING:
                self.intents.append(CancelProbe(engine_id, entry.incarnation))
            self.put(replace(slot, current=None))

    def bury(self, engine_id: str, entry: Entry, cause: Cause, reason: str) -> None:
        """A draining entry is gone."""
        slot = self.slots[engine_id]
        self._note(engine_id, entry, cause, State.GONE, reason)
        self.put(replace(slot, draining=tuple(e for e in slot.draining if e.incarnation != entry.incarnation)))

    def change_draining(self, engine_id: str, entry: Entry, **fields: Any) -> None:
        """Replace fields of a draining entry."""
        slot = self.slots[engine_id]
        changed = replace(entry, **fields)
        self.put(replace(slot, draining=tuple(changed if e is entry else e for e in slot.draining)))

    def _note(self, engine_id: str, entry: Entry, cause: Cause, to: State, reason: str) -> None:
        permit(entry.state, cause, to)
        if to is not entry.state:
            self.news = True
            self.parted |= entry.state in (State.SERVING, State.SUSPECT)
            self.intents.append(Moved(engine_id, entry.incarnation, entry.name, entry.state, to, cause, reason))
