"""May traffic come here, and how does the frontend leave: readiness with its reasons, and the ordered shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from enginehouse.core.membership.roles import Topology
from enginehouse.service.fleet import Fleet
from enginehouse.service.models import Models

log = structlog.get_logger("enginehouse.shutdown")


class Readiness:
    """Ready: every feed has listed once, the model can be served now, and we are not leaving."""

    def __init__(self, fleet: Fleet, models: Models, pairs: Callable[[], str | None] | None = None) -> None:
        """pairs: where prefill and decode are apart, why no two engines would be found for a request."""
        self._fleet = fleet
        self._models = models
        self._pairs = pairs
        self.leaving = False

    def reasons(self) -> list[str]:
        """Why not; empty when ready."""
        if self.leaving:
            return ["shutting down"]
        reasons = [
            f"feed {status.feed}: not listed yet" + (f" ({status.error})" if status.error else "")
            for status in (feed.status for feed in self._fleet.view().feeds)
            if not status.synced
        ]
        apart = self._fleet.topology is Topology.DISAGGREGATED
        if not self._fleet.serving.get():
            reasons.append("no decode engine serves" if apart else "no engine serves")
        elif apart and self._pairs is not None and (lack := self._pairs()) is not None:
            reasons.append(lack)
        elif self._models.current is None:
            reasons.append(self._models.problem or "the model's tokenizer is being loaded")
        return reasons


async def leave(
    readiness: Readiness,
    *,
    discourage: Callable[[], None],
    grace: float,
    stop_accepting: Callable[[], None],
    close: Callable[[float], Awaitable[int]],
    timeout: float,
) -> None:
    """Leave without cutting anybody who can be spared.

    Not ready; `grace` seconds in which everybody is still served while load balancers notice; no new connections; up to
    `timeout` seconds for running answers; then cut.
    """
    readiness.leaving = True
    discourage()
    log.info("leaving", grace=grace, timeout=timeout)
    await asyncio.sleep(grace)
    stop_accepting()
    cut = await close(timeout)
    log.info("left", cut=cut)
