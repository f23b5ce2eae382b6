"""What ranks hold, by their events, and how much of a prompt that is.

Errors are on the side of less credit: what cannot be placed is dropped and counted. What is evicted under the cap of
`Pairs` was not wrong, so crediting what lies behind it is not either.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from enginehouse.core.kv.blocks import BYTES_PER_TOKEN, Scheme, chain, extend, pack, start
from enginehouse.core.kv.filling import Filling
from enginehouse.core.kv.overlap import longest
from enginehouse.core.kv.rows import FAMILY, REST, Holder
from enginehouse.core.kv.table import ID
from enginehouse.domain.kv import Removed, Stored, Tier

__all__ = ["Holder", "KvIndex"]

MAIN_KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Attention whose cached blocks are good for any longer prompt; windows and states are not."""

MOST_GROUPS = 256
"""KV groups that an engine may have, numbered from 0; whatever is said of another is ignored."""

_ONE = {Tier.DEVICE: 0x001, Tier.HOST: 0x010, Tier.DISK: 0x100}
"""One copy in a tier, as a holder's rows count them."""
_HANDLE = struct.Struct("<Q").pack


class KvIndex(Filling):
    """Pairs, fed by events and asked with the keys of prompts."""

    def store(self, holder: Holder, event: Stored) -> int:
        """Add a run of blocks; how many of them are held now because of it, those held already included."""
        hashes = event.hashes
        blocks = len(hashes)
        if not holder.bit or not blocks:
            return 0
        if (event.kind is not None or event.group is not None) and _is_ignored(holder, event):
            return 0
        size, pairs, parent, tokens = event.block_size, event.pairs, event.parent, event.token_ids
        try:
            packed = tokens.tobytes() if type(tokens) is array and tokens.typecode == "I" else pack(tokens)
            handles = [_HANDLE(hashes[0])] if blocks == 1 else [*map(_HANDLE, hashes)]
            named = b"" if parent is None or parent == holder.tail[0] else _HANDLE(parent)
        except struct.error:
            handles = []
        if (
            not handles
            or size <= 0
            or len(tokens) != blocks * size + pairs
            or (parent == hashes[0] if blocks == 1 else len({parent, *hashes}) <= blocks)
            or (event.extras is not None and len(event.extras) != blocks)
        ):
            holder.malformed += 1  # lengths that do not agree, or a block before itself
            return 0
        before, depth = start(size, pairs, event.namespace), 0
        family = before & FAMILY
        if parent is not None:
            _, before, known, depth = holder.tail
            if named:
                number, at = holder.table.find(named)
                bucket = holder.table.buckets[number]
                before, known, depth = REST.unpack_from(bucket, at + ID) if at >= 0 else (0, ~family, 0)
            if known & FAMILY != family:
                # Not known, or known for another adapter, salt or block size: as its child the run would be misplaced.
                holder.orphans += blocks
                return 0
            depth += 1
        if event.extras is not None or pairs:
            keys = extend(before, packed, Scheme(size, pairs), event.extras)
        elif blocks == 1:
            key = hash((before, packed))
            self.hold_one(holder, handles[0], key, depth, family, _ONE[event.tier])
            holder.tail = (hashes[0], key, family, depth)
            return 1
        else:
            keys = chain(before, packed, size * BYTES_PER_TOKEN)
        self.hold(holder, handles, keys, depth, family, _ONE[event.tier])
        holder.tail = (hashes[-1], keys[-1], family, depth + blocks - 1)
        return blocks

    def remove(self, holder: Holder, event: Removed) -> int:
        """Take away one copy per mention from one tier; how many blocks it no longer holds at all."""
        group = event.group
        if not holder.bit or (group is not None and (group in holder.ignored_groups or not 0 <= group < MOST_GROUPS)):
            return 0
        try:
            return self.release(holder, [_HANDLE(one) for one in event.hashes], _ONE[event.tier])
        except struct.error:
            holder.malformed += 1
            return 0

    def lookup(self, keys: Sequence[int]) -> dict[Holder, int]:
        """How many blocks of a prompt each holder has from its start; those that have none are left out."""
        found: dict[Holder, int] = {}
        for mask, depth in longest(self.credits.holding, keys):
            found |= dict.fromkeys(self.named(mask), depth)
        return found


def _is_ignored(holder: Holder, event: Stored) -> bool:
    """Whether its group is not indexed; remembered, because later events may not say the kind."""
    if event.group is None:
        return event.kind not in MAIN_KINDS
    if not 0 <= event.group < MOST_GROUPS:
        return True
    if event.kind is not None:
        if event.kind in MAIN_KINDS:
            holder.ignored_groups.discard(event.group)
        else:
            holder.ignored_groups.add(event.group)
    return event.group in holder.ignored_groups
