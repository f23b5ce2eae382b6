"""Owns engines that the program itself adds and removes: a feed of its own, whose `add` waits for the outcome."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from enginehouse.core.membership.fleet import Fleet
from enginehouse.core.membership.states import State
from enginehouse.domain.engine import Target
from enginehouse.domain.errors import ProbeFailed
from enginehouse.domain.feed import FeedApplied, Wanted
from enginehouse.service.membership import Counters, Member
from enginehouse.service.membership_watches import Watches

log = structlog.get_logger("enginehouse.fleet")

_FEED = "api"


class Additions:
    """`state` is the fleet as it is now, `pending` whether events wait that it does not show yet."""

    def __init__(
        self,
        post: Callable[[FeedApplied], None],
        state: Callable[[], Fleet],
        pending: Callable[[], bool],
        watches: Watches,
        counters: Counters,
    ) -> None:
        self._post = post
        self._state = state
        self._pending = pending
        self._watches = watches
        self._counters = counters

    async def add(self, target: Target) -> Member:
        """Bring an engine in; return when it serves. Raises ProbeFailed, and then nothing of it stays."""
        engine_id = target.url
        ours = self._state().current(engine_id) is None
        if ours:
            wanted = Wanted(engine_id, engine_id, target.url, target, generation="", eligible=True)
            self._post(FeedApplied(_FEED, engine_id, (wanted,)))
        else:
            self._refuse_other_options(engine_id, target)
        try:
            return await self._admitted(engine_id)
        except BaseException:
            if ours:
                self._post(FeedApplied(_FEED, engine_id, ()))
            raise

    def remove(self, engine_id: str) -> bool:
        """Withdraw an engine that was added. False: nothing of this id was."""
        slot = self._state().slots.get(engine_id)
        if slot is None or _FEED not in slot.wants:
            self._counters.removals_missed += 1
            log.warning("nothing to remove", engine=engine_id, known=slot is not None)
            return False
        self._post(FeedApplied(_FEED, engine_id, ()))
        return True

    async def _admitted(self, engine_id: str) -> Member:
        while True:
            seen = self._watches.steps.version
            entry = self._state().current(engine_id)
            if entry is None and not self._pending():
                raise ProbeFailed(f"{engine_id} was removed while it was being added")
            if entry is not None and entry.state is State.SERVING:
                return self._watches.member(engine_id, entry)
            if entry is not None and entry.state not in (State.PROBING, State.SUSPECT):
                raise ProbeFailed(entry.reason, permanent=entry.state is State.REFUSED)
            await self._watches.steps.changed(seen)

    def _refuse_other_options(self, engine_id: str, target: Target) -> None:
        entry = self._state().current(engine_id)
        there = entry.target if entry is not None else None
        for what in ("role", "protocol"):
            asked, has = getattr(target, what), getattr(there, what, None)
            if asked is not None and asked != has:
                raise ProbeFailed(f"{engine_id} is there already, with {what} {has or 'not given'}", permanent=True)
