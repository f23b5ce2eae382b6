"""Owns how a value that changes is handed to those who follow it: the latest value, its version, and a wake-up.

Followers may skip values in between, never the last. A watch belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class WatchClosed(Exception):
    """No further value will come. The last one can still be read."""


class Watch(Generic[T]):
    """A value that its owner replaces now and then.

    When the owner goes away without closing, the last value simply stays.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._version = 0
        self._closed = False
        self._waiters: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[], None]] = []

    @property
    def version(self) -> int:
        """Grows by one with each published value."""
        return self._version

    @property
    def closed(self) -> bool:
        return self._closed

    def get(self) -> T:
        """The latest value; also after close."""
        return self._value

    async def changed(self, version: int) -> int:
        """Wait until the value is another than that of `version`; return its version. Raises WatchClosed."""
        while self._version == version:
            if self._closed:
                raise WatchClosed
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return self._version

    async def follow(self) -> AsyncIterator[T]:
        """The value now, then each later one (some may be skipped), until the watch is closed."""
        version = self._version
        yield self._value
        while True:
            try:
                version = await self.changed(version)
            except WatchClosed:
                return
            yield self._value

    def publish(self, value: T) -> bool:
        """Replace the value; True if it differs from the last. For the owner only."""
        if self._closed or value == self._value:
            return False
        self._value = value
        self._version += 1
        self._tell()
        return True

    def close(self) -> None:
        """No value will come any more: followers end, the last value stays. For the owner only."""
        if not self._closed:
            self._closed = True
            self._tell()

    def map(self, project: Callable[[T], U]) -> Watch[U]:
        """A watch of `project(value)`: it publishes only when that differs, and closes with this one."""
        projection = Watch(project(self._value))

        def update() -> None:
            projection.publish(project(self._value))
            if self._closed:
                projection.close()

        update()
        self._listeners.append(update)
        return projection

    def listen(self, callback: Callable[[T], None]) -> None:
        """Call back with the value now, and from inside `publish` with each later one, before anybody else acts on it.

        For bookkeeping that has to be done first: it must be quick, and what it raises the owner gets.
        """
        callback(self._value)
        version = self._version

        def tell() -> None:
            nonlocal version
            if version != self._version:
                version = self._version
                callback(self._value)

        self._listeners.append(tell)

    def _tell(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        for tell in self._listeners:
            tell()
