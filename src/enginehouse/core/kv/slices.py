"""Cuts batches into what is applied at one go, so that a long one does not hold the loop."""

from __future__ import annotations

from collections.abc import Iterator

from enginehouse.domain.kv import Cleared, KvBatch, KvEvent, Removed, Stored

SLICE = 128
"""Blocks that are applied at one go: a third of a millisecond."""


def slices(batch: KvBatch) -> Iterator[KvEvent]:
    """The batch's events, none longer than SLICE blocks."""
    for event in batch.events:
        match event:
            case Stored() if len(event.hashes) > SLICE:
                yield from split(event, SLICE)
            case Removed() if len(event.hashes) > SLICE:
                for start in range(0, len(event.hashes), SLICE):
                    yield Removed(event.hashes[start : start + SLICE], event.tier, event.group)
            case _:
                yield event


def weight(event: KvEvent) -> int:
    """What an event costs to apply, in blocks."""
    return 1 if isinstance(event, Cleared) else 1 + len(event.hashes)


def split(event: Stored, blocks: int) -> Iterator[Stored]:
    """The same run as several of at most `blocks` blocks: an event of thousands need not hold the loop at one go."""
    size, more = event.block_size, int(event.pairs)
    parent = event.parent
    for start in range(0, len(event.hashes), blocks):
        hashes = event.hashes[start : start + blocks]
        end = start + len(hashes)
        yield Stored(
            hashes=hashes,
            parent=parent,
            token_ids=event.token_ids[start * size : end * size + more],
            block_size=size,
            tier=event.tier,
            pairs=event.pairs,
            namespace=event.namespace,
            extras=None if event.extras is None else event.extras[start:end],
            group=event.group,
            kind=event.kind,
        )
        parent = hashes[-1]
