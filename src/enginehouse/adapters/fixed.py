"""Engines named once and for all, as a feed that speaks once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from enginehouse.core.engine_list import engines
from enginehouse.domain.engine import Target
from enginehouse.domain.feed import FeedEvent, FeedListed, FeedStatus


class FixedFeed:
    """A fixed list of engines. Raises InvalidTarget if one is given twice."""

    def __init__(self, targets: Sequence[Target], name: str = "engines") -> None:
        self.name = name
        self._wanted = engines(targets)
        self._posted_at: float | None = None

    def status(self) -> FeedStatus:
        """Say whether the list was handed over; it never ages."""
        return FeedStatus(
            feed=self.name,
            kind="fixed",
            synced=self._posted_at is not None,
            confirmed_at=self._posted_at,
            listings=int(self._posted_at is not None),
            state="fixed",
        )

    async def run(self, post: Callable[[FeedEvent], None]) -> None:
        """Post the list and return."""
        self._posted_at = asyncio.get_running_loop().time()
        post(FeedListed(self.name, self._wanted))
