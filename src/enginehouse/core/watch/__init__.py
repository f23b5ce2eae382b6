"""The list+watch machine: what is known of the pods of one selector, and which request comes next. No I/O.

`state` says what is held, `inputs` what may be said to the machine, `intents` what it asks for, `step` what follows
what. The shell in `adapters.kube` carries the intents out and reports back; every report names the attempt that it
belongs to, and reports of an attempt that is over change nothing.
"""

from enginehouse.core.watch.backoff import Pace
from enginehouse.core.watch.inputs import (
    Bookmark,
    Failure,
    FailureKind,
    IgnoredLine,
    Input,
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
from enginehouse.core.watch.state import WatchState
from enginehouse.core.watch.status import error, next_try_at, status_word, wake_at
from enginehouse.core.watch.step import step

__all__ = [
    "Bookmark",
    "Failure",
    "FailureKind",
    "IgnoredLine",
    "Input",
    "Intent",
    "ListFailed",
    "ListPage",
    "OpenWatch",
    "Pace",
    "PageListed",
    "PodChanged",
    "PodGone",
    "Post",
    "ReloadCredentials",
    "StopWatch",
    "StreamFailed",
    "Tick",
    "WatchEnded",
    "WatchOpened",
    "WatchState",
    "error",
    "next_try_at",
    "status_word",
    "step",
    "wake_at",
]
