"""What follows what. S and P: the view has seen every batch since 0, or it may lack blocks (`state.cut` says why).

    situation  event                       trust      what happens
    any        Lost                        gap        the view is kept: it may be proven later; without replay: cleared
    any        Lost for good               none       the view is cleared
    away       Connected, no view          replaying  replay from 0; live batches are held from here on
    away       Connected, a view           gap        replay from its last batch on: the same batch again proves that it
                                                      is the same publisher; another, or none, that it is not
    away       Connected, no replay        as it was  the first batch begins a view: synced if it is batch 0, else P
    replay     the next batch              as it was  applied
    replay     the first one is too high   as it was  history is cut: the view is cleared and begins here, P
    replay     a later one is too high     as it was  dropped; at the end the replay is asked again, from the hole on
    replay     complete                    S: synced, P: partial; what was held is released
    replay     complete, batches missing   as it was  asked again if it brought any; if not they are lost: the view is
                                                      cleared, the next live batch begins it, P
    replay     silent                      as it was  asked again; after 3 in a row that brought nothing: rest
    rest       a live batch                as it was  dropped: the replay will bring it
    rest       30 s have passed            as it was  3 tries more; if they fail too: the view is cleared, and only live
                                                      batches count until the next connection, P
    flowing    the next batch              as it was  applied; after a loss: gap becomes partial
    flowing    a known batch               as it was  dropped: a replay overtakes the live queue
    flowing    the same, the first live    gap        dropped; proof as above that it is the same publisher
    flowing    one that is too high       gap        replay of what is missing; without replay: the view is cleared and
                                                      begins here, P
    any        live numbers go down        replaying  another publisher: the view is cleared, replay from 0
    any        Distrusted                  replaying  the same; without replay: gap, the next batch begins a view
    any        Undecodable                 gap        the view is cleared, P: what the batch removed is not known

Why losses clear the view: what is missing may have been removals, and a view that claims what the rank no longer holds
sends prompts to the wrong engine. A view that begins later only knows less.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from enginehouse.core.kv.cursor.moves import Step, ask, count, emptied, flow, mistrust, of_another, start_over
from enginehouse.core.kv.cursor.replay import replay_ended, replayed
from enginehouse.core.kv.cursor.state import NOTHING, CursorState
from enginehouse.core.kv.cursor.words import (
    Apply,
    Clear,
    Connected,
    Discard,
    Distrusted,
    Drop,
    Event,
    Held,
    Hold,
    Intent,
    Live,
    Lost,
    Overflowed,
    Replayed,
    ReplayEnded,
    Undecodable,
    Woke,
)
from enginehouse.domain.kv import Trust

_APPLY = (Apply(),)


def step(state: CursorState, event: Event, now: float) -> Step:
    """Take one event. now: seconds on any clock that does not go back."""
    match event:
        case Live():
            return _live(state, event, now)
        case Replayed():
            return replayed(state, event, now)
        case Held():
            return _held(state, event, now)
        case ReplayEnded():
            return replay_ended(state, event, now)
        case Connected():
            return _connected(state, now)
        case Lost():
            return _lost(state, event)
        case Overflowed():
            return _overflowed(state, now)
        case Undecodable():
            return _undecodable(state, event)
        case Distrusted():
            return _distrusted(state, event, now)
        case Woke():
            if state.retry_at is None or now < state.retry_at:
                return state, ()
            return ask(replace(state, retry_at=None), now)
        case _:
            assert_never(event)


def _live(state: CursorState, batch: Live, now: float) -> Step:
    seq, before = batch.seq, state.live
    if seq - 1 == before == state.cursor and state.flowing and state.trust is not Trust.GAP:
        # Nearly always. What follows would say the same, and take longer.
        return state.passed(seq, batch.mark), _APPLY
    if not state.connected:
        return state, (Drop(),)
    if seq < before or (seq == before and batch.mark != state.live_mark):
        return _restarted(state, batch, now)
    if seq == before:
        return count(state, duplicates=1), (Drop(),)
    at_cursor = seq == state.cursor and not state.doubt
    if at_cursor and batch.mark != state.mark:
        return _restarted(state, batch, now)
    suspect = before == NOTHING and state.cursor is not None and seq <= state.cursor and not at_cursor
    state = replace(state, live=seq, live_mark=batch.mark, suspect=state.suspect or suspect)
    if state.flowing:
        if not suspect:
            return flow(state, batch, now)
        state, asked = ask(mistrust(state, f"batch {seq} came late: is it still the same publisher?"), now)
        return replace(state, owed=seq), (Drop(), *asked)
    if state.retry_at is not None:
        return replace(state, owed=seq), (Drop(),)
    if seq != before + 1:
        state = replace(state, owed=max(state.owed, seq - 1))
    return _hold(state, seq)


def _held(state: CursorState, batch: Held, now: float) -> Step:
    if state.flowing:
        if batch.seq == state.cursor and batch.mark != state.mark:
            state, cleared = of_another(state)
            state, applied = flow(state, batch, now)
            return state, (*cleared, *applied)
        return flow(state, batch, now)
    # One that was released before it has led to a new replay.
    return _hold(state, batch.seq) if state.replay is not None else (state, (Drop(),))


def _hold(state: CursorState, seq: int) -> Step:
    if not state.doubt and state.cursor is not None and seq <= state.cursor:
        return count(state, duplicates=1), (Drop(),)
    return state, (Hold(),)


def _restarted(state: CursorState, batch: Live, now: float) -> Step:
    reason = f"the publisher began anew: batch {batch.seq} came after batch {state.live}"
    state = count(replace(state, live=batch.seq, live_mark=batch.mark), restarts=1)
    if not state.can_replay:
        state, cleared = emptied(state)
        state, applied = flow(mistrust(state, reason), batch, now)
        return state, (*cleared, *applied)
    state, intents = start_over(state, reason, now)
    return state, (*intents, Drop())  # the replay must bring this one too


def _connected(state: CursorState, now: float) -> Step:
    before: tuple[Intent, ...] = ()
    if state.connected:
        state, before = _lost(state, Lost("the connection was made anew"))
    state = replace(state, connected=True, deaf=False)
    if not state.can_replay:
        reason = "connected; nothing has come yet, and there is no replay of what came before"
        return replace(state, reason=reason), before
    if state.doubt:
        state = mistrust(state, "the connection was lost and is back: what was missed is being fetched")
    else:
        state = replace(state, cursor=NOTHING, trust=Trust.REPLAYING, reason="its history is being fetched")
    state, asked = ask(state, now)
    return state, (*before, *asked)


def _lost(state: CursorState, lost: Lost) -> Step:
    had_view = not state.empty
    intents: tuple[Intent, ...] = (Discard(),) if state.replay is not None else ()
    if had_view and state.can_ask and not lost.permanent:
        state = replace(state, doubt=True)
    else:
        state, cleared = emptied(state)
        intents = (*cleared, *intents)
    gap = not lost.permanent and (had_view or state.trust is Trust.GAP)
    state = replace(
        state,
        connected=False,
        trust=Trust.GAP if gap else Trust.NONE,
        reason=lost.reason,
        live=NOTHING,
        owed=NOTHING,
        replay=None,
        retry_at=None,
        tries=0,
        rounds=0,
    )
    return state, intents


def _overflowed(state: CursorState, now: float) -> Step:
    if state.replay is not None:
        return replace(state, owed=state.live, replay=replace(state.replay, overflowed=True)), ()
    if not state.flowing or state.cursor is None:
        return state, ()
    cut = "batches came faster than they were taken in, and were dropped"
    state = mistrust(count(state, gaps=1), cut)
    if state.can_ask:
        return ask(state, now)
    state, cleared = emptied(state)
    return replace(state, cut=cut), cleared


def _undecodable(state: CursorState, batch: Undecodable) -> Step:
    cut = f"batch {batch.seq} could not be read"
    state = count(state, lost=1)
    if state.flowing:
        state = mistrust(state, cut)
    return replace(state, cut=cut), (Clear(),)


def _distrusted(state: CursorState, event: Distrusted, now: float) -> Step:
    if state.connected and state.can_replay:
        return start_over(state, event.reason, now)
    if state.empty:
        return state, ()
    state, cleared = emptied(state)
    return mistrust(state, event.reason), cleared
