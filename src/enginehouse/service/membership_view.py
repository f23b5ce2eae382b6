"""Decides what people get to read of the fleet: every engine, its state, reason, streams and times, at one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enginehouse.core.handover import meeting_point
from enginehouse.core.membership.fleet import Entry, Fleet, Slot
from enginehouse.core.membership.states import State
from enginehouse.domain.engine import Role
from enginehouse.domain.feed import FeedStatus, PodRef
from enginehouse.service.membership import EngineView, FeedView, FleetView

_TRIES = frozenset({State.FAILED, State.REFUSED, State.SUSPECT})


def view(
    fleet: Fleet,
    feeds: Sequence[FeedStatus],
    missing: tuple[str, ...],
    streams: Callable[[tuple[str, int]], int],
    now: float,
) -> FleetView:
    """Everything there is to know. `streams` counts what is in flight on an incarnation."""
    engines = [
        _engine(slot, entry, streams((slot.engine_id, entry.incarnation)), now)
        for slot in fleet.slots.values()
        for entry in slot.entries
    ]
    engines.sort(key=lambda engine: (engine.name, engine.incarnation))
    states: dict[State, int] = {state: 0 for state in State if state is not State.GONE}
    for engine in engines:
        states[engine.state] += 1
    return FleetView(
        card=fleet.card,
        topology=fleet.topology,
        topology_reason=fleet.topology_reason,
        engines=tuple(engines),
        feeds=tuple(_feed(status, now) for status in feeds),
        missing=missing,
        states=states,
    )


def _engine(slot: Slot, entry: Entry, streams: int, now: float) -> EngineView:
    left = None if entry.next_at is None else max(0.0, entry.next_at - now)
    hint = entry.target.role if entry.target is not None else None
    return EngineView(
        engine_id=slot.engine_id,
        incarnation=entry.incarnation,
        name=entry.name,
        state=entry.state,
        reason=entry.reason,
        url=entry.target.url if entry.target is not None else None,
        role=entry.role or hint,
        info=entry.info,
        feeds=tuple(sorted(slot.wants)) if entry is slot.current else (),
        pod=_pod(slot),
        state_seconds=max(0.0, now - entry.since),
        next_try=left if entry.state in _TRIES else None,
        kept_for=left if entry.state is State.UNREADY else None,
        drain_left=(0.0 if entry.cut else left) if entry.state is State.DRAINING else None,
        streams=streams,
        group=entry.target.group if entry.target is not None else None,
        meeting_point=_meeting_point(entry),
    )


def _meeting_point(entry: Entry) -> tuple[str, int] | None:
    if entry.role is not Role.PREFILL or entry.target is None or entry.info is None:
        return None
    return meeting_point(entry.target, entry.info)


def _pod(slot: Slot) -> PodRef | None:
    return next((want.pod for want in slot.wants.values() if want.pod is not None), None)


def _feed(status: FeedStatus, now: float) -> FeedView:
    return FeedView(
        status=status,
        age=None if status.confirmed_at is None else max(0.0, now - status.confirmed_at),
        next_try=None if status.next_try_at is None else max(0.0, status.next_try_at - now),
    )
