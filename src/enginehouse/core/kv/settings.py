"""Owns what knowledge of KV caches may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KvSettings:
    """What the frontend remembers of the engines' KV caches. Policy `kv` alone uses it."""

    kv_index_blocks: int = 4_000_000
    """Policy `kv`: most blocks that are known of all engines together, each engine that holds a block counted. Above it
    blocks of whoever holds most are forgotten. Full, the default takes about 300 MB, what was sent to the engines
    included."""
    kv_approximate_ttl: float = 600.0
    """Policy `kv`: seconds after which a prompt that was sent to an engine without KV events is no longer taken to be
    in its cache. It may be forgotten from half of that time on, and sooner when newer prompts fill the cache."""
