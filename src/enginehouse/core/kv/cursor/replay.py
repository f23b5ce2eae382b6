"""What a replay brings, and what its end means."""

from __future__ import annotations

from dataclasses import replace

from enginehouse.core.kv.cursor.moves import Step, ask, batches, begin_live, count, emptied, of_another
from enginehouse.core.kv.cursor.state import NOTHING, CursorState, Replay
from enginehouse.core.kv.cursor.words import Apply, Discard, Drop, Intent, Release, Replayed, ReplayEnded, WakeAt
from enginehouse.domain.kv import Trust

_TRIES = 3
_ROUNDS = 2
_REST = 30.0
"""Seconds for a publisher that does not answer: one whose engine is busy answers late."""


def replayed(state: CursorState, batch: Replayed, now: float) -> Step:
    """Take one batch of a replay."""
    replay, cursor = state.replay, state.cursor
    if replay is None or state.asks != batch.ask:
        return state, (Drop(),)
    assert cursor is not None
    if batch.seq == state.live and batch.mark != state.live_mark:
        state, cleared = of_another(state)
        return state, (Drop(), *cleared, Release())
    if batch.seq == state.live:
        state = replace(state, suspect=False)
    if batch.seq <= cursor:
        if state.doubt and batch.seq == cursor:
            if batch.mark != state.mark:
                return _another(state, (Drop(),), now)
            state, replay = replace(state, doubt=False), replace(replay, progress=True)
        return replace(state, replay=replace(replay, heard=True)), (Drop(),)
    if batch.seq == cursor + 1 and not state.doubt:
        return _take(state, replay, batch), (Apply(),)
    if replay.heard:
        return replace(state, replay=replace(replay, hole=True)), (Drop(),)
    # It begins later than what was asked for: that is no longer to be had.
    lost, suspect = batch.seq - cursor - 1, state.suspect
    state, cleared = emptied(state)
    if not cleared:
        cut = f"the replay begins with batch {batch.seq}: what came before is not known"
    elif lost:
        cut = f"{batches(cursor + 1, batch.seq - 1)} did not come, and the replay begins after them"
        state = count(state, lost=lost)
    else:
        cut = f"the connection was lost, and the replay begins with batch {batch.seq}"
    return _take(replace(state, cut=cut, suspect=suspect), replay, batch), (*cleared, Apply())


def _take(state: CursorState, replay: Replay, batch: Replayed) -> CursorState:
    return replace(state, cursor=batch.seq, mark=batch.mark, replay=replace(replay, heard=True, progress=True))


def replay_ended(state: CursorState, ended: ReplayEnded, now: float) -> Step:
    """Is the view whole now, or what next?"""
    replay, cursor = state.replay, state.cursor
    if replay is None or state.asks != ended.ask:
        return state, ()
    assert cursor is not None
    if replay.progress:
        state = replace(state, tries=0, rounds=0)
    if not ended.complete:
        return ask(state, now) if replay.progress else _silent(state, now)
    if state.doubt:
        return _another(state, (), now)  # it has not come so far yet
    if cursor >= state.owed and not (replay.hole or replay.overflowed or state.suspect):
        trust = Trust.PARTIAL if state.cut else Trust.SYNCED
        state = replace(state, replay=None, owed=NOTHING, tries=0, rounds=0, trust=trust, reason=state.cut)
        return state, (Release(),)
    if replay.progress or replay.overflowed or state.suspect:
        return ask(state, now)
    return _unmendable(state)


def _another(state: CursorState, intents: tuple[Intent, ...], now: float) -> Step:
    """The publisher is not the one that the view is of. What is held is already the new one's."""
    state, cleared = emptied(count(state, restarts=1))
    reason = "another publisher answers since the connection was lost: its history is being fetched"
    state, asked = ask(replace(state, cursor=NOTHING, trust=Trust.REPLAYING, reason=reason), now)
    return state, (*intents, *cleared, *asked)


def _silent(state: CursorState, now: float) -> Step:
    state = replace(state, tries=state.tries + 1)
    if state.tries < _TRIES:
        return ask(state, now)
    reason = "the engine's replay does not answer"
    state = replace(state, tries=0, rounds=state.rounds + 1)
    if state.rounds == _ROUNDS:
        state, cleared = begin_live(replace(state, deaf=True), reason)
        return state, (*cleared, Release())
    # Nothing need be held meanwhile: whenever the replay is asked, it brings what has come until then.
    rested = now + _REST
    state = replace(state, replay=None, retry_at=rested, owed=max(state.owed, state.live), reason=reason)
    return state, (Discard(), WakeAt(rested))


def _unmendable(state: CursorState) -> Step:
    """The replay has nothing of what is missing, though a live batch has shown that there was something."""
    assert state.cursor is not None
    first, last = state.cursor + 1, max(state.owed, state.cursor + 1)
    if not state.empty:
        state = count(state, lost=last - first + 1)
    state, cleared = begin_live(state, f"{batches(first, last)} did not come, and the replay has them not")
    return state, (*cleared, Release())
