"""What several events lead to: live batches in order and out of it, asking, giving up, starting over."""

from __future__ import annotations

from dataclasses import replace

from enginehouse.core.kv.cursor.state import NOTHING, CursorState, Replay
from enginehouse.core.kv.cursor.words import (
    Apply,
    AskReplay,
    Clear,
    Discard,
    Drop,
    Held,
    Hold,
    Intent,
    Live,
    WakeAt,
)
from enginehouse.domain.kv import Trust

_PACE = 2.0
"""Seconds between two replays of everything because of what live batches say: two publishers that speak in turns behind
one address must not be made to send them without end."""

Step = tuple[CursorState, tuple[Intent, ...]]


def flow(state: CursorState, batch: Live | Held, now: float) -> Step:
    """Take a batch for which nothing is in the way but its number."""
    cursor, seq = state.cursor, batch.seq
    if cursor is None:
        return _begin(state, batch)
    if seq == cursor + 1:
        state = replace(state, cursor=seq, mark=batch.mark)
        if state.trust is Trust.GAP:
            state = replace(state, trust=Trust.PARTIAL, reason=state.cut)
        return state, (Apply(),)
    if seq > cursor:
        return _gap(state, batch, now)
    return count(state, duplicates=1), (Drop(),)


def _begin(state: CursorState, batch: Live | Held) -> Step:
    """Begin a view with this batch. If that is batch 0, the view misses nothing."""
    state = replace(state, cursor=batch.seq, mark=batch.mark)
    if batch.seq == 0:
        return replace(state, cut="", trust=Trust.SYNCED, reason=""), (Apply(),)
    state = replace(state, cut=state.cut or f"what came before batch {batch.seq} is not known")
    if state.trust is not Trust.GAP:
        state = replace(state, trust=Trust.PARTIAL, reason=state.cut)
    return state, (Apply(),)


def _gap(state: CursorState, batch: Live | Held, now: float) -> Step:
    assert state.cursor is not None
    first, last = state.cursor + 1, batch.seq - 1
    missing = f"{batches(first, last)} did not come"
    state = count(state, gaps=1)
    if state.can_ask:
        state, asked = ask(mistrust(replace(state, owed=last), missing), now)
        return state, (Hold(), *asked)
    state, cleared = emptied(count(state, lost=last - first + 1))
    state = replace(mistrust(state, f"{missing}, and cannot be had again"), cut=missing)
    return replace(state, cursor=batch.seq, mark=batch.mark), (*cleared, Apply())


def ask(state: CursorState, now: float) -> Step:
    """Ask for what comes after the view; when its publisher is in doubt, for its last batch again too."""
    cursor = state.cursor
    assert cursor is not None
    if state.suspect:
        state = replace(state, doubt=True, suspect=False)
    start = cursor if state.doubt else cursor + 1
    state = replace(count(state, replays=1), asks=state.asks + 1, replay=Replay())
    if start == 0:
        state = replace(state, whole_at=now)
    return state, (AskReplay(state.asks, start),)


def start_over(state: CursorState, reason: str, now: float) -> Step:
    """Void the view and ask for everything."""
    discarded: tuple[Intent, ...] = (Discard(),) if state.replay is not None else ()
    state, cleared = emptied(state)
    state = replace(
        state,
        cursor=NOTHING,
        trust=Trust.REPLAYING,
        reason=reason,
        owed=state.live,
        replay=None,
        retry_at=None,
        tries=0,
        rounds=0,
        deaf=False,
    )
    begin = state.whole_at + _PACE
    if now < begin:
        return replace(state, retry_at=begin), (*cleared, *discarded, WakeAt(begin))
    state, asked = ask(state, now)
    return state, (*cleared, *discarded, *asked)


def begin_live(state: CursorState, cut: str) -> Step:
    """Void the view and let it begin with the next live batch. Only where nothing was known is that no loss."""
    trust = Trust.NONE if state.empty and state.trust is not Trust.GAP else Trust.GAP
    state, cleared = emptied(state)
    state = replace(state, replay=None, owed=NOTHING, tries=0, rounds=0)
    return replace(state, trust=trust, reason=cut, cut=cut), cleared


def of_another(state: CursorState) -> Step:
    """The replay is of another publisher than the live stream: only what is heard live counts from here on."""
    return begin_live(replace(state, deaf=True), "the replay tells other batches than the live stream")


def emptied(state: CursorState) -> Step:
    """Void the view: any batch may be its first."""
    cleared: tuple[Intent, ...] = () if state.empty else (Clear(),)
    return replace(state, cursor=None, mark=b"", cut="", doubt=False, suspect=False), cleared


def mistrust(state: CursorState, reason: str) -> CursorState:
    """Credit nothing for now."""
    return replace(state, trust=Trust.GAP, reason=reason)


def count(
    state: CursorState, *, gaps: int = 0, replays: int = 0, restarts: int = 0, duplicates: int = 0, lost: int = 0
) -> CursorState:
    """Add to what has happened."""
    counts = state.counts
    counts = replace(
        counts,
        gaps=counts.gaps + gaps,
        replays=counts.replays + replays,
        restarts=counts.restarts + restarts,
        duplicates=counts.duplicates + duplicates,
        lost=counts.lost + lost,
    )
    return replace(state, counts=counts)


def batches(first: int, last: int) -> str:
    """Name these batches, for people."""
    return f"batch {first}" if first == last else f"batches {first} to {last}"
