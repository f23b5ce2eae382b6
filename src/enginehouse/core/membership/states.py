"""Owns the states of one incarnation of an engine and the only table of moves between them.

All state names live here; this file knows neither why a cause arises nor what is done about it. `docs/membership.md`
draws its picture from TABLE, so the picture cannot lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """Where an incarnation stands. A new one begins in WAITING."""

    WAITING = "waiting"
    """Known, but may not serve: not ready, no usable address, or wanted by two feeds that disagree."""
    PROBING = "probing"
    """May serve; we are connecting and asking what it is."""
    FAILED = "failed"
    """The last probe failed; the next one has a time."""
    REFUSED = "refused"
    """It answers, but does not fit the fleet. Its link stays, so that it joins at once when the fleet changes."""
    SERVING = "serving"
    """The only state that gets new requests."""
    SUSPECT = "suspect"
    """It served; something went wrong; it gets nothing until a check passes."""
    UNREADY = "unready"
    """It may not serve just now; link and knowledge are kept for a while."""
    DRAINING = "draining"
    """Withdrawn for good: streams in flight go on until they end or the deadline."""
    GONE = "gone"
    """Nothing is left of it. Whatever it still says changes nothing."""


class Cause(StrEnum):
    """Why an incarnation moves."""

    MAY_SERVE = "may serve"
    HELD_BACK = "may not serve"
    LET_GO = "no longer wanted"
    REPLACED = "another process or address"
    PROBED = "probe passed"
    PROBE_FAILED = "probe failed"
    CHECK_PASSED = "check passed"
    CHECK_FAILED = "check failed"
    DOUBTED = "in doubt"
    CARD_MOVED = "the fleet changed"
    DUE = "time is up"
    IDLE = "no stream left"


class ImpossibleMove(AssertionError):
    """A move that the table does not list: a bug of ours, never an engine's doing."""


def _to(*states: State) -> frozenset[State]:
    return frozenset(states)


TABLE: Mapping[State, Mapping[Cause, frozenset[State]]] = {
    State.WAITING: {
        Cause.MAY_SERVE: _to(State.PROBING),
        Cause.LET_GO: _to(State.GONE),
        Cause.REPLACED: _to(State.GONE),
    },
    State.PROBING: {
        # SUSPECT when its predecessor was given up for being mute: it has to generate a token first.
        Cause.PROBED: _to(State.SERVING, State.REFUSED, State.SUSPECT),
        Cause.PROBE_FAILED: _to(State.FAILED),
        # The probe is cancelled, and its number with it: a result that still arrives belongs to nobody. A new number
        # waits in its place.
        Cause.HELD_BACK: _to(State.GONE),
        Cause.LET_GO: _to(State.GONE),
        Cause.REPLACED: _to(State.GONE),
    },
    State.FAILED: {
        Cause.DUE: _to(State.PROBING),
        Cause.HELD_BACK: _to(State.WAITING),
        Cause.LET_GO: _to(State.GONE),
        Cause.REPLACED: _to(State.GONE),
    },
    State.REFUSED: {
        Cause.CARD_MOVED: _to(State.SERVING),
        Cause.CHECK_FAILED: _to(State.DRAINING),
        Cause.HELD_BACK: _to(State.UNREADY),
        Cause.LET_GO: _to(State.DRAINING),
        Cause.REPLACED: _to(State.DRAINING),
    },
    State.SERVING: {
        Cause.DOUBTED: _to(State.SUSPECT),
        Cause.CHECK_FAILED: _to(State.SUSPECT),
        Cause.CHECK_PASSED: _to(State.SERVING, State.REFUSED),
        Cause.HELD_BACK: _to(State.UNREADY),
        Cause.LET_GO: _to(State.DRAINING),
        Cause.REPLACED: _to(State.DRAINING),
    },
    State.SUSPECT: {
        Cause.CHECK_PASSED: _to(State.SERVING, State.REFUSED),
        Cause.HELD_BACK: _to(State.UNREADY),
        Cause.DUE: _to(State.DRAINING),
        Cause.LET_GO: _to(State.DRAINING),
        Cause.REPLACED: _to(State.DRAINING),
    },
    State.UNREADY: {
        # SUSPECT when the link was lost meanwhile: it must pass a check first.
        Cause.MAY_SERVE: _to(State.SERVING, State.REFUSED, State.SUSPECT),
        Cause.DUE: _to(State.DRAINING),
        Cause.LET_GO: _to(State.DRAINING),
        Cause.REPLACED: _to(State.DRAINING),
    },
    State.DRAINING: {
        Cause.IDLE: _to(State.GONE),
        Cause.DUE: _to(State.GONE),
    },
    State.GONE: {},
}

LINKED = frozenset({State.REFUSED, State.SERVING, State.SUSPECT, State.UNREADY, State.DRAINING})
"""States in which an incarnation holds an open link."""
KEPT = frozenset({State.SERVING, State.SUSPECT, State.UNREADY})
"""States in which what is known of an engine (its KV cache above all) is kept up to date."""


def permit(state: State, cause: Cause, to: State) -> State:
    """`to`, if the table lists it; else ImpossibleMove."""
    if to not in TABLE[state].get(cause, frozenset()):
        raise ImpossibleMove(f"{state} --{cause}--> {to} is not in the table")
    return to
