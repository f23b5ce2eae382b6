"""A simulated frontend: the real router, ledger and knowledge, put together as the service does it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from random import Random
from time import thread_time

from bench.sim_workload import Request
from enginehouse.core.kv.knowledge import Knowledge, Sent
from enginehouse.core.kv.settings import KvSettings
from enginehouse.core.kv.slices import slices
from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.ledger import Charge, Ledger
from enginehouse.core.routing.policy import Decision, Router
from enginehouse.core.routing.settings import RoutingSettings
from enginehouse.domain.kv import KvBatch, KvEvent, RankKey, Removed, Stored, Trust


class _Unseen:
    """A prompt of which a policy learns the length alone."""

    def __init__(self, request: Request) -> None:
        self.tokens = request.tokens
        self.session = request.session

    def held(self, candidate: Candidate) -> int:
        """Not asked."""
        raise AssertionError("this policy does not ask what is held")


class Frontend:
    """One that talks to no other: it knows what it sent itself, and every engine's events."""

    def __init__(
        self,
        routing: RoutingSettings,
        *,
        engines: int,
        block_size: int,
        capacity: int,
        max_running: int,
        seed: str,
    ) -> None:
        self.ledger = Ledger()
        self.choosing = 0.0
        """Seconds of CPU for choices: hashing, looking up, weighing, booking."""
        self._block_size = block_size
        self._router = Router(routing, Random(seed))
        names = [f"engine-{number:04}" for number in range(engines)]
        self.candidates = tuple(
            Candidate(name, 1, name, None, self.ledger.load(name, 1, None), number, capacity * block_size, max_running)
            for number, name in enumerate(names)
        )
        self.ledger.keep_only(frozenset((name, 1, None) for name in names))
        self._keys = [RankKey(name, 1, 0) for name in names]
        self.knowledge: Knowledge | None = None
        if routing.policy == "kv":
            self.knowledge = Knowledge(KvSettings(kv_index_blocks=2 * engines * capacity))
            for key in self._keys:
                self.knowledge.join(key, block_size=block_size, capacity_tokens=capacity * block_size)
                self.knowledge.believe(key, Trust.SYNCED, "")

    def choose(self, request: Request, now: float) -> tuple[Decision, Charge, Sent | None]:
        """Choose for a request and book it."""
        token_ids = array("I") if self.knowledge is None else tokens_of(request, self._block_size)
        started = thread_time()
        sent = None
        if self.knowledge is None:
            decision = self._router.choose(self.candidates, (), _Unseen(request))
        else:
            prompt = self.knowledge.prompt(token_ids, session=request.session, now=now)
            decision = self._router.choose(self.candidates, (), prompt)
            sent = self.knowledge.dispatched(prompt, decision.chosen)
        charge = self.ledger.charge(decision.chosen, decision.tokens, decision.uncached)
        self.choosing += thread_time() - started
        return decision, charge, sent

    def hear(self, engine: int, events: list[KvEvent]) -> None:
        """A batch of an engine's events arrives."""
        if self.knowledge is not None:
            for event in slices(KvBatch(events)):
                self.knowledge.apply(self._keys[engine], event)


def tokens_of(request: Request, block_size: int) -> array[int]:
    """Token ids that differ where the blocks' ids do; a partial block that has an id counts as a whole one."""
    made = array("I")
    for block in request.blocks:
        made.frombytes(_block_tokens(block, block_size))
    tail = request.tokens - len(request.blocks) * block_size
    if tail > 0:
        made.extend(range(tail))
    return made


def stored(block_size: int, runs: Iterable[tuple[int | None, Sequence[int]]]) -> list[KvEvent]:
    """Events for runs of blocks."""
    made: list[KvEvent] = []
    for parent, blocks in runs:
        token_ids = array("I", b"".join(_block_tokens(block, block_size) for block in blocks))
        made.append(Stored(hashes=blocks, parent=parent, token_ids=token_ids, block_size=block_size))
    return made


def removed(blocks: Iterable[int]) -> list[KvEvent]:
    """Events for blocks that are gone."""
    return [Removed(tuple(blocks))]


def _block_tokens(block: int, block_size: int) -> bytes:
    return (block & 0xFFFFFFFF).to_bytes(4, "little") * block_size
