"""Decides what the feeds together want of one engine id: which process, and whether it may serve.

Does not know what we have of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from enginehouse.core.membership.fleet import Slot
from enginehouse.domain.feed import Wanted


@dataclass(frozen=True, slots=True)
class Desire:
    """One engine that should be there."""

    wanted: Wanted
    eligible: bool
    reason: str
    """Why it may not serve; empty when it may."""
    generations: frozenset[str]
    """Any of these is the same process as wanted."""


Claims = Mapping[tuple[str, int], Slot]
"""Address to the slot that has it."""


def desire(slot: Slot, claims: Claims) -> Desire | None:
    """What should be of this id; None: nothing.

    One id in two feeds that give it different targets (the serving and the prefill selector both match a pod whose
    labels are being changed) may serve in neither until one lets go; what is open stays open for the one that stays.
    Feeds that agree are as one, and any of them may say that it may serve.
    """
    if not slot.wants:
        return None
    feeds = sorted(slot.wants)
    wants = [slot.wants[feed] for feed in feeds]
    generations = frozenset(want.generation for want in wants)
    if not _agree(wants):
        chosen = _like_current(slot, wants)
        return Desire(chosen, False, f"wanted by {' and '.join(feeds)} in different ways", generations)
    able = [want for want in wants if want.eligible and want.target is not None]
    chosen = _like_current(slot, able or wants)
    if not able:
        return Desire(chosen, False, chosen.reason or "no usable address", generations)
    assert chosen.target is not None
    holder = claims.get((chosen.target.host, chosen.target.port))
    if holder is not None and holder.engine_id != slot.engine_id:
        other = holder.current.name if holder.current is not None else holder.engine_id
        return Desire(chosen, False, f"its address {chosen.target.authority} now belongs to {other}", generations)
    return Desire(chosen, True, "", generations)


def claimed_address(slot: Slot) -> tuple[str, int] | None:
    """The address at which this id may serve, as far as its own feeds say."""
    wants = list(slot.wants.values())
    if not _agree(wants):
        return None
    return next(((w.target.host, w.target.port) for w in wants if w.eligible and w.target is not None), None)


def _agree(wants: list[Wanted]) -> bool:
    return len({want.target for want in wants if want.target is not None}) <= 1


def _like_current(slot: Slot, wants: list[Wanted]) -> Wanted:
    generation = slot.current.generation if slot.current is not None else None
    return next((want for want in wants if want.generation == generation), wants[0])
