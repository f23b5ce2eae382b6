"""The pod feed: carries out what the watch machine asks, and posts what it says. Decides nothing itself."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable

import structlog

from enginehouse.adapters.kube.api import KubeApi
from enginehouse.adapters.kube.http import RequestFailed
from enginehouse.adapters.kube.settings import KubeSettings
from enginehouse.core import watch
from enginehouse.core.pod_rules import PodRules
from enginehouse.core.watch.codec import read_line, read_page
from enginehouse.domain.feed import FeedEvent, FeedListed, FeedStatus

_log = structlog.get_logger("enginehouse.pods")


class PodFeed:
    """The pods of one label selector, as a feed of engines."""

    def __init__(self, name: str, api: KubeApi, selector: str, rules: PodRules, settings: KubeSettings) -> None:
        self.name = name
        self.selector = selector
        self._api = api
        self._rules = rules
        self._pace = settings.pace()
        self._state = watch.WatchState(feed=name)
        self._log = _log.bind(feed=name, selector=selector, where=api.where)

    def status(self) -> FeedStatus:
        """Say how fresh our knowledge is, and what is wrong."""
        state = self._state
        return FeedStatus(
            feed=self.name,
            kind="pods",
            synced=state.synced,
            confirmed_at=state.confirmed_at,
            listings=state.listings,
            state=watch.status_word(state),
            error=watch.error(state),
            next_try_at=watch.next_try_at(state),
        )

    async def run(self, post: Callable[[FeedEvent], None]) -> None:
        """List and watch until cancelled. What was known stays known, whatever happens to the API server."""
        self._log.info("pod feed starts", server=self._api.server, credentials=self._api.source)
        # A run that was cancelled left its requests behind; what it knew is checked by the first listing.
        self._state = watch.WatchState(feed=self.name, confirmed_at=self._state.confirmed_at)
        async with asyncio.TaskGroup() as tasks:
            await _Run(self, post, tasks).clock()


class _Run:
    """One run of a feed: its tasks, and the wake-up of its clock."""

    def __init__(self, feed: PodFeed, post: Callable[[FeedEvent], None], tasks: asyncio.TaskGroup) -> None:
        self._feed = feed
        self._post = post
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._watch_task: asyncio.Task[None] | None = None

    async def clock(self) -> None:
        """Tell the machine the time whenever it wants to know."""
        while True:
            self._take(watch.Tick())
            self._changed.clear()
            try:
                async with asyncio.timeout_at(watch.wake_at(self._feed._state)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _take(self, happened: watch.Input) -> None:
        """One turn: the machine decides, and its intents are carried out, in here and now."""
        feed, before = self._feed, self._feed._state
        # Spreads requests of many frontends; nothing secret about it.
        feed._state, intents = watch.step(before, happened, self._loop.time(), feed._pace, random.random())
        for intent in intents:
            self._carry_out(intent)
        _tell(feed._log, before, feed._state)
        self._changed.set()

    def _carry_out(self, intent: watch.Intent) -> None:
        match intent:
            case watch.Post(event):
                if isinstance(event, FeedListed) and not self._feed._state.listings > 1:
                    self._feed._log.info("pods listed", engines=len(event.wanted))
                self._post(event)
            case watch.ListPage(attempt, more):
                self._tasks.create_task(self._list(attempt, more), name=f"{self._feed.name}: list")
            case watch.OpenWatch(attempt, version, timeout):
                work = self._watch(attempt, version, timeout)
                self._watch_task = self._tasks.create_task(work, name=f"{self._feed.name}: watch")
            case watch.StopWatch():
                if self._watch_task is not None:
                    self._watch_task.cancel()
            case watch.ReloadCredentials():
                self._feed._api.reload_credentials()

    async def _list(self, attempt: int, more: str | None) -> None:
        feed = self._feed
        try:
            answer = read_page(await feed._api.list_page(feed.selector, more), attempt, feed._rules)
        except RequestFailed as error:
            answer = error.failure
        except Exception as error:  # whatever the outside made of it, the frontend serves on
            answer = _unforeseen(feed._log, "list pods", error)
        if isinstance(answer, watch.Failure):
            self._take(watch.ListFailed(attempt, answer))
        else:
            self._take(answer)

    async def _watch(self, attempt: int, version: str, timeout: int) -> None:
        async with contextlib.aclosing(self._inputs(attempt, version, timeout)) as inputs:
            async for happened in inputs:
                # Outside the generator: what our own machine raises is a bug, and no failure of the watch.
                self._take(happened)

    async def _inputs(self, attempt: int, version: str, timeout: int) -> AsyncGenerator[watch.Input, None]:
        feed = self._feed
        failure: watch.Failure | None = None
        try:
            async with feed._api.watch(feed.selector, version, timeout) as lines:
                yield watch.WatchOpened(attempt)
                async for line in lines:
                    answer = read_line(line, attempt, feed._rules)
                    if isinstance(answer, watch.Failure):
                        failure = answer
                        break
                    yield answer
        except RequestFailed as error:
            failure = error.failure
        except Exception as error:  # whatever the outside made of it, the frontend serves on
            failure = _unforeseen(feed._log, "watch pods", error)
        yield watch.WatchEnded(attempt, failure)


def _unforeseen(log: structlog.stdlib.BoundLogger, doing: str, error: Exception) -> watch.Failure:
    """A failure that nobody thought of: told with its traceback, and tried again like any other."""
    log.error("pod feed met an error that it does not know", doing=doing, exc_info=error)
    # Not its message, which may quote anything.
    return watch.Failure(watch.FailureKind.BROKEN, f"cannot {doing}: {type(error).__name__}; the log has more")


def _tell(log: structlog.stdlib.BoundLogger, before: watch.WatchState, after: watch.WatchState) -> None:
    """Log what an operator would want to know, once per change."""
    was, now = watch.error(before), watch.error(after)
    if now is not None and now != was:
        log.warning("pod feed in trouble", error=now, state=watch.status_word(after))
    elif now is None and was is not None:
        log.info("pod feed recovered", was=was)
    if after.missed > before.missed:
        log.info("a listing found what the watch had not said", missed=after.missed)
    if after.unmatched_deletions > before.unmatched_deletions:
        log.info("a pod that was not known is gone", unmatched_deletions=after.unmatched_deletions)
