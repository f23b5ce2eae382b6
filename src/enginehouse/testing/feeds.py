"""Owns fake feeds: a test says what engines there are, in the words of the feed port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from enginehouse.domain.engine import Role, Target
from enginehouse.domain.feed import FeedApplied, FeedEvent, FeedListed, FeedStatus, PodRef, Wanted


def fake_wanted(
    engine_id: str,
    authority: str | None = "10.0.0.1:9000",
    *,
    eligible: bool = True,
    reason: str = "",
    generation: str = "1",
    role: Role | None = None,
    owner: str | None = None,
) -> Wanted:
    """One engine as a feed names it; `authority` is `host:port`, None for no address."""
    owner = owner or engine_id
    return Wanted(
        engine_id=engine_id,
        owner=owner,
        name=f"ns/{engine_id}",
        target=None if authority is None else replace(Target.parse(f"grpc://{authority}"), role=role),
        generation=generation,
        eligible=eligible and authority is not None,
        reason=reason or ("" if eligible and authority is not None else "not ready"),
        pod=PodRef("ns", owner, owner),
    )


class FakeFeed:
    """The Feed port. What is said before it runs is said when it does."""

    def __init__(self, name: str = "pods") -> None:
        self.name = name
        self._post: Callable[[FeedEvent], None] | None = None
        self._early: list[FeedEvent] = []
        self._status = FeedStatus(name, "fake", synced=False, confirmed_at=None)

    def list(self, *wanted: Wanted) -> None:
        """Say everything that there is."""
        self._status = replace(self._status, synced=True, listings=self._status.listings + 1)
        self._say(FeedListed(self.name, wanted))

    def apply(self, *wanted: Wanted) -> None:
        """Say what one owner stands for now."""
        self._say(FeedApplied(self.name, wanted[0].owner, wanted))

    def delete(self, owner: str) -> None:
        """Say that an owner is gone."""
        self._say(FeedApplied(self.name, owner, ()))

    async def run(self, post: Callable[[FeedEvent], None]) -> None:
        self._post = post
        for event in self._early:
            post(event)
        self._early.clear()
        try:
            await asyncio.Event().wait()
        finally:
            self._post = None

    def status(self) -> FeedStatus:
        return self._status

    def _say(self, event: FeedEvent) -> None:
        if self._post is None:
            self._early.append(event)
        else:
            self._post(event)
