"""Owns what goes on after a client left between two legs: a decode engine takes the kept cache, and is told to stop.

Until one has, the prefill engine keeps the blocks for its whole lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import structlog

from enginehouse.domain.errors import EngineError
from enginehouse.service.pair_counts import PairCounts

log = structlog.get_logger("enginehouse.pairs")

_PATIENCE = 20.0
"""Seconds that a decode engine may take. After 30, a lease by vLLM's defaults, the blocks are free anyway."""


class Releases:
    """The tasks, each bounded in time."""

    def __init__(self, counts: PairCounts) -> None:
        self._counts = counts
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, fetching: Coroutine[None, None, EngineError | None]) -> None:
        """fetching: ends with the decode engine's first token or with its error, and settles the legs on every exit."""
        task = asyncio.get_running_loop().create_task(self._release(fetching), name="release")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _release(self, fetching: Coroutine[None, None, EngineError | None]) -> None:
        error: Exception | None = None
        try:
            async with asyncio.timeout(_PATIENCE):
                error = await fetching
        except TimeoutError as late:
            error = late
        if error is None:
            self._counts.released += 1
        else:
            self._counts.stranded += 1
            log.info("kept blocks were not fetched", error=type(error).__name__, reason=str(error))
