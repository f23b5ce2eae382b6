"""What engines say of their KV caches, the same for every transport and release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class RankKey(NamedTuple):
    """One data-parallel rank of one incarnation of an engine: the unit of the KV index."""

    engine_id: str
    incarnation: int
    rank: int
    """0 for an engine that has one rank or does not number them."""


class Trust(StrEnum):
    """How far the view of one rank's cache may be believed. Only `synced` and `partial` are credited."""

    NONE = "none"
    """Nothing is heard from it: there are no events, or they cannot be reached."""
    REPLAYING = "replaying"
    """Its history is being fetched."""
    SYNCED = "synced"
    """All of its history was seen."""
    PARTIAL = "partial"
    """What is known is held, but it may hold more: its history was cut, or there is no replay."""
    GAP = "gap"
    """Events were lost, removals perhaps among them: nothing is credited until that is mended."""


class Tier(StrEnum):
    """Where a block lies. What lies in stores that engines share belongs to no rank and never reaches the index."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(slots=True)
class Stored:
    """A run of consecutive blocks that a rank now holds. Made per event on the hot path, so not frozen."""

    hashes: Sequence[int]
    """The engine's own ids, unsigned 64 bit: handles, good for parents and removals and nothing else."""
    parent: int | None
    """Handle of the block before the first; None: the run begins at position 0."""
    token_ids: Sequence[int]
    """`len(hashes) * block_size` ids, and one more (that after the last block) when `pairs`."""
    block_size: int
    tier: Tier = Tier.DEVICE
    pairs: bool = False
    """EAGLE-type drafting: each block is cached together with the token after it, so its key covers that too."""
    namespace: str = ""
    """What `namespace()` makes of adapter and salt; blocks of different namespaces are never the same."""
    extras: Sequence[bytes | None] | None = None
    """Per block, what else decides its content (images, embeddings), in any fixed encoding; None: nothing."""
    group: int | None = None
    """KV group of hybrid models."""
    kind: str | None = None
    """The group's attention, e.g. `full_attention`; None: not said, which means the main group."""


@dataclass(slots=True)
class Removed:
    """Copies of blocks that a rank no longer has in one tier; one copy per mention."""

    hashes: Sequence[int]
    tier: Tier = Tier.DEVICE
    group: int | None = None


@dataclass(slots=True)
class Cleared:
    """A rank holds nothing any more, in any tier."""


KvEvent = Stored | Removed | Cleared


@dataclass(slots=True)
class KvBatch:
    """The events of one scheduler step of one rank."""

    events: list[KvEvent]
    timestamp: float | None = None
    """Unix seconds at the engine."""
    rank: int | None = None
    """As the batch says; the subscription's own rank wins."""
    malformed: int = 0
    """Events that could not be read: each costs itself alone."""
    ignored: int = 0
    """Events read and meant for others: other owners, remote blocks, unknown kinds."""
    merged: int = 0
    """Removals that became part of the removal before them."""


def namespace(lora: str | None, salt: str | None) -> str:
    """One text for an adapter and a cache salt; empty for neither."""
    return f"{lora or ''}\x00{salt or ''}" if lora or salt else ""
