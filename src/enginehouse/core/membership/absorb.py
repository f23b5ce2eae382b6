"""Decides what one event tells us: it updates what we know, and starts nothing.

What follows from it is `reconcile`'s business, which looks at the result only. So an event told twice is harmless.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from enginehouse.core.membership.events import (
    CheckFailed,
    CheckPassed,
    Doubt,
    Doubted,
    Event,
    Leaving,
    Probed,
    ProbeRefused,
    StreamsIdle,
    Woke,
)
from enginehouse.core.membership.fleet import Entry
from enginehouse.core.membership.intents import CloseEngine, Forsake, Ignored
from enginehouse.core.membership.settings import pause, unmet_pause
from enginehouse.core.membership.states import Cause, State
from enginehouse.core.membership.turn import Turn
from enginehouse.domain.engine import EngineInfo, Role
from enginehouse.domain.feed import FeedApplied, FeedListed


def absorb(turn: Turn, event: Event) -> None:
    """Take in one event."""
    match event:
        case FeedListed() | FeedApplied() if turn.leaving is not None:
            pass  # nothing is wanted any more, whatever feeds say
        case FeedListed():
            _listed(turn, event)
        case FeedApplied():
            _applied(turn, event)
        case Probed():
            _probed(turn, event)
        case ProbeRefused():
            _probe_refused(turn, event)
        case CheckPassed():
            _check_passed(turn, event)
        case CheckFailed():
            _check_failed(turn, event)
        case Doubted():
            _doubted(turn, event)
        case StreamsIdle():
            _idle(turn, event)
        case Woke():
            pass
        case Leaving():
            _leaving(turn, event)
        case _:
            assert_never(event)


def _listed(turn: Turn, event: FeedListed) -> None:
    if event.feed not in turn.listed:
        turn.listed |= {event.feed}
        turn.news = True
    wanted = {want.engine_id: want for want in event.wanted}
    for engine_id, slot in list(turn.slots.items()):
        if event.feed in slot.wants and engine_id not in wanted:
            turn.set_wants(engine_id, event.feed, None)
    for engine_id, want in wanted.items():
        turn.set_wants(engine_id, event.feed, want)


def _applied(turn: Turn, event: FeedApplied) -> None:
    wanted = {want.engine_id: want for want in event.wanted}
    for engine_id, slot in list(turn.slots.items()):
        before = slot.wants.get(event.feed)
        if before is not None and before.owner == event.owner and engine_id not in wanted:
            turn.set_wants(engine_id, event.feed, None)
    for engine_id, want in wanted.items():
        turn.set_wants(engine_id, event.feed, want)


def _probed(turn: Turn, event: Probed) -> None:
    entry = turn.current(event.engine_id, event.incarnation)
    if entry is None:
        turn.intents.append(CloseEngine(event.engine_id, event.incarnation))
        return
    turn.change(event.engine_id, entry, info=event.info, failures=0)
    turn.applicants[event.engine_id] = Cause.PROBED


def _probe_refused(turn: Turn, event: ProbeRefused) -> None:
    entry = turn.current(event.engine_id, event.incarnation)
    if entry is None:
        return
    failures = entry.failures + 1
    wait = pause(turn.settings, failures, permanent=event.permanent, chance=event.chance)
    turn.move(
        event.engine_id,
        entry,
        Cause.PROBE_FAILED,
        State.FAILED,
        event.reason,
        failures=failures,
        next_at=turn.now + wait,
    )


def _check_passed(turn: Turn, event: CheckPassed) -> None:
    entry = _checked(turn, event)
    if entry is None:
        return
    if not _same_process(entry, event.info):
        turn.outdated[event.engine_id] = Cause.REPLACED
        return
    if entry.next_at is not None and entry.state is not State.UNREADY:
        # Doubted once more while this check was under way, which may have passed before that happened: check again.
        turn.change(event.engine_id, entry, checking=False, info=event.info)
        return
    interval = turn.settings.check_interval * (1 - turn.settings.retry_jitter * event.chance)
    news = event.info != entry.info
    entry = turn.change(
        event.engine_id,
        entry,
        checking=False,
        info=event.info,
        failures=0,
        lost=False,
        returns=entry.returns + (entry.lost and event.info.instance_id is None),
        canary=False,
        next_at=entry.next_at if entry.state is State.UNREADY else turn.now + interval,
    )
    if entry.state is State.SUSPECT or (entry.state is State.SERVING and news):
        turn.applicants[event.engine_id] = Cause.CHECK_PASSED


def _check_failed(turn: Turn, event: CheckFailed) -> None:
    entry = _checked(turn, event)
    if entry is None:
        return
    failures = entry.failures + 1
    next_at = turn.now + pause(turn.settings, failures, permanent=False, chance=event.chance)
    entry = turn.change(event.engine_id, entry, checking=False, lost=True, failures=failures)
    if entry.state is not State.REFUSED:
        turn.intents.append(Forsake(event.engine_id, event.incarnation))
    match entry.state:
        case State.SERVING:
            turn.move(event.engine_id, entry, Cause.CHECK_FAILED, State.SUSPECT, event.reason, next_at=next_at)
        case State.SUSPECT if turn.now - entry.since >= turn.settings.keep_suspect:
            turn.change(event.engine_id, entry, reason=event.reason)
            turn.outdated[event.engine_id] = Cause.DUE
        case State.SUSPECT:
            turn.change(event.engine_id, entry, reason=event.reason, next_at=next_at)
        case State.REFUSED:
            turn.outdated[event.engine_id] = Cause.CHECK_FAILED
        case _:
            pass  # UNREADY: it has to pass a check before it returns


def _doubted(turn: Turn, event: Doubted) -> None:
    entry = turn.current(event.engine_id, event.incarnation)
    if entry is None:
        return
    match entry.state:
        case State.SERVING:
            _suspect(turn, event, entry)
        case State.SUSPECT | State.REFUSED if entry.checking or entry.state is State.REFUSED:
            turn.change(event.engine_id, entry, lost=True, next_at=turn.now + turn.settings.probe_retry_first)
        case State.UNREADY:
            turn.change(event.engine_id, entry, lost=True)
        case _:
            pass  # a check is coming anyway, or it has nothing to lose


def _suspect(turn: Turn, event: Doubted, entry: Entry) -> None:
    since = entry.doubted_at
    recent = since is not None and turn.now - since <= turn.settings.doubt_window
    doubts = entry.doubts + 1 if recent else 1
    canary = event.doubt is not Doubt.LOST or doubts > 1
    lost = entry.lost or event.doubt is Doubt.LOST
    entry = turn.change(event.engine_id, entry, doubts=doubts, doubted_at=turn.now, canary=canary, lost=lost)
    if event.doubt in (Doubt.MUTE, Doubt.FAILING, Doubt.UNMET) and not _another_serves(turn, entry):
        # Slow to answer may only be full, and failures may be the requests' own fault. Then taking out the last engine
        # of its pool would turn little into nothing. It stays until the canary fails too.
        turn.change(event.engine_id, entry, next_at=turn.now)
        return
    wait = 0.0 if doubts == 1 else pause(turn.settings, doubts, permanent=False, chance=event.chance)
    if event.doubt is Doubt.UNMET:
        wait = max(wait, unmet_pause(turn.settings, event.in_a_row, chance=event.chance))
    turn.move(event.engine_id, entry, Cause.DOUBTED, State.SUSPECT, event.reason, next_at=turn.now + wait)


def _another_serves(turn: Turn, entry: Entry) -> bool:
    prefill = entry.role is Role.PREFILL
    return any(
        other.incarnation != entry.incarnation and (other.role is Role.PREFILL) is prefill for other in turn.serving()
    )


def _idle(turn: Turn, event: StreamsIdle) -> None:
    slot = turn.slots.get(event.engine_id)
    for entry in slot.draining if slot is not None else ():
        if entry.incarnation == event.incarnation:
            turn.bury(event.engine_id, entry, Cause.IDLE, entry.reason)
            turn.intents.append(CloseEngine(event.engine_id, event.incarnation))
            return
    turn.intents.append(Ignored(event.engine_id, event.incarnation))


def _leaving(turn: Turn, event: Leaving) -> None:
    turn.leaving = event.drain
    deadline = turn.now + event.drain
    for engine_id, slot in list(turn.slots.items()):
        turn.put(replace(slot, wants={}))
        for entry in slot.draining:
            if entry.next_at is not None and entry.next_at > deadline:
                turn.change_draining(engine_id, entry, next_at=deadline)


def _checked(turn: Turn, event: CheckPassed | CheckFailed) -> Entry | None:
    entry = turn.current(event.engine_id, event.incarnation)
    if entry is not None and not entry.checking:
        turn.intents.append(Ignored(event.engine_id, event.incarnation))
        return None
    return entry


def _same_process(entry: Entry, info: EngineInfo) -> bool:
    """Whether what answered the check is the process that was probed.

    Where the protocol names the process, that decides. Where it does not, a process that was never out of reach is the
    same, and one that was is taken for the same if it says the same of itself.
    """
    before = entry.info
    assert before is not None
    if before.instance_id is not None or info.instance_id is not None:
        return before.instance_id == info.instance_id
    return not entry.lost or replace(before, loras=()) == replace(info, loras=())
