"""Owns what must be true of every fleet after every step. Tests run it after each; nothing else does."""

from __future__ import annotations

from enginehouse.core.membership.card import disagreement
from enginehouse.core.membership.fleet import Entry, Fleet, Slot
from enginehouse.core.membership.roles import Topology, settle_role
from enginehouse.core.membership.states import LINKED, State


def check(fleet: Fleet) -> None:
    """Assert all of it."""
    numbers = [entry.incarnation for slot in fleet.slots.values() for entry in slot.entries]
    assert len(numbers) == len(set(numbers)), "an incarnation number was given twice"
    assert all(number <= fleet.last_number for number in numbers)
    times = [entry.due_at for slot in fleet.slots.values() for entry in slot.entries if entry.due_at is not None]
    assert fleet.wake_at == min(times, default=None), "a time would be slept through"
    served: set[tuple[str, int]] = set()
    members = False
    for engine_id, slot in fleet.slots.items():
        _check_slot(fleet, engine_id, slot)
        entry = slot.current
        if entry is not None and entry.state is State.SERVING:
            members = True
            assert entry.target is not None
            address = (entry.target.host, entry.target.port)
            assert address not in served, f"two engines serve at {address}"
            served.add(address)
    if members:
        assert fleet.card is not None, "engines serve without a model card"
        assert fleet.topology is not Topology.AUTO, "engines serve before the topology was decided"


def _check_slot(fleet: Fleet, engine_id: str, slot: Slot) -> None:
    assert slot.engine_id == engine_id
    assert slot.wants or slot.current or slot.draining, "an empty slot was not forgotten"
    assert (slot.current is not None) == bool(slot.wants), "what is wanted and what is there differ"
    assert not (fleet.leaving is not None and slot.current), "an engine is current while we leave"
    for entry in slot.entries:
        assert (entry.info is not None) == (entry.state in LINKED), f"{entry.state} with or without information"
    for entry in slot.draining:
        assert entry.state is State.DRAINING
        assert entry.next_at is not None, "a drain without deadline"
        assert slot.current is None or entry.incarnation < slot.current.incarnation
    if slot.current is not None:
        _check_current(fleet, slot, slot.current)


def _check_current(fleet: Fleet, slot: Slot, entry: Entry) -> None:
    may_serve = any(want.eligible for want in slot.wants.values())
    match entry.state:
        case State.WAITING:
            assert entry.next_at is None
            assert entry.reason, "it waits and nobody knows why"
        case State.PROBING:
            assert may_serve
            assert entry.next_at is None
            assert entry.target is not None
        case State.FAILED:
            assert may_serve
            assert entry.next_at is not None
            assert entry.reason
        case State.REFUSED:
            assert may_serve
            assert entry.reason
            assert entry.checking or entry.next_at is not None
        case State.SERVING:
            assert may_serve
            assert not entry.reason
            assert entry.checking or entry.next_at is not None
            _check_member(fleet, slot, entry)
        case State.SUSPECT:
            assert may_serve
            assert entry.reason
            assert entry.checking or entry.next_at is not None
        case State.UNREADY:
            assert entry.reason
            assert entry.next_at is not None
        case _:
            raise AssertionError(f"{entry.state} is no state for a current incarnation")


def _check_member(fleet: Fleet, slot: Slot, entry: Entry) -> None:
    assert entry.info is not None
    assert fleet.card is not None
    assert disagreement(fleet.card, entry.info) is None, "a member disagrees with the model card"
    assert entry.target is not None
    assert entry.role is settle_role(entry.target.role, entry.info.role, fleet.topology)
    targets = {want.target for want in slot.wants.values() if want.target is not None}
    assert targets == {entry.target}, "it serves at an address that nobody wants"
