"""Owns what takes time in membership: one task for each probe, check and close, and the engines that are open.

Each outcome is an event. A task that hangs holds up nobody, and every wait has its limit in the settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random

import structlog

from enginehouse.core.membership.events import CheckFailed, CheckPassed, Doubt, Doubted, Event, Probed, ProbeRefused
from enginehouse.core.membership.settings import MembershipSettings
from enginehouse.domain.engine import EngineInfo, Target
from enginehouse.domain.errors import ProbeFailed
from enginehouse.ports import Engine, Engines
from enginehouse.service.membership import Counters
from enginehouse.service.membership_canary import canary
from enginehouse.service.membership_holds import Key

log = structlog.get_logger("enginehouse.fleet")


class EngineTasks:
    """Probes, checks and closes engines, all inside one task group."""

    def __init__(
        self,
        engines: Engines,
        settings: MembershipSettings,
        counters: Counters,
        post: Callable[[Event], None],
        rng: Random,
    ) -> None:
        self._engines = engines
        self._settings = settings
        self._counters = counters
        self._post = post
        self._rng = rng
        self._group: asyncio.TaskGroup | None = None
        self._open: dict[Key, Engine] = {}
        self._probes: dict[Key, asyncio.Task[None]] = {}
        self._checks: dict[Key, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def start(self, group: asyncio.TaskGroup) -> None:
        """From now on tasks belong to this group."""
        self._group = group

    def chance(self) -> float:
        """This frontend's share of chance for one event."""
        return self._rng.random()

    def engine(self, key: Key) -> Engine:
        """The open engine of an incarnation that has one."""
        return self._open[key]

    def probe(self, key: Key, target: Target) -> None:
        """Start a probe."""
        self._counters.probes_started += 1
        self._probes[key] = self._task(self._probe(key, target), f"probe {key[0]}#{key[1]}")

    def cancel_probe(self, key: Key) -> None:
        """End a probe without an outcome."""
        task = self._probes.pop(key, None)
        if task is not None:
            self._counters.probes_cancelled += 1
            task.cancel()

    def check(self, key: Key, *, with_canary: bool) -> None:
        """Start a check."""
        self._checks[key] = self._task(self._check(key, with_canary), f"check {key[0]}#{key[1]}")

    def close(self, key: Key) -> None:
        """Close an engine, and end its check."""
        check = self._checks.pop(key, None)
        if check is not None:
            check.cancel()
        engine = self._open.pop(key, None)
        if engine is not None:
            task = self._task(self._close(key, engine), f"close {key[0]}#{key[1]}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def closed(self) -> None:
        """Wait until every close that was started is over."""
        if self._closing:
            await asyncio.wait(self._closing)

    async def close_all(self) -> None:
        """Close whatever is still open, when no task group is left to do it."""
        left = list(self._open.items())
        self._open.clear()
        await asyncio.gather(*(self._close(key, engine) for key, engine in left))

    async def _probe(self, key: Key, target: Target) -> None:
        settings = self._settings
        try:
            async with asyncio.timeout(settings.probe_timeout):
                engine = await self._engines.probe(target)
        except ProbeFailed as failure:
            self._probe_failed(key, failure.reason, permanent=failure.permanent)
        except TimeoutError:
            self._counters.probes_timed_out += 1
            self._probe_failed(key, f"no answer to the probe within {settings.probe_timeout:g} s", permanent=False)
        except Exception as fault:  # one odd engine is no reason to stop serving with all others
            self._probe_failed(key, _fault("probing", key, fault), permanent=True)
        else:
            self._probes.pop(key, None)
            self._counters.probes_passed += 1
            self._open[key] = engine
            engine.on_lost(lambda reason: self._post(Doubted(*key, Doubt.LOST, reason, self.chance())))
            self._post(Probed(*key, engine.info))

    def _probe_failed(self, key: Key, reason: str, *, permanent: bool) -> None:
        self._probes.pop(key, None)
        self._counters.probes_failed += 1
        self._post(ProbeRefused(*key, reason, permanent, self.chance()))

    async def _check(self, key: Key, with_canary: bool) -> None:
        settings = self._settings
        engine = self._open[key]
        what, limit = "health check", settings.check_timeout
        heard = engine.heard
        try:
            async with asyncio.timeout(limit):
                info = await engine.check()
            if with_canary:
                what, limit = "canary", settings.canary_timeout
                async with asyncio.timeout(limit):
                    await canary(engine)
        except ProbeFailed as failure:
            self._check_failed(key, failure.reason)
        except TimeoutError:
            if engine.heard > heard and not with_canary:  # it is late because it, or we, have much to do
                self._check_passed(key, engine.info)
            else:
                self._check_failed(key, f"no answer to the {what} within {limit:g} s")
        except Exception as fault:
            self._check_failed(key, _fault("checking", key, fault))
        else:
            self._check_passed(key, info)

    def _check_passed(self, key: Key, info: EngineInfo) -> None:
        self._checks.pop(key, None)
        self._counters.checks_passed += 1
        self._post(CheckPassed(*key, info, self.chance()))

    def _check_failed(self, key: Key, reason: str) -> None:
        self._checks.pop(key, None)
        self._counters.checks_failed += 1
        self._post(CheckFailed(*key, reason, self.chance()))

    async def _close(self, key: Key, engine: Engine) -> None:
        self._counters.engines_closed += 1
        try:
            async with asyncio.timeout(self._settings.close_timeout):
                await engine.close()
        except TimeoutError:
            log.warning("link did not close in time", engine=key[0], incarnation=key[1])
        except Exception as fault:
            _fault("closing", key, fault)

    def _task(self, coroutine: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        assert self._group is not None
        return self._group.create_task(coroutine, name=name)


def _fault(doing: str, key: Key, fault: Exception) -> str:
    """Log a fault of ours (or an answer that nobody thought of), and put it in words for people."""
    log.error(f"fault while {doing}", engine=key[0], incarnation=key[1], exc_info=fault)
    return f"fault while {doing}: {type(fault).__name__}"
