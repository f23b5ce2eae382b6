"""Owns virtual time: an event loop whose clock jumps to the next timer, so that minutes of waiting cost nothing."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class NothingToWaitFor(RuntimeError):
    """Every task waits and no timer is set: in real time this would hang for ever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time. For code that waits for timers and for itself only: no sockets, no threads."""

    def __init__(self) -> None:
        self._seconds = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._seconds

    def jump(self, seconds: float) -> None:
        """Let that much time have passed."""
        self._seconds += seconds


class _Selector(selectors.BaseSelector):
    """A selector that never waits: it moves the loop's clock instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready:
            if timeout is None:
                raise NothingToWaitFor("every task waits and no timer is set")
            if timeout > 0:
                self._loop.jump(timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
