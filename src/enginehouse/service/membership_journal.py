"""Decides which moves operators read in the log, and counts them all."""

from __future__ import annotations

import structlog

from enginehouse.core.membership.fleet import Fleet
from enginehouse.core.membership.intents import Moved
from enginehouse.core.membership.states import Cause, State
from enginehouse.service.membership import Counters

log = structlog.get_logger("enginehouse.fleet")


def record(move: Moved, fleet: Fleet, counters: Counters) -> None:
    """Note one move. `fleet` is as it was left by the step that made it."""
    counters.admissions += move.now is State.SERVING
    counters.withdrawals += move.was is State.SERVING
    counters.refusals += move.now is State.REFUSED
    counters.suspicions += move.now is State.SUSPECT
    tell = log.info if _worth_telling(move, fleet) else log.debug
    tell(
        "probe failed" if move.cause is Cause.PROBE_FAILED else f"engine {move.now}",
        engine=move.name,
        incarnation=move.incarnation,
        was=move.was.value,
        cause=move.cause.value,
        reason=move.reason,
    )


def _worth_telling(move: Moved, fleet: Fleet) -> bool:
    """Not each try of an engine that has been failing for long: the first, the second, the fourth, the eighth, ..."""
    if move.cause is Cause.PROBE_FAILED:
        entry = fleet.find(move.engine_id, move.incarnation)
        return entry is None or entry.failures.bit_count() == 1
    return move.now is not State.PROBING
