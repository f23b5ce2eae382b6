"""The engines file as a feed, followed as it changes. `core.engine_list` decides what it says."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from enginehouse.core.engine_list import BadList, read_engine_list
from enginehouse.domain.feed import FeedEvent, FeedListed, FeedStatus, Wanted

_log = structlog.get_logger("enginehouse.engines_file")

_LARGEST = 16 * 1024 * 1024
"""Bytes: far beyond any list of engines, and little enough to be read every second."""


@dataclass(frozen=True, slots=True)
class EnginesFileSettings:
    """How closely an engines file is followed."""

    poll_interval: float = 1.0
    """Seconds between two looks at the file. It is read each time, so that neither coarse time stamps nor the swapped
    links of a ConfigMap hide a change."""
    settle_time: float = 0.1
    """Seconds for which changed content must stand still before it counts, as a file that is being written can be a
    valid shorter list."""
    read_timeout: float = 10.0
    """Seconds that one read may take before it is told as a failure, as on a network mount whose server is gone."""

    def __post_init__(self) -> None:
        if not self.poll_interval > 0:
            raise ValueError("poll_interval must be more than 0 seconds")
        if self.settle_time < 0:
            raise ValueError("settle_time must not be negative")
        if not self.read_timeout > 0:
            raise ValueError("read_timeout must be more than 0 seconds")


class FileFeed:
    """A YAML list of engines in a file, as a feed."""

    def __init__(
        self, path: str | Path, settings: EnginesFileSettings | None = None, name: str = "engines-file"
    ) -> None:
        self.name = name
        self._path = Path(path)
        self._settings = settings or EnginesFileSettings()
        self._content: bytes | None = None
        self._wanted: tuple[Wanted, ...] | None = None
        """The last good list."""
        self._listings = 0
        self._confirmed_at: float | None = None
        self._error: str | None = None
        self._next_at: float | None = None
        self._reading: asyncio.Future[bytes] | None = None
        """A read that has not come back yet."""

    def status(self) -> FeedStatus:
        """Say how fresh our knowledge is, and what is wrong with the file."""
        return FeedStatus(
            feed=self.name,
            kind="file",
            synced=self._wanted is not None,
            confirmed_at=self._confirmed_at,
            listings=self._listings,
            state=self._state(),
            error=self._error,
            next_try_at=self._next_at if self._error is not None else None,
        )

    def _state(self) -> str:
        if self._error is None:
            return "following" if self._wanted is not None else "reading"
        return "keeping the last good list" if self._wanted is not None else "waiting for a good list"

    async def run(self, post: Callable[[FeedEvent], None]) -> None:
        """Follow the file until cancelled."""
        loop = asyncio.get_running_loop()
        self._content = self._wanted = self._reading = None
        while True:
            await self._look(post)
            self._next_at = loop.time() + self._settings.poll_interval
            await asyncio.sleep(self._settings.poll_interval)

    async def _look(self, post: Callable[[FeedEvent], None]) -> None:
        try:
            content = await self._bytes()
            while content != self._content and self._settings.settle_time:
                await asyncio.sleep(self._settings.settle_time)
                again = await self._bytes()
                if again == content:
                    break
                content = again
        except OSError as error:
            self._content = None
            self._fail(f"{self._path}: {error.strerror or error}")
            return
        except Exception as error:  # such as no thread to be had: no reason to end the frontend
            self._content = None
            self._unforeseen(error)
            return
        if content != self._content:
            self._content = content
            self._read(content, post)
        if self._error is None:
            self._confirmed_at = asyncio.get_running_loop().time()

    async def _bytes(self) -> bytes:
        """What the file holds now. Raises OSError, and TimeoutError, which is one."""
        if self._reading is None:
            self._reading = _read_aside(self._path)
        # One that is stuck is waited for, not joined by others: each would cost a thread.
        await asyncio.wait([self._reading], timeout=self._settings.read_timeout)
        if not self._reading.done():
            raise TimeoutError(errno.ETIMEDOUT, f"reading it takes more than {self._settings.read_timeout:g} s")
        done, self._reading = self._reading, None
        return done.result()

    def _read(self, content: bytes, post: Callable[[FeedEvent], None]) -> None:
        try:
            answer = read_engine_list(content)
        except Exception as error:  # whatever the file made of it, the frontend serves on
            self._unforeseen(error)
            return
        if isinstance(answer, BadList):
            self._fail(f"{self._path}: {answer.reason}")
            return
        if self._error is not None:
            _log.info("engines file is good again", path=str(self._path))
        self._error = None
        if answer != self._wanted:
            self._wanted = answer
            self._listings += 1
            _log.info("engines listed", path=str(self._path), engines=len(answer))
            post(FeedListed(self.name, answer))

    def _unforeseen(self, error: Exception) -> None:
        _log.error("engines file met an error that nobody thought of", path=str(self._path), exc_info=error)
        self._fail(f"{self._path}: cannot be read: {type(error).__name__}; the log has more")

    def _fail(self, reason: str) -> None:
        if reason != self._error:
            kept = len(self._wanted) if self._wanted is not None else 0
            _log.warning("engines file cannot be used", error=reason, engines_kept=kept)
        self._error = reason


def _read_aside(path: Path) -> asyncio.Future[bytes]:
    """Read a file off the loop, in a thread that no exit waits for: a dead mount may hold it for ever."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bytes] = loop.create_future()

    def settle(content: bytes, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(content)
        else:
            future.set_exception(error)
            future.exception()  # seen: whoever waited may be gone, which is no reason for a warning

    def work() -> None:
        content, failure = b"", None
        try:
            content = _read_regular(path)
        except Exception as error:
            failure = error
        if not loop.is_closed():
            # Closed between the question and the call: nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, content, failure)

    threading.Thread(target=work, name=f"read {path}", daemon=True).start()
    return future


def _read_regular(path: Path) -> bytes:
    # Not blocking: opening a FIFO would wait for a writer. For regular files it means nothing.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        content = bytearray()
        while chunk := file.read(_LARGEST + 1 - len(content)):
            content += chunk
        if len(content) > _LARGEST:
            raise OSError(errno.EFBIG, f"larger than {_LARGEST} bytes")
        return bytes(content)
