"""What the watch machine asks its shell to do, in this order."""

from __future__ import annotations

from dataclasses import dataclass

from enginehouse.domain.feed import FeedEvent


@dataclass(frozen=True, slots=True)
class ListPage:
    """Get one page; answer with PageListed or ListFailed."""

    attempt: int
    more: str | None
    """The continue token; None: the first page."""


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """Open a watch; answer with WatchOpened, lines, and in the end WatchEnded."""

    attempt: int
    version: str
    timeout: int
    """For timeoutSeconds: when the server shall end the stream."""


@dataclass(frozen=True, slots=True)
class StopWatch:
    """Drop the connection of this watch; nothing it says counts any more."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ReloadCredentials:
    """Forget cached credentials: the server did not accept them."""


@dataclass(frozen=True, slots=True)
class Post:
    """Tell the fleet."""

    event: FeedEvent


Intent = ListPage | OpenWatch | StopWatch | ReloadCredentials | Post
