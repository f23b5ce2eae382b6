"""What is known of KV caches, as `/engines` shows it: each rank with how far it is believed, and the index."""

from __future__ import annotations

from typing import Any

from enginehouse.core.kv.view import KvView, RankView


def of_engine(view: KvView, engine_id: str, incarnation: int) -> list[dict[str, Any]]:
    """The ranks of one engine."""
    return [_rank(rank) for rank in view.by_engine.get((engine_id, incarnation), ())]


def of_index(view: KvView) -> dict[str, Any]:
    """What all of them take together."""
    return {
        "blocks": view.blocks,
        "limit_blocks": view.limit,
        "memory_bytes": view.memory,
        "evicted_blocks": view.evicted,
    }


def _rank(rank: RankView) -> dict[str, Any]:
    heard = rank.heard
    return {
        "rank": rank.key.rank,
        "trust": rank.trust.value,
        "trust_reason": rank.trust_reason or None,
        "policy": rank.policy.value,
        "policy_reason": rank.policy_reason or None,
        "block_size": rank.block_size,
        "block_sizes_disagree": rank.block_sizes_disagree,
        "blocks": rank.blocks,
        "approximate_blocks": rank.approximate_blocks,
        "expected_blocks": rank.expected_blocks,
        "event_age_seconds": None if rank.event_age is None else round(rank.event_age, 3),
        "waiting_batches": heard.waiting,
        "waiting_seconds": None if rank.waiting_age is None else round(rank.waiting_age, 3),
        "events_per_second": round(rank.event_rate, 2),
        "batches": heard.batches,
        "events": heard.events,
        "ignored": heard.ignored,
        "gaps": heard.gaps,
        "replays": heard.replays,
        "lost": heard.lost,
        "restarts": heard.restarts,
        "overflows": heard.overflows,
        "duplicates": heard.duplicates,
        "malformed": heard.malformed,
        "misdirected": heard.misdirected,
        "orphans": rank.orphans,
        "verdict": rank.verdict.value,
        "correction": round(rank.correction, 3),
        "requests": rank.requests,
        "hits": rank.hits,
        "prompt_tokens": rank.prompt_tokens,
        "predicted_cached_tokens": rank.predicted_tokens,
        "reported_cached_tokens": rank.reported_tokens,
    }
