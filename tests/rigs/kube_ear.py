"""Listens to a pod feed as the fleet would, and waits for what it says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from enginehouse.adapters.kube import PodFeed
from enginehouse.domain.feed import FeedEvent, FeedListed, Wanted


class Ear:
    """What a feed has said so far."""

    def __init__(self, feed: PodFeed) -> None:
        self.feed = feed
        self.events: list[FeedEvent] = []
        self._by_owner: dict[str, tuple[Wanted, ...]] = {}

    def post(self, event: FeedEvent) -> None:
        self.events.append(event)
        if isinstance(event, FeedListed):
            self._by_owner = {}
            for one in event.wanted:
                self._by_owner[one.owner] = (*self._by_owner.get(one.owner, ()), one)
        elif event.wanted:
            self._by_owner[event.owner] = event.wanted
        else:
            self._by_owner.pop(event.owner, None)

    def wanted(self, name: str) -> Wanted:
        """The one engine of a pod."""
        (found,) = (one for one in self.all() if one.pod is not None and one.pod.name == name)
        return found

    def all(self) -> list[Wanted]:
        return [one for engines in self._by_owner.values() for one in engines]

    def pods(self) -> list[str]:
        """Names of all pods that match, one for each engine."""
        return sorted(one.pod.name for one in self.all() if one.pod is not None)

    def serving(self) -> list[str]:
        return sorted(one.pod.name for one in self.all() if one.pod is not None and one.eligible)

    async def until(self, what: Callable[[], object]) -> None:
        """Wait for something to come true; the limit is only a safety net."""
        try:
            async with asyncio.timeout(30):
                while not what():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            said = "\n".join(map(str, self.events[-5:]))
            raise AssertionError(f"did not come true; {self.feed.status()}\n{said}") from None

    async def until_serving(self, *names: str) -> None:
        await self.until(lambda: self.serving() == sorted(names))

    async def until_watching(self) -> None:
        await self.until(lambda: self.feed.status().state == "watching")


@contextlib.asynccontextmanager
async def listening(feed: PodFeed) -> AsyncIterator[Ear]:
    """Run a feed for the length of the block; a feed that ends by itself fails the test."""
    ear = Ear(feed)
    running = asyncio.create_task(feed.run(ear.post), name="feed")
    try:
        yield ear
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
