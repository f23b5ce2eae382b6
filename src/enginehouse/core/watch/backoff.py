"""How long to wait before which request. Randomness is an argument: `roll`, from 0 up to 1."""

from __future__ import annotations

from dataclasses import dataclass

from enginehouse.core.watch.inputs import Failure, FailureKind

_RETRY_AFTER_LIMIT = 120.0
_RESUME_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Pace:
    """The machine's times, in seconds. Those without a default are settings, declared in `adapters.kube`."""

    resync_interval: float
    watch_timeout: float
    idle_limit: float
    backoff_limit: float
    watch_grace: float = 30.0
    """How long after timeoutSeconds a server may still end the stream by itself."""
    backoff_first: float = 0.2
    """The first wait; doubled from failure to failure."""
    unreachable_limit: float = 1.2
    """The longest wait while there is no connection: short, as outages end unannounced."""
    healthy_after: float = 5.0
    """A watch that lived so long forgets the failures before it."""

    def next_listing(self, roll: float) -> float:
        """Seconds to the next safety listing: never more than the interval, spread so that frontends do not march."""
        return self.resync_interval * (0.8 + 0.2 * roll)

    def timeout_seconds(self, roll: float) -> int:
        """Return a watch's timeoutSeconds: between one and two times the setting, so that reconnects spread out."""
        return max(1, int(self.watch_timeout * (1 + roll)))

    def resume(self, roll: float) -> float:
        """Seconds before a watch that ended in good order goes on."""
        return _RESUME_JITTER * roll

    def retry(self, failure: Failure, failures: int, roll: float) -> float:
        """Seconds before the next try, after so many failures in a row (at least one).

        An API server that refuses connections is asked again soon, because the question costs nearly nothing and its
        return is what everybody waits for. One that answers with errors is left more and more time.
        """
        limit = self.unreachable_limit if failure.kind is FailureKind.UNREACHABLE else self.backoff_limit
        wait = min(limit, self.backoff_first * 2.0 ** min(failures - 1, 30))
        wait *= 0.5 + 0.5 * roll
        if failure.retry_after is not None:
            # On top, not instead: all clients were told the same number.
            wait = min(failure.retry_after, _RETRY_AFTER_LIMIT) + self.backoff_first * roll
        return wait
