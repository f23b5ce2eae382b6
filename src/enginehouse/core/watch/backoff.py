"""How long to wait before which request. Randomness is an argument: `roll`, from 0 up to 1."""

from __future__ import annotations

from dataclasses import dataclass

from enginehouse.core.watch.inputs import Failure, FailureKind

_RETRY_AFTER_LIMIT = 120.0
_RESUME_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Pace:
    """The machine's times, in seconds. `adapters.kube.KubeSettings` declares and explains them."""

    resync_interval: float
    watch_timeout: float
    watch_grace: float
    idle_limit: float
    backoff_first: float
    backoff_limit: float
    unreachable_limit: float
    healthy_after: float

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
