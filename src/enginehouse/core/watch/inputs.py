"""What may be said to the watch machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from enginehouse.core.pods import PodRecord


class FailureKind(StrEnum):
    """How a request to the API server failed."""

    UNREACHABLE = "unreachable"
    """No connection: refused, no route, name not found, TLS failed. Cheap to try again."""
    REFUSED = "refused"
    """The server answered with an HTTP error, or with an ERROR event; `status` has the code."""
    BROKEN = "broken"
    """The connection broke, or what came was not Kubernetes' JSON."""
    SILENT = "silent"
    """Nothing came within the time limit."""
    CREDENTIALS = "credentials"
    """Our own side: token file unreadable, exec plugin failed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request, with a text that an operator can act on."""

    kind: FailureKind
    text: str
    status: int | None = None
    retry_after: float | None = None
    """Seconds, as the server asked."""

    @property
    def expired(self) -> bool:
        """The version that was asked for is too old. Servers differ in reason and message, never in the code."""
        return self.status == 410

    @property
    def unauthorized(self) -> bool:
        """The credentials are not accepted (any more)."""
        return self.status == 401


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class PageListed:
    """One page of a listing."""

    attempt: int
    version: str
    records: tuple[PodRecord, ...]
    more: str | None = None
    """The continue token, if there are more pages."""


@dataclass(frozen=True, slots=True)
class ListFailed:
    """A listing failed, on whatever page."""

    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class WatchOpened:
    """The server accepted the watch."""

    attempt: int


@dataclass(frozen=True, slots=True)
class PodChanged:
    """ADDED or MODIFIED: the pod as it is now."""

    attempt: int
    record: PodRecord


@dataclass(frozen=True, slots=True)
class PodGone:
    """DELETED: the pod is gone, or the selector no longer matches it."""

    attempt: int
    owner: str
    version: str


@dataclass(frozen=True, slots=True)
class Bookmark:
    """No news up to this version."""

    attempt: int
    version: str


@dataclass(frozen=True, slots=True)
class IgnoredLine:
    """An event of a type that we do not know: a sign of life, nothing more."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """ERROR inside the stream: a Status, never a pod, and its version is never kept."""

    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class WatchEnded:
    """The watch request is over. No failure: the server closed the stream in good order."""

    attempt: int
    failure: Failure | None = None


Line = PodChanged | PodGone | Bookmark | IgnoredLine | StreamFailed
Input = Tick | PageListed | ListFailed | WatchOpened | Line | WatchEnded
