"""The simulator on an event loop: one timer drives every stream, and a reader that is late gets its tokens together."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from enginehouse.domain.constraint import Constraint
from enginehouse.mock.embedding import embedding
from enginehouse.mock.handover.desk import Desk
from enginehouse.mock.journal import Journal
from enginehouse.mock.kv.sockets import KvEvents
from enginehouse.mock.likely import Likely, likely
from enginehouse.mock.says import said
from enginehouse.mock.settings import Faults, MockSettings
from enginehouse.mock.simulator import Answer, End, Job, Simulator
from enginehouse.mock.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Step:
    """News of one answer."""

    new: list[int]
    total: int
    """Output tokens so far, these included."""
    end: End | None


class Engine:
    """One mock engine without its gRPC front. Use it from one event loop."""

    def __init__(self, settings: MockSettings, vocabulary: Vocabulary, journal: Journal) -> None:
        self.settings = settings
        self.vocabulary = vocabulary
        self.journal = journal
        self.simulator = Simulator(settings, vocabulary)
        self.kv = None if settings.kv_events_port is None else KvEvents(settings)
        """Where it tells what its caches do; the server opens it."""
        self.handover = Desk(self)
        """Where it passes KV caches on; the server opens it."""
        self.streams: dict[Answer, Stream] = {}
        self.started_ns = time.time_ns()
        """Tells this process from the one before it."""
        self.leaving = False
        """It was told to stop: health says no."""
        self.warm = True
        self.die: Callable[[], None] = lambda: None
        """What an injected death does; the server sets it."""
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._watchers: list[asyncio.Future[None]] = []

    @property
    def healthy(self) -> bool:
        """What health calls answer."""
        return self.warm and not self.leaving and self.simulator.faults.healthy

    @property
    def faults(self) -> Faults:
        """How it misbehaves now."""
        return self.simulator.faults

    def set_faults(self, faults: Faults) -> None:
        """Misbehave like this from now on."""
        self.simulator.set_faults(faults)
        if self.kv is not None:
            self.kv.set_faults(faults)
        self.handover.changed()
        self.changed()
        self.poke()

    def said(self, prompt: Sequence[int], constraint: Constraint | None) -> list[int]:
        """What it says to this instead of its words. Raises Unsayable."""
        return said(self.faults, self.vocabulary, prompt, constraint)

    def likely(self, tokens: Sequence[int], most: int) -> list[Likely]:
        """How likely it finds these tokens."""
        return [likely(token, most, self.vocabulary.size) for token in tokens]

    async def embed(self, rid: str, prompt: Sequence[int]) -> list[float]:
        """The embedding of a prompt, unless it has been told to say nothing."""
        self.journal.write("embed", rid=rid, prompt_tokens=len(prompt))
        while self.faults.never_answer:
            await self.next_change()
        return embedding(prompt, self.settings.embedding_size)

    def open(self, job: Job) -> Stream:
        """Take a request up; leaving the stream (a context manager) aborts what has not ended."""
        answer = self.simulator.submit(job)
        stream = self.streams[answer] = Stream(self, answer)
        self.journal.write(
            "request",
            rid=job.rid,
            rank=answer.rank,
            prompt_tokens=len(job.prompt),
            max_tokens=job.max_tokens,
            **({"lora": job.lora} if job.lora else {}),
            **job.wishes.told(),
        )
        self.handover.begin(answer)
        self.poke()
        return stream

    def abort(self, stream: Stream, *, by: str) -> None:
        """Stop a request; its reader sees the end."""
        if stream.answer.end is None:
            self.journal.write("abort", rid=stream.answer.job.rid, by=by, tokens=len(stream.answer.output))
            self.simulator.abort(stream.answer)
            self.acted(stream.answer)

    def acted(self, answer: Answer) -> None:
        """Something other than a step changed an answer."""
        self._tell()
        if (stream := self.streams.get(answer)) is not None:
            stream.wake()
        self.poke()

    def by_rid(self, rid: str) -> list[Stream]:
        """The open requests of this id."""
        return [stream for answer, stream in self.streams.items() if answer.job.rid == rid]

    def poke(self) -> None:
        """Something happened that may make a step due."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._timer is not None and self._timer_at <= now:
            return
        due = self.simulator.wake_at(now)
        if self._timer is not None:
            if due is not None and due >= self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer_at = due
            # Loops round to milliseconds: rounding up here keeps a timer from firing early, again and again.
            late = math.ceil((due - now) * 1000) / 1000
            self._timer = loop.call_soon(self._step) if due <= now else loop.call_later(late, self._step)

    def _step(self) -> None:
        self._timer = None
        news = self.simulator.step(asyncio.get_running_loop().time())
        self._tell()
        for answer in news:
            self.streams[answer].wake()
            self.handover.stepped(answer)
        if self.simulator.dead:
            self.die()
        else:
            self.poke()

    def _tell(self) -> None:
        """Publish what the caches did: one batch for each rank that has news, before a reader hears of the step."""
        if self.kv is not None:
            for number, rank in enumerate(self.simulator.ranks):
                if rank.news:
                    self.kv.publish(number, rank.news)
                    rank.news = []

    async def settled(self) -> None:
        """Wait until every front has let go of its request."""
        while self.streams:
            await self.next_change()

    def close(self) -> None:
        """Let no timer outlive the engine."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.kv is not None:
            self.kv.close()
        self.handover.close()
        self.journal.close()

    def changed(self) -> None:
        """Health may have changed, or a request has ended: wake those who watch."""
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    def next_change(self) -> asyncio.Future[None]:
        """Done at the next such change from now on: who asks first and looks then misses none."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        return watcher


class Stream:
    """One request as its front reads it: iterate for news, asking for the next Step when the last one was passed on."""

    def __init__(self, engine: Engine, answer: Answer) -> None:
        self.answer = answer
        self._engine = engine
        self._unpaced = not engine.settings.tokens_per_second
        self._seen = 0
        self._over = False
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.abort(self, by="cancel")
        self._engine.streams.pop(self.answer, None)
        answer = self.answer
        self._engine.handover.end(answer)
        self._engine.journal.write("end", rid=answer.job.rid, outcome=answer.end, tokens=len(answer.output))
        self._engine.changed()
        self._engine.poke()

    def wake(self) -> None:
        """There is news."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Step:
        answer = self.answer
        if self._over:
            raise StopAsyncIteration
        if answer.taken != self._seen:
            answer.taken = self._seen
            if self._unpaced:
                self._engine.poke()
        while len(answer.output) == self._seen and answer.end is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        new = answer.output[self._seen :]
        self._seen += len(new)
        self._over = answer.end is not None
        return Step(new, self._seen, answer.end)
