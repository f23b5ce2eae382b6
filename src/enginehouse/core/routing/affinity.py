"""Which rank a session belongs to, by its name alone: frontends agree without talking to each other.

Rendezvous hashing: each rank draws a number for the session and the highest has it, so an engine that leaves moves only
its own sessions, and one that joins takes only those that it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from enginehouse.core.routing.candidate import Candidate


def home(session: str, candidates: Sequence[Candidate]) -> Candidate:
    """The session's rank among these, in whatever order they come."""
    name = blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    best, chosen = b"", candidates[0]
    for candidate in candidates:
        drawn = blake2b(name + f"{candidate.rank}/{candidate.engine_id}".encode(), digest_size=8).digest()
        if drawn > best:
            best, chosen = drawn, candidate
    return chosen


def overloaded(candidate: Candidate, candidates: Sequence[Candidate], factor: float) -> bool:
    """Whether a request more would give it over `factor` times the mean of requests in flight, and one.

    The one lets a session have two requests at once in a fleet that is all but idle.
    """
    total = sum([c.load.requests for c in candidates]) + 1
    return candidate.load.requests >= factor * total / len(candidates) + 1
