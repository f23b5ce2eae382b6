"""Decides what follows from what we know: every intent is derived here, from levels, never from the event itself.

Reconciling twice in a row does nothing the second time.
"""

from __future__ import annotations

from enginehouse.core.membership.admission import admit
from enginehouse.core.membership.fleet import Entry, Slot
from enginehouse.core.membership.intents import CloseEngine, CutStreams, StartProbe, WakeAt
from enginehouse.core.membership.states import Cause, State
from enginehouse.core.membership.turn import Turn
from enginehouse.core.membership.wants import Claims, Desire, claimed_address, desire


def reconcile(turn: Turn) -> float | None:
    """Bring every engine in line with what is wanted, known and due; return when to look again."""
    claims = _claims(turn)
    for engine_id in list(turn.slots):
        _follow(turn, engine_id, claims)
        _drain(turn, engine_id)
    admit(turn)
    wake_at = min(
        (t for slot in turn.slots.values() for e in slot.entries if (t := e.next_at) is not None), default=None
    )
    if wake_at != turn.before.wake_at:
        turn.intents.append(WakeAt(wake_at))
    return wake_at


def _claims(turn: Turn) -> Claims:
    """Who has which address. Addresses are reused, and a pod's deletion can reach us after its successor's start."""
    claims: dict[tuple[str, int], Slot] = {}
    for engine_id, slot in list(turn.slots.items()):
        address = claimed_address(slot)
        if address != slot.address:
            slot = turn.put(_claim(turn, slot, address))
        if address is not None and engine_id in turn.slots:
            holder = claims.get(address)
            if holder is None or holder.claimed < slot.claimed:
                claims[address] = slot
    return claims


def _claim(turn: Turn, slot: Slot, address: tuple[str, int] | None) -> Slot:
    number = turn.next_number() if address is not None else slot.claimed
    return Slot(slot.engine_id, slot.wants, slot.current, slot.draining, address, number)


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
            what = "the engine process restarted" if over is Cause.REPLACED else "it stopped answering"
            turn.retire(engine_id, entry, over, what)
            entry = None
        elif not _same(entry, wish):
            turn.retire(engine_id, entry, Cause.REPLACED, "its address, role or process changed")
            entry = None
        elif _given_up(turn, entry):
            canary = entry.canary  # a probe asks for health only, and that was not what was wrong
            turn.retire(engine_id, entry, Cause.DUE, f"{entry.state} for too long: {entry.reason}")
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
    due = entry.next_at is not None and entry.next_at <= turn.now
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


def _given_up(turn: Turn, entry: Entry) -> bool:
    match entry.state:
        case State.UNREADY:
            return entry.next_at is not None and entry.next_at <= turn.now
        case State.SUSPECT:
            return entry.failures > 0 and turn.now - entry.since >= turn.settings.keep_suspect
        case _:
            return False


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
