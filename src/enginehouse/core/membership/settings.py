"""Owns the times of membership: how long a link, a drain or a doubt may last, and how often an engine is asked."""

from __future__ import annotations

from dataclasses import dataclass

_UNMET_FIRST = 60.0
"""Seconds. Shorter would be little beside what the next such hand-over costs its client."""


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """Times of joining, checking and leaving."""

    drain_timeout: float = 300.0
    """Seconds that streams of a withdrawn engine may go on. Kubernetes kills a pod after its own grace period (30 s
    unless set); this one guards against streams that never end, so it is longer than most answers."""
    cut_grace: float = 5.0
    """Seconds between cutting the streams of a withdrawn engine and closing its link whatever they do."""
    close_timeout: float = 5.0
    """Seconds that closing a link in good order may take."""
    keep_unready: float = 60.0
    """Seconds that a pod which is not ready keeps its link and what is known of it, so that a flap costs no probe."""
    probe_timeout: float = 10.0
    """Seconds that one probe may take. A probe waits for nobody else and delays nobody else."""
    probe_retry_first: float = 0.1
    """Seconds before the second probe. Short: a pod is often Ready a moment before its engine listens."""
    probe_retry_max: float = 5.0
    """Longest pause in seconds between probes of an engine that may come up any moment."""
    probe_retry_permanent: float = 30.0
    """Longest pause in seconds between probes when the reason will not go away by waiting (wrong kind of server)."""
    retry_jitter: float = 0.25
    """Share of each pause that chance may take off, so that many frontends do not ask together."""
    check_interval: float = 5.0
    """Seconds between health checks of an engine that serves, or that answers but was refused. With `check_timeout` it
    is how long a hung engine can go unnoticed, and keep requests that others could answer."""
    check_timeout: float = 4.0
    """Seconds that a health check may take before it counts as failed. An engine that is only busy answers in time:
    its health has nothing to do with its queue."""
    canary_timeout: float = 20.0
    """Seconds that an engine which was mute may take for a few generated tokens before it stays out."""
    keep_suspect: float = 30.0
    """Seconds of failing checks after which a suspect engine is given up and probed anew, from the beginning."""
    failures_in_a_row: int = 3
    """Requests that an engine may fail one after another, none ending well in between, before it has to generate a
    few tokens to get more. An engine that fails everything is never busy, and would get most of them. 0: no limit."""
    doubt_window: float = 60.0
    """Seconds within which another doubt about the same engine delays its return, longer each time."""
    unmet_retry_max: float = 600.0
    """Longest time in seconds that an engine stays out whose hand-overs time out again and again. Each costs a request
    the whole `handover_timeout`, and no check of one engine alone finds the fault."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.retry_jitter > 1:
            raise ValueError("retry_jitter is a share and must not exceed 1")


def pause(settings: MembershipSettings, failures: int, *, permanent: bool, chance: float) -> float:
    """Seconds to wait after so many failures in a row (at least 1). `chance` is random, from 0 to below 1.

    Doubles from the first pause up to a limit and never gives up; `permanent` only stretches it.
    """
    first = settings.probe_retry_first * (10 if permanent else 1)
    limit = settings.probe_retry_permanent if permanent else settings.probe_retry_max
    grown = first * 2.0 ** min(failures - 1, 30)
    return float(min(limit, grown) * (1 - settings.retry_jitter * chance))


def unmet_pause(settings: MembershipSettings, in_a_row: int, *, chance: float) -> float:
    """Seconds that an engine stays out after so many hand-overs in a row (at least 1) that took too long.

    Nothing after the first, which may be the other engine's; then from a minute on, doubled each time up to a limit.
    """
    if in_a_row == 1:
        return 0.0
    grown = _UNMET_FIRST * 2.0 ** min(in_a_row - 2, 30)
    return float(min(settings.unmet_retry_max, grown) * (1 - settings.retry_jitter * chance))
