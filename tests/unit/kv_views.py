"""What is known of KV caches, made by hand: a test names only what it is about."""

from __future__ import annotations

from typing import Any

from enginehouse.core.kv.accuracy import ERROR_BOUNDS, Verdict
from enginehouse.core.kv.view import Heard, KvView, Policy, RankView
from enginehouse.domain.kv import RankKey, Trust


def rank_view(engine_id: str, *, incarnation: int = 1, rank: int = 0, **other: Any) -> RankView:
    """A rank that is fine, except for what is given."""
    plain: dict[str, Any] = {
        "trust": Trust.SYNCED,
        "trust_reason": "",
        "policy": Policy.EVENTS,
        "policy_reason": "",
        "block_size": 16,
        "block_sizes_disagree": False,
        "blocks": 0,
        "approximate_blocks": 0,
        "expected_blocks": 0,
        "orphans": 0,
        "heard": Heard(),
        "event_age": 1.0,
        "waiting_age": None,
        "event_rate": 0.0,
        "verdict": Verdict.RIGHT,
        "correction": 1.0,
        "requests": 0,
        "hits": 0,
        "predicted_tokens": 0,
        "reported_tokens": 0,
        "prompt_tokens": 0,
        "errors": (0,) * len(ERROR_BOUNDS),
    }
    return RankView(key=RankKey(engine_id, incarnation, rank), **(plain | other))


def known(*ranks: RankView, blocks: int = 0, memory: int = 0, evicted: int = 0, limit: int = 1000) -> KvView:
    """All that is known."""
    return KvView(ranks, blocks, memory, evicted, limit)
