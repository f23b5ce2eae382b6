"""All state of the watch machine lives here.

Listings and the watch are two slots that live side by side: while a watch runs, a listing checks it now and then. Only
a listing can make the known pods the truth; only a watch keeps them so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from enginehouse.core.pods import PodRecord
from enginehouse.core.watch.inputs import Failure


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing under way."""

    attempt: int
    version: str = ""
    """Of the first page. All pages of one listing share it; empty: no page yet."""
    records: tuple[PodRecord, ...] = ()
    overtaken: bool = False
    """The watch has brought a pod since this listing was asked for: the watch is alive, and ahead of it."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch under way."""

    attempt: int
    started_at: float
    deadline: float
    """When even a server that forgot its own timeout must have ended it."""
    life_at: float
    """When it last said anything."""
    opened: bool = False
    spoke: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """Failures in a row of one slot."""

    count: int = 0
    last: Failure | None = None
    """None: all is well."""
    reloaded: bool = False
    """The last one was a 401 and the credentials were read again for it."""


@dataclass(frozen=True, slots=True)
class WatchState:
    """What is known, what is under way, and when what comes next."""

    feed: str
    known: Mapping[str, PodRecord] = field(default_factory=dict)
    """By owner (pod uid). Kept through every failure."""
    synced: bool = False
    version: str | None = None
    """Where a watch may go on; None: only a listing can tell."""
    listing: Listing | None = None
    list_at: float = 0.0
    """When the next listing is due."""
    list_trouble: Trouble = Trouble()
    watch: Watch | None = None
    watch_at: float = 0.0
    """Not before then may a watch be opened."""
    watch_trouble: Trouble = Trouble()
    resumed: bool = False
    """The watch was taken up again after a refusal, without listing: allowed once."""
    attempts: int = 0
    """Counts requests; numbers them."""
    listings: int = 0
    unmatched_deletions: int = 0
    """DELETED events for pods that were not known."""
    missed: int = 0
    """Listings that found what the watch had not said."""
    confirmed_at: float | None = None

    def check(self) -> None:
        """Assert what must always hold."""
        assert self.watch is None or self.version is not None
        assert all(owner == record.owner for owner, record in self.known.items())
        assert self.synced or not self.known
        assert self.synced or self.watch is None
        for slot in (self.listing, self.watch):
            assert slot is None or slot.attempt <= self.attempts
        assert self.listing is None or not self.listing.overtaken or self.synced
