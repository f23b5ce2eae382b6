"""Owns the one step of membership: an event in, the next fleet and what to do about it out.

No clock, no chance, no I/O: `now` is an argument, and so is each event's share of chance.
"""

from __future__ import annotations

from enginehouse.core.membership.absorb import absorb
from enginehouse.core.membership.events import Event
from enginehouse.core.membership.fleet import Fleet
from enginehouse.core.membership.intents import Intent
from enginehouse.core.membership.reconcile import reconcile
from enginehouse.core.membership.turn import Turn


def step(fleet: Fleet, event: Event, now: float) -> tuple[Fleet, tuple[Intent, ...]]:
    """Take in one event, then derive everything from the new levels."""
    turn = Turn(fleet, now)
    absorb(turn, event)
    return turn.finish(reconcile(turn))


def settle(fleet: Fleet, now: float) -> tuple[Fleet, tuple[Intent, ...]]:
    """Derive everything again, for every engine, without news. Does nothing if no step has missed anything."""
    turn = Turn(fleet, now)
    return turn.finish(reconcile(turn, everything=True))
