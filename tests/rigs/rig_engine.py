"""The pretend engine behind both native rigs: ranks, queues, pace, stops, faults."""

import asyncio
import dataclasses
import time

from rig_kv import KvPublisher, PrefixCache
from rigkit import Faults, Text, output_token


@dataclasses.dataclass
class Job:
    rid: str
    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    eos: int | None = None
    namespace: str = ""
    stored_extra: dict = dataclasses.field(default_factory=dict)  # extra keys of its BlockStored events
    aborted: bool = False


@dataclasses.dataclass
class Step:
    new: list[int]
    total: int
    cached: int
    finish: str | None = None  # length, stop, abort
    matched: int | str | None = None


class Refused(Exception):
    """The request fails with this text (an engine-side exception)."""


class Rank:
    """vllm: a clear is published only with the next request's events, and whole cached prompts store a second copy."""

    def __init__(self, number: int, args, vllm: bool, shape_events, old_replay: bool):
        self.number, self.shape_events, self.vllm, self.late = number, shape_events, vllm, []
        self.cache = PrefixCache(args.page_size, args.kv_pages, signed=not vllm)
        self.running = self.waiting = self.held = 0
        self.slots = asyncio.Semaphore(args.max_running)
        self.kv = None
        if args.kv_events:
            self.kv = KvPublisher(number, args.kv_events, args.kv_replay, args.kv_topic, args.kv_buffer, old_replay)

    def store(self, tokens, job: Job, cached: int = 0) -> None:
        new, evicted = self.cache.insert(tokens, job.namespace)
        if self.vllm and not new:
            new = self.cache.again(tokens, job.namespace, cached)
        if self.kv:
            self.kv.publish(self.late + self.shape_events(new, evicted, job.stored_extra))
            self.late = []

    def clear(self) -> None:
        self.cache.blocks.clear()
        events = self.shape_events(None, [], {})
        if self.vllm:
            self.late = events
        elif self.kv:
            self.kv.publish(events)


class Engine:
    """shape_events(stored blocks or None for a clear, removed hashes, extra keys) gives the events to publish."""

    def __init__(self, args, *, vllm: bool, shape_events, text: Text, old_replay: bool = False):
        self.args, self.faults, self.text = args, Faults(args.control), text
        self.ranks = [Rank(r, args, vllm, shape_events, old_replay) for r in range(args.dp_size)]
        self.jobs: dict[str, Job] = {}
        self.pause_called = False

    @property
    def paused(self) -> bool:
        return self.pause_called or bool(self.faults.get("paused"))

    def least_loaded(self) -> Rank:
        return min(self.ranks, key=lambda r: (r.running + r.waiting, r.number))

    def abort(self, rid: str, *, prefix: bool) -> None:
        for name, job in self.jobs.items():
            if name == rid or (prefix and name.startswith(rid)):
                job.aborted = True

    async def run(self, job: Job, rank: Rank, gate=None):
        """Yields Steps. gate(): awaited after prefill (prefill/decode hand-over)."""
        faults = self.faults
        if faults.get("error"):
            raise Refused(str(faults.get("error")))
        self.jobs[job.rid] = job
        rank.waiting += 1
        queued = True
        try:
            while faults.get("never_answer") or self.paused:
                await asyncio.sleep(0.05)
                if job.aborted:
                    yield Step([], 0, 0, "abort")
                    return
            async with rank.slots:
                queued = False
                rank.waiting -= 1
                rank.running += 1
                rank.held += len(job.prompt)
                try:
                    async for step in self._generate(job, rank, gate):
                        yield step
                finally:
                    rank.running -= 1
                    rank.held -= len(job.prompt)
        finally:
            if queued:
                rank.waiting -= 1
            self.jobs.pop(job.rid, None)

    async def _generate(self, job: Job, rank: Rank, gate):
        args, faults = self.args, self.faults
        cached = rank.cache.match(job.prompt, job.namespace)
        if args.prefill_tok_s:
            await asyncio.sleep((len(job.prompt) - cached) / args.prefill_tok_s)
        rank.store(job.prompt, job, cached)
        if gate:
            await gate()
        out: list[int] = []
        sent = 0
        clock = time.monotonic()
        while True:
            speed = faults.get("tok_s", args.tok_s)
            clock = max(clock + 1 / speed, time.monotonic() - 1) if speed else time.monotonic()
            await asyncio.sleep(max(0.0, clock - time.monotonic()))
            if job.aborted:
                yield Step(out[sent:], len(out), cached, "abort")
                return
            while self.paused or (
                faults.get("stall_after_tokens") is not None and len(out) >= faults.get("stall_after_tokens")
            ):
                await asyncio.sleep(0.05)
                if job.aborted:
                    yield Step(out[sent:], len(out), cached, "abort")
                    return
            if faults.get("error_after_tokens") is not None and len(out) >= faults.get("error_after_tokens"):
                raise Refused(str(faults.get("error_text", "injected failure")))
            faults.count_token()
            token = output_token(job.prompt, len(out), args.vocab)
            if args.eos_after and job.eos is not None and len(out) + 1 >= args.eos_after:
                token = job.eos
            out.append(token)
            finish = matched = None
            if len(out) >= job.min_tokens and (token in job.stop_ids or token == job.eos):
                finish, matched = "stop", token
            hold = False
            if not finish and job.stop_strings and self.text.tokenizer:
                tail = self.text.decode(out)
                matched = next((s for s in job.stop_strings if s in tail), None) if len(out) >= job.min_tokens else None
                finish = "stop" if matched else None
                hold = any(tail.endswith(s[:n]) for s in job.stop_strings for n in range(1, len(s)))
            if not finish and len(out) >= job.max_tokens:
                finish = "length"
            if finish or (not hold and (len(out) - sent >= args.stream_interval or len(out) == 1)):
                if finish:
                    rank.store(job.prompt + tuple(out[:-1]), job)  # the last token has no KV yet
                yield Step(out[sent:], len(out), cached, finish, matched)
                sent = len(out)
            if finish:
                return
