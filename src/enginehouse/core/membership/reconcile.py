"""Decides what follows from what we know: every intent is derived here, from levels, never from the event itself.

Reconciling twice in a row does nothing the second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from enginehouse.core.membership.admission import admit
from enginehouse.core.membership.fleet import Entry, Slot
from enginehouse.core.membership.intents import CloseEngine, CutStreams, StartProbe, WakeAt
from enginehouse.core.membership.states import Cause, State
from enginehouse.core.membership.turn import Turn
from enginehouse.core.membership.wants import Claims, Desire, claimed_address, desire


def reconcile(turn: Turn, *, everything: bool = False) -> float | None:
    """Bring every engine in line with what is wanted, known and due; return when to look again.

    Looks at the engines that the event touched, those whose time has come, and those at an address that changed hands:
    nothing else can have a reason to move. everything: look at all of them regardless.
    """
    if everything:
        turn.touched |= turn.slots.keys()
    turn.touched |= turn.outdated.keys() | _due(turn)
    _settle_claims(turn)
    touched = [engine_id for engine_id in turn.slots if engine_id in turn.touched]
    claims = _claims(turn, touched)
    for engine_id in touched:
        _follow(turn, engine_id, claims)
        _drain(turn, engine_id)
    if turn.news or turn.applicants or everything:
        admit(turn, afresh=everything)
    wake_at = _wake_at(turn)
    if wake_at != turn.before.wake_at:
        turn.intents.append(WakeAt(wake_at))
    return wake_at


def _due(turn: Turn) -> set[str]:
    """Engine ids with an incarnation whose time has come."""
    wake_at = turn.before.wake_at
    if wake_at is None or turn.now < wake_at:
        return set()
    return {
        engine_id
        for engine_id, slot in turn.slots.items()
        for entry in slot.entries
        if entry.due_at is not None and entry.due_at <= turn.now
    }


def _wake_at(turn: Turn) -> float | None:
    earliest: float | None = None
    for slot in turn.slots.values():
        for entry in slot.draining if slot.current is None else (slot.current, *slot.draining):
            due_at = entry.due_at
            if due_at is not None and (earliest is None or due_at < earliest):
                earliest = due_at
    return earliest


def _settle_claims(turn: Turn) -> None:
    """Note who has come to which address; whoever is at an address that changed hands is touched by it."""
    changed: set[tuple[str, int] | None] = set()
    for engine_id in list(turn.touched):
        slot = turn.slots.get(engine_id)
        if slot is None:
            continue
        address = claimed_address(slot)
        if address != slot.address:
            changed |= {slot.address, address}
            number = turn.next_number() if address is not None else slot.claimed
            turn.put(replace(slot, address=address, claimed=number))
    changed.discard(None)
    if changed:
        turn.touched |= {engine_id for engine_id, slot in turn.slots.items() if slot.address in changed}


def _claims(turn: Turn, touched: Sequence[str]) -> Claims:
    """Who has each address that matters now: of several that may serve there, the one that came to it last.

    Addresses are reused, and a pod's deletion can reach us after its successor's start.
    """
    claims: dict[tuple[str, int], Slot] = {}
    asked = {turn.slots[engine_id].address for engine_id in touched}
    for slot in turn.slots.values():
        if slot.address is not None and slot.address in asked:
            holder = claims.get(slot.address)
            if holder is None or holder.claimed < slot.claimed:
                claims[slot.address] = slot
    return claims


def _follow(turn: Turn, engine_id: str, claims: Claims) -> None:
    slot = turn.slots[engine_id]
    wish = desire(slot, claims)
    entry = slot.current
    if wish is None:
        if entry is not None:
            turn.retire(engine_id, entry, Cause.LET_GO, "shutting down" if turn.leaving is not None else "removed")
        return
    failures = 0
    canary = False
    if entry is not None:
        over = turn.outdated.pop(engine_id, None)
        if over is not None:
            if over is Cause.DUE:
                canary = entry.canary  # a probe asks for health only, and that may not be what was wrong
            turn.retire(engine_id, entry, over, _over(entry, over))
            entry = None
        elif not _same(entry, wish):
            turn.retire(engine_id, entry, Cause.REPLACED, "its address, role or process changed")
            entry = None
        elif entry.state is State.UNREADY and entry.next_at is not None and entry.next_at <= turn.now:
            canary = entry.canary
            turn.retire(engine_id, entry, Cause.DUE, _over(entry, Cause.DUE))
            entry = None
        elif entry.state is State.PROBING and not wish.eligible:
            failures, canary = entry.failures, entry.canary
            turn.retire(engine_id, entry, Cause.HELD_BACK, wish.reason)
            entry = None
    if entry is None:
        entry = turn.create(engine_id, wish, failures=failures, canary=canary)
    entry = turn.change(engine_id, entry, name=wish.wanted.name, generations=wish.generations)
    if wish.eligible:
        _may_serve(turn, engine_id, entry)
    else:
        _held_back(turn, engine_id, entry, wish)


def _may_serve(turn: Turn, engine_id: str, entry: Entry) -> None:
    due = entry.due_at is not None and entry.due_at <= turn.now
    match entry.state:
        case State.WAITING:
            _probe(turn, engine_id, entry, Cause.MAY_SERVE)
        case State.FAILED if due:
            _probe(turn, engine_id, entry, Cause.DUE)
        case State.UNREADY if entry.lost:
            reason = "its connection was lost while it was not ready"
            entry = turn.move(engine_id, entry, Cause.MAY_SERVE, State.SUSPECT, reason, next_at=turn.now)
            turn.check(engine_id, entry)
        case State.UNREADY:
            turn.applicants[engine_id] = Cause.MAY_SERVE
        case State.SERVING | State.SUSPECT | State.REFUSED if due:
            turn.check(engine_id, entry)
        case _:
            pass


def _held_back(turn: Turn, engine_id: str, entry: Entry, wish: Desire) -> None:
    match entry.state:
        case State.FAILED:
            turn.move(engine_id, entry, Cause.HELD_BACK, State.WAITING, wish.reason, next_at=None)
        case State.REFUSED | State.SERVING | State.SUSPECT:
            lost = entry.lost or entry.state is State.SUSPECT
            keep_until = turn.now + turn.settings.keep_unready
            turn.move(engine_id, entry, Cause.HELD_BACK, State.UNREADY, wish.reason, next_at=keep_until, lost=lost)
            turn.applicants.pop(engine_id, None)
        case _:
            turn.change(engine_id, entry, reason=wish.reason)


def _probe(turn: Turn, engine_id: str, entry: Entry, cause: Cause) -> None:
    assert entry.target is not None
    turn.move(engine_id, entry, cause, State.PROBING, next_at=None)
    turn.intents.append(StartProbe(engine_id, entry.incarnation, entry.target))


def _same(entry: Entry, wish: Desire) -> bool:
    """Whether what we have is what is wanted: the same process, at the same address, with the same hints.

    A pod that has lost its address for a moment (or for good) is told by its generation.
    """
    target = wish.wanted.target
    known = entry.generations.keys() & wish.generations.keys()
    unchanged = bool(known) and all(entry.generations[feed] == wish.generations[feed] for feed in known)
    return unchanged and (target is None or target == entry.target)


def _over(entry: Entry, cause: Cause) -> str:
    match cause:
        case Cause.DUE:
            return f"{entry.state} for too long: {entry.reason}"
        case Cause.REPLACED:
            return "the engine process restarted"
        case _:
            return "it stopped answering"


def _drain(turn: Turn, engine_id: str) -> None:
    slot = turn.slots.get(engine_id)
    for entry in slot.draining if slot is not None else ():
        if entry.next_at is None or entry.next_at > turn.now:
            continue
        if entry.cut:
            turn.bury(engine_id, entry, Cause.DUE, "its streams did not end when they were cut")
            turn.intents.append(CloseEngine(engine_id, entry.incarnation))
        else:
            turn.change_draining(engine_id, entry, cut=True, next_at=turn.now + turn.settings.cut_grace)
            turn.intents.append(CutStreams(engine_id, entry.incarnation))
