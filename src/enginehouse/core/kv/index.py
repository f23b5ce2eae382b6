"""What ranks hold, by their events, and how much of a prompt that is.

Errors are on the side of less credit: what cannot be placed is dropped and counted. What is evicted under the cap of
`Pairs` was not wrong, so crediting what lies behind it is not either.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from enginehouse.core.kv.blocks import BYTES_PER_TOKEN, Scheme, chain, extend, pack, start
from enginehouse.core.kv.overlap import longest
from enginehouse.core.kv.pairs import Pairs
from enginehouse.core.kv.rows import FAMILY, LINK, Holder, pack_key
from enginehouse.core.kv.table import ID
from enginehouse.domain.kv import Removed, Stored, Tier

__all__ = ["Holder", "KvIndex"]

MAIN_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Attention whose cached blocks are good for any longer prompt; windows and states are not."""

_ONE = {Tier.DEVICE: 0x001, Tier.HOST: 0x010, Tier.DISK: 0x100}
"""One copy in a tier, as a holder's rows count them."""
_HANDLE = struct.Struct("<Q").pack


class KvIndex(Pairs):
    """Pairs, fed by events and asked with the keys of prompts."""

    def store(self, holder: Holder, event: Stored) -> int:
        """Add a run of blocks; how many of them are held now because of it, those held already included."""
        hashes = event.hashes
        blocks = len(hashes)
        if not holder.bit or not blocks or _is_ignored(holder, event):
            return 0
        try:
            packed, handles = pack(event.token_ids), [_HANDLE(one) for one in hashes]
            parent = None if event.parent is None else _HANDLE(event.parent)
        except struct.error:
            handles = []
        if not handles or not _is_sound(event, blocks):
            holder.malformed += 1
            return 0
        before, depth = start(event.block_size, event.pairs, event.namespace), 0
        family = before & FAMILY
        if parent is not None:
            bucket, at = holder.table.find(parent)
            before, state, depth = LINK.unpack_from(bucket, at + ID) if at >= 0 else (0, ~family, 0)
            if state & FAMILY != family:
                # Not known, or known for another adapter, salt or block size: as its child the run would be misplaced.
                holder.orphans += blocks
                return 0
            depth += 1
        if event.extras is None and not event.pairs:
            keys = chain(before, packed, event.block_size * BYTES_PER_TOKEN)
        else:
            keys = extend(before, packed, Scheme(event.block_size, event.pairs), event.extras)
        self.hold(holder, handles, [pack_key(key) for key in keys], depth, family, _ONE[event.tier])
        return blocks

    def remove(self, holder: Holder, event: Removed) -> int:
        """Take away one copy per mention from one tier; how many blocks it no longer holds at all."""
        if not holder.bit or (event.group is not None and event.group in holder.ignored_groups):
            return 0
        try:
            return self.release(holder, [_HANDLE(one) for one in event.hashes], _ONE[event.tier])
        except struct.error:
            holder.malformed += 1
            return 0

    def add(self, holder: Holder, keys: Sequence[int], depth: int = 0) -> None:
        """Keys it holds for all we know, consecutive, the first with `depth` blocks before it.

        Each key is its own handle and has one copy, so a holder gets events or keys; whoever has both joins twice.
        """
        if holder.bit:
            packed = [pack_key(key) for key in keys]
            self.hold(holder, packed, packed, depth, 0, 0)

    def drop(self, holder: Holder, keys: Sequence[int]) -> int:
        """Keys it holds no more; how many it did."""
        return self.release(holder, [pack_key(key) for key in keys], 0) if holder.bit else 0

    def lookup(self, keys: Sequence[int]) -> dict[Holder, int]:
        """How many blocks of a prompt each holder has from its start; those that have none are left out."""
        found: dict[Holder, int] = {}
        for mask, depth in longest(self.holding, keys):
            found |= dict.fromkeys(self.named(mask), depth)
        return found


def _is_ignored(holder: Holder, event: Stored) -> bool:
    """Whether its group is not indexed; remembered, because later events may not say the kind."""
    if event.group is None:
        return event.kind not in MAIN_KINDS
    if event.kind is not None:
        if event.kind in MAIN_KINDS:
            holder.ignored_groups.discard(event.group)
        else:
            holder.ignored_groups.add(event.group)
    return event.group in holder.ignored_groups


def _is_sound(event: Stored, blocks: int) -> bool:
    """Lengths agree, and no block is before itself."""
    return (
        len(event.token_ids) == blocks * event.block_size + event.pairs
        and event.block_size > 0
        and event.parent not in event.hashes
        and (blocks == 1 or len(set(event.hashes)) == blocks)
        and (event.extras is None or len(event.extras) == blocks)
    )
