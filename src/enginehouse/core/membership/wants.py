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
    generations: Mapping[str, str]
    """What each feed that may be believed now calls the process."""


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
    generations = {feed: slot.wants[feed].generation for feed in feeds}
    if not _agree(wants):
        ours = [feed for feed in feeds if slot.current is not None and feed in slot.current.generations]
        chosen = slot.wants[(ours or feeds)[0]]
        known = {feed: generations[feed] for feed in ours}
        return Desire(chosen, False, f"wanted by {' and '.join(feeds)} in different ways", known or generations)
    able = next((want for want in wants if want.eligible and want.target is not None), None)
    if able is None or able.target is None:
        chosen = next((want for want in wants if want.target is not None), wants[0])
        return Desire(chosen, False, chosen.reason or "no usable address", generations)
    holder = claims.get((able.target.host, able.target.port))
    if holder is not None and holder.engine_id != slot.engine_id:
        other = next(iter(holder.wants.values())).name
        return Desire(able, False, f"its address {able.target.authority} now belongs to {other}", generations)
    return Desire(able, True, "", generations)


def claimed_address(slot: Slot) -> tuple[str, int] | None:
    """The address at which this id may serve, as far as its own feeds say."""
    wants = list(slot.wants.values())
    if not _agree(wants):
        return None
    return next(((w.target.host, w.target.port) for w in wants if w.eligible and w.target is not None), None)


def _agree(wants: list[Wanted]) -> bool:
    return len({want.target for want in wants if want.target is not None}) <= 1
