"""What the state of the watch machine means for a clock and for people."""

from __future__ import annotations

from enginehouse.core.watch.state import WatchState


def wake_at(state: WatchState) -> float | None:
    """When the machine wants its next Tick; None: it waits for an answer."""
    times: list[float] = []
    if state.listing is None:
        times.append(state.list_at)
    if state.watch is not None:
        times.append(state.watch.deadline)
    elif state.version is not None:
        times.append(state.watch_at)
    return min(times) if times else None


def next_try_at(state: WatchState) -> float | None:
    """When the next request is due to mend what is broken; None: nothing is broken, or it is being tried now."""
    times: list[float] = []
    if state.listing is None and (state.list_trouble.last or state.version is None):
        times.append(state.list_at)
    if state.watch is None and state.version is not None:
        times.append(state.watch_at)
    return min(times) if times else None


def error(state: WatchState) -> str | None:
    """Return the failure that stands now."""
    for trouble in (state.list_trouble, state.watch_trouble):
        if trouble.last is not None:
            return trouble.last.text
    return None


def status_word(state: WatchState) -> str:
    """Return the state in a word or two."""
    if state.watch is not None:
        return "watching" if state.watch.opened else "opening the watch"
    if state.listing is not None:
        return "listing"
    return "backing off" if error(state) is not None else "resuming the watch"
