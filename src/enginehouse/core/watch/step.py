"""What follows what in list+watch: edges in (`_absorb`), levels out (`_due`).

Every way to lose the thread ends in a listing, and a listing replaces what is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from enginehouse.core.pods import PodRecord
from enginehouse.core.watch.backoff import Pace
from enginehouse.core.watch.inputs import (
    Bookmark,
    Failure,
    FailureKind,
    IgnoredLine,
    Input,
    Line,
    ListFailed,
    PageListed,
    PodChanged,
    PodGone,
    StreamFailed,
    Tick,
    WatchEnded,
    WatchOpened,
)
from enginehouse.core.watch.intents import Intent, ListPage, OpenWatch, Post, ReloadCredentials, StopWatch
from enginehouse.core.watch.state import Listing, Trouble, Watch, WatchState
from enginehouse.domain.feed import FeedApplied, FeedListed

_TOO_SHORT = 1.0
"""Seconds. A watch that ends sooner and said nothing is a failure, or a broken proxy would be asked in a tight loop."""

Step = tuple[WatchState, tuple[Intent, ...]]


def step(state: WatchState, happened: Input, now: float, pace: Pace, roll: float) -> Step:
    """Take one input. roll: random, from 0 up to 1, new for each step."""
    state, intents = _absorb(state, happened, now, pace, roll)
    state, due = _due(state, now, pace, roll)
    return state, (*intents, *due)


def _due(state: WatchState, now: float, pace: Pace, roll: float) -> Step:
    intents: list[Intent] = []
    if state.listing is None and state.list_at <= now:
        attempt = state.attempts + 1
        state = replace(state, attempts=attempt, listing=Listing(attempt))
        intents.append(ListPage(attempt, None))
    if state.watch is None and state.version is not None and state.watch_at <= now:
        attempt = state.attempts + 1
        timeout = pace.timeout_seconds(roll)
        watch = Watch(attempt, started_at=now, deadline=now + timeout + pace.watch_grace, life_at=now)
        state = replace(state, attempts=attempt, watch=watch)
        intents.append(OpenWatch(attempt, state.version or "", timeout))
    return state, tuple(intents)


def _absorb(state: WatchState, happened: Input, now: float, pace: Pace, roll: float) -> Step:
    match happened:
        case Tick():
            return _silent(state, now, pace, roll)
        case PageListed():
            return _page(state, happened, now, pace, roll)
        case ListFailed():
            if state.listing is None or state.listing.attempt != happened.attempt:
                return state, ()
            return _list_failed(state, happened.failure, now, pace, roll)
        case WatchOpened():
            watch = _current(state, happened.attempt)
            if watch is None:
                return state, ()
            # The failure that stood is over. Its count stays until the watch has lived a while.
            trouble = replace(state.watch_trouble, last=None, reloaded=False)
            return replace(state, watch=replace(watch, opened=True, life_at=now), watch_trouble=trouble), ()
        case PodChanged() | PodGone() | Bookmark() | IgnoredLine() | StreamFailed():
            watch = _current(state, happened.attempt)
            return (state, ()) if watch is None else _line(state, watch, happened, now, pace, roll)
        case WatchEnded():
            watch = _current(state, happened.attempt)
            return (state, ()) if watch is None else _ended(state, watch, happened.failure, now, pace, roll)
        case _:
            assert_never(happened)


def _current(state: WatchState, attempt: int) -> Watch | None:
    return state.watch if state.watch is not None and state.watch.attempt == attempt else None


def _page(state: WatchState, page: PageListed, now: float, pace: Pace, roll: float) -> Step:
    listing = state.listing
    if listing is None or listing.attempt != page.attempt:
        return state, ()
    listing = replace(listing, version=listing.version or page.version, records=listing.records + page.records)
    if page.more:
        return replace(state, listing=listing), (ListPage(page.attempt, page.more),)
    state = replace(state, listing=None, listings=state.listings + 1, list_trouble=Trouble())
    if listing.overtaken:
        # Older than what the watch said meanwhile: taking it would move the fleet backwards. A watch that speaks is
        # proof enough for now; one that broke in between is not.
        return replace(state, list_at=now + pace.next_listing(roll) if state.watch is not None else now), ()
    return _replace_all(state, listing, now, pace, roll)


def _replace_all(state: WatchState, listing: Listing, now: float, pace: Pace, roll: float) -> Step:
    listed = {record.owner: record for record in listing.records}
    watch = state.watch
    missed = state.synced and _versions(listed) != _versions(state.known)
    intents: list[Intent] = []
    if watch is not None and (missed or now - watch.life_at >= pace.idle_limit):
        # A watch that did not tell what the listing found, or that has been silent for long, may be half open.
        intents.append(StopWatch(watch.attempt))
        watch = None
    state = replace(
        state,
        known=listed,
        synced=True,
        watch=watch,
        version=listing.version if watch is None else state.version,
        list_at=now + pace.next_listing(roll),
        missed=state.missed + missed,
        confirmed_at=now,
    )
    wanted = tuple(engine for record in listed.values() for engine in record.wanted)
    return state, (Post(FeedListed(state.feed, wanted)), *intents)


def _versions(records: Mapping[str, PodRecord]) -> dict[str, str]:
    return {owner: record.version for owner, record in records.items()}


def _line(state: WatchState, watch: Watch, line: Line, now: float, pace: Pace, roll: float) -> Step:
    if isinstance(line, StreamFailed):
        state, intents = _ended(state, watch, line.failure, now, pace, roll)
        return state, (StopWatch(watch.attempt), *intents)
    state = replace(state, watch=replace(watch, life_at=now, spoke=True), confirmed_at=now, resumed=False)
    match line:
        case IgnoredLine():
            return state, ()
        case Bookmark():
            return replace(state, version=line.version or state.version), ()
        case PodChanged(record=record):
            before = state.known.get(record.owner)
            state = _told(state, {**state.known, record.owner: record}, record.version)
            if before is not None and before.wanted == record.wanted:
                return state, ()
            return state, (Post(FeedApplied(state.feed, record.owner, record.wanted)),)
        case PodGone(owner=owner):
            known = {key: record for key, record in state.known.items() if key != owner}
            if owner not in state.known:
                state = replace(state, unmatched_deletions=state.unmatched_deletions + 1)
            return _told(state, known, line.version), (Post(FeedApplied(state.feed, owner, ())),)
        case _:
            assert_never(line)


def _told(state: WatchState, known: Mapping[str, PodRecord], version: str) -> WatchState:
    listing = replace(state.listing, overtaken=True) if state.listing is not None else None
    return replace(state, known=known, version=version or state.version, listing=listing)


def _silent(state: WatchState, now: float, pace: Pace, roll: float) -> Step:
    watch = state.watch
    if watch is None or now < watch.deadline:
        return state, ()
    limit = round(watch.deadline - watch.started_at)
    failure = Failure(FailureKind.SILENT, f"the watch did not end within {limit} s, as the server had promised")
    state, intents = _ended(state, watch, failure, now, pace, roll)
    return state, (StopWatch(watch.attempt), *intents)


def _ended(state: WatchState, watch: Watch, failure: Failure | None, now: float, pace: Pace, roll: float) -> Step:
    lived = now - watch.started_at
    trouble = Trouble() if lived >= pace.healthy_after else state.watch_trouble
    state = replace(state, watch=None, watch_trouble=trouble)
    if failure is None:
        if lived >= _TOO_SHORT or watch.spoke:
            return replace(state, watch_at=now + pace.resume(roll)), ()
        text = f"the server ended the watch after {lived:.2f} s without a word"
        failure = Failure(FailureKind.REFUSED, text)
    state, wait, intents = _watch_trouble(state, failure, pace, roll)
    if failure.kind is FailureKind.REFUSED and not failure.expired and not state.resumed:
        return replace(state, watch_at=now + wait, resumed=True), intents
    # Lists replace; a list that is due sooner is as good.
    return replace(state, version=None, resumed=False, watch_at=now, list_at=now + wait), intents


def _watch_trouble(
    state: WatchState, failure: Failure, pace: Pace, roll: float
) -> tuple[WatchState, float, tuple[Intent, ...]]:
    trouble, wait, intents = _count(state.watch_trouble, failure, pace, roll)
    return replace(state, watch_trouble=trouble), wait, intents


def _list_failed(state: WatchState, failure: Failure, now: float, pace: Pace, roll: float) -> Step:
    trouble, wait, intents = _count(state.list_trouble, failure, pace, roll)
    return replace(state, listing=None, list_trouble=trouble, list_at=now + wait), intents


def _count(trouble: Trouble, failure: Failure, pace: Pace, roll: float) -> tuple[Trouble, float, tuple[Intent, ...]]:
    """Return the trouble with one failure more, how long to wait, and whether to read the credentials again."""
    # An API server on its way back refuses connections first and answers with errors next: each kind starts afresh.
    same = trouble.last is None or trouble.last.kind is failure.kind
    count = trouble.count + 1 if same else 1
    reload: tuple[Intent, ...] = (ReloadCredentials(),) if failure.unauthorized else ()
    at_once = failure.unauthorized and not trouble.reloaded
    wait = 0.0 if at_once else pace.retry(failure, count, roll)
    return Trouble(count, failure, reloaded=failure.unauthorized), wait, reload
