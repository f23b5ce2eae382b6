"""The KV index against Dynamo's `RadixTree`: CPU time per operation, memory per (engine, block), and pauses.

The peer is optional: `pip install ai-dynamo-runtime==1.6.1`. It is given block hashes ready made, as JSON; ours takes
token ids and hashes them, so our time to apply includes what the peer's does not. Bars are ratios of one run.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from bench.measure import first_line, interleave, ratio_of_medians, resident_bytes, spawn
from enginehouse.core.kv.blocks import Scheme, keys, pack
from enginehouse.core.kv.index import KvIndex
from enginehouse.domain.kv import Removed, Stored

SIZE = 16
"""Tokens per block."""
SCHEME = Scheme(SIZE)
PROMPT = 2000
"""Blocks of the prompt that is hashed and looked up: 32,000 tokens."""
SHARED = 100
"""Blocks that all engines have in common."""
ROOM = 8_000_000
SLICE = 256
"""Pairs that one call of `sweep` takes apart."""

Tokens = Sequence[int]


@dataclass
class Row:
    """One line of the table. Without a bar it is for information; `ratio` and `met` are of the bar's own kind."""

    name: str
    unit: str
    ours: float
    theirs: float | None = None
    bar: str = ""
    met: bool | None = None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--engines", type=int, default=64, help="of the memory measurement")
    parser.add_argument("--blocks", type=int, default=100_000, help="that each of them holds")
    parser.add_argument(
        "--stores", type=int, default=10_000_000, help="without a removal, under a cap of a tenth; 0: skip"
    )
    parser.add_argument("--fill", choices=FILLS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        print(json.dumps(FILLS[options.fill](options)))
        return
    peer = find_peer()
    rows = [*speed(peer, options.rounds), *pauses(), *memory(options, peer)]
    if options.json:
        found = [vars(row) | {"ratio": row.ratio} for row in rows]
        print(json.dumps({"benchmark": "kv_index", "peer": bool(peer), "rows": found}))
    else:
        print(table(rows, peer))


def find_peer() -> ModuleType | None:
    """Dynamo's module, when it is installed."""
    try:
        return importlib.import_module("dynamo.llm")
    except ImportError:
        return None


# What both are given.


def tokens_of(blocks: int, chance: random.Random) -> list[int]:
    return [chance.randrange(150_000) for _ in range(blocks * SIZE)]


def runs_of(chains: int, per_chain: int, blocks: int, chance: random.Random) -> list[Stored]:
    """Chains of runs, each run behind the one before it, as events are decoded: tokens in arrays.

    Ids of 63 bits, which the peer's JSON takes.
    """
    runs = []
    for _ in range(chains):
        parent = None
        for _ in range(per_chain):
            hashes = [chance.getrandbits(63) for _ in range(blocks)]
            runs.append(Stored(hashes, parent, array("I", tokens_of(blocks, chance)), SIZE))
            parent = hashes[-1]
    return runs


def their_stored(peer: ModuleType, event: Stored) -> bytes:
    """The same run as the peer takes it."""
    hashes = peer.compute_block_hash_for_seq(list(event.token_ids), SIZE)
    blocks = [{"block_hash": one, "tokens_hash": two} for one, two in zip(event.hashes, hashes, strict=True)]
    data = {"stored": {"parent_hash": event.parent, "blocks": blocks}}
    return json.dumps({"event_id": next(EVENT_IDS), "data": data}).encode()


def their_removed(event: Removed) -> bytes:
    data = {"removed": {"block_hashes": list(event.hashes)}}
    return json.dumps({"event_id": next(EVENT_IDS), "data": data}).encode()


EVENT_IDS = itertools.count()


# How long things take.


def cpu(work: Callable[[], object], units: int = 1) -> float:
    """CPU microseconds per unit, of all threads: the peer works in one of its own."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / units * 1e6


def each(call: Callable[[Any], object], inputs: Iterable[Any]) -> None:
    for one in inputs:
        call(one)


def versus(
    name: str, ours: Callable[[], float], theirs: Callable[[], float] | None, rounds: int, bar: float | None = None
) -> Row:
    """One row of two contestants that take turns."""
    contestants = {"ours": ours} | ({"theirs": theirs} if theirs else {})
    costs = interleave(contestants, rounds)
    row = Row(name, "µs", statistics.median(costs["ours"]), bar=f"<= {bar} x peer" if bar else "")
    if theirs:
        row.theirs = statistics.median(costs["theirs"])
        if bar:
            row.met = ratio_of_medians(costs["ours"], costs["theirs"]) <= bar
    return row


def speed(peer: ModuleType | None, rounds: int) -> list[Row]:
    chance = random.Random(1)
    prompt = tokens_of(PROMPT, chance)
    rows = [
        versus(
            f"hash {PROMPT * SIZE:,} tokens in blocks of {SIZE}",
            lambda: cpu(lambda: keys(pack(prompt), SCHEME)),
            partial(cpu, partial(peer.compute_block_hash_for_seq, prompt, SIZE)) if peer else None,
            rounds * 5,
            1.5,
        )
    ]
    shapes = (("nobody holds any", 0, 0), ("one engine holds all", 1, 0), ("64 engines share 100", 64, SHARED))
    for shape, engines, shared in (*shapes, ("256 engines share 100", 256, SHARED)):
        bar = 0.5 if shape == "64 engines share 100" else None
        rows.append(lookup(f"longest prefix of {PROMPT:,}, {shape}", prompt, engines, shared, peer, rounds, bar))
    single, runs = apply(1, peer, rounds), apply(32, peer, rounds)
    for row in (single[0], runs[0]):
        row.bar = "<= 0.5 x peer at 1 per event"
        row.met = row.ours <= 0.5 * single[0].theirs if single[0].theirs else None
    return [*rows, *single, *runs]


def lookup(
    name: str, prompt: list[int], engines: int, shared: int, peer: ModuleType | None, rounds: int, bar: float | None
) -> Row:
    """One engine holds the whole prompt, the others what they share of it and as much of their own."""
    chance = random.Random(engines)
    index, tree = KvIndex(ROOM), peer.RadixTree() if peer else None
    for engine in range(engines):
        tail = prompt[shared * SIZE :] if not engine else tokens_of(PROMPT - shared if engines <= 64 else 50, chance)
        tokens = prompt[: shared * SIZE] + tail
        event = Stored([chance.getrandbits(63) for _ in range(len(tokens) // SIZE)], None, tokens, SIZE)
        index.store(index.join(), event)
        if peer and tree:
            tree.apply_event(engine, their_stored(peer, event))
    mine = keys(pack(prompt), SCHEME)
    assert sorted(index.lookup(mine).values()) == [*[shared] * (engines - 1), *[PROMPT] * (engines > 0)]
    find = None
    if peer and tree:
        theirs = peer.compute_block_hash_for_seq(prompt, SIZE)
        assert sorted(tree.find_matches(theirs).scores.values()) == sorted(index.lookup(mine).values())
        find = partial(cpu, partial(each, tree.find_matches, [theirs] * 5), 5)
    return versus(name, lambda: cpu(lambda: each(index.lookup, [mine] * 5), 5), find, rounds * 5, bar)


def apply(blocks: int, peer: ModuleType | None, rounds: int) -> list[Row]:
    """Store runs of so many blocks into an index that grows from nothing, and remove them, the last ones first."""
    events = runs_of(100 * rounds // blocks + rounds, 4, blocks, random.Random(2))
    removals = [Removed(event.hashes[::-1]) for event in reversed(events)]
    index, tree = KvIndex(ROOM), peer.RadixTree() if peer else None
    holder = index.join()
    per_round = len(events) // rounds

    def turns(call: Callable[[Any], object], inputs: list[Any]) -> Callable[[], float]:
        chunks = iter([inputs[at : at + per_round] for at in range(0, len(inputs), per_round)])
        return lambda: cpu(partial(each, call, next(chunks)), per_round * blocks)

    their_store = their_remove = None
    if peer and tree:
        their_store = turns(partial(tree.apply_event, 0), [their_stored(peer, event) for event in events])
        # Of a run of several the peer drops all with the first that is removed, and fails on the others.
        if blocks == 1:
            their_remove = turns(partial(tree.apply_event, 0), [their_removed(event) for event in removals])
    what = f"per block, {blocks} per event"
    stored = versus(f"apply stored, {what}", turns(partial(index.store, holder), events), their_store, rounds)
    assert holder.blocks == per_round * rounds * blocks
    removed = versus(f"remove, {what}", turns(partial(index.remove, holder), removals), their_remove, rounds)
    return [stored, removed]


def pauses() -> list[Row]:
    """What holds the loop: CPU, because the machine's other work is not ours."""
    index = KvIndex(ROOM)
    holders = [index.join(), index.join()]
    events = runs_of(1000, 4, 32, random.Random(3))
    stores = [cpu(partial(index.store, holder, event)) for event in events for holder in holders]
    blocks = holders[0].blocks
    mine = keys(pack(events[0].token_ids), SCHEME)
    rows = [Row("longest store of 32 blocks while growing", "µs", max(stores))]
    for name, call, holder in (("clear", index.clear, holders[0]), ("leave", index.leave, holders[1])):
        rows.append(Row(f"{name} of {blocks:,} blocks, until invisible", "µs", cpu(partial(call, holder))))
        assert holder not in index.lookup(mine)
    slices = []
    while index.pending:
        slices.append(cpu(partial(index.sweep, SLICE)))
    rows.append(Row(f"sweep of {SLICE} pairs, median", "µs", statistics.median(slices)))
    rows.append(Row(f"sweep of {SLICE} pairs, longest", "µs", max(slices)))
    return rows


# Memory, each in a process of its own.


def memory(options: argparse.Namespace, peer: ModuleType | None) -> list[Row]:
    def fill(kind: str) -> dict[str, float]:
        arguments = (f"--engines={options.engines}", f"--blocks={options.blocks}", f"--stores={options.stores}")
        child = spawn("bench.kv_index", f"--fill={kind}", *arguments)
        found: dict[str, float] = json.loads(first_line(child))
        child.wait()
        return found

    rows = []
    for kind in ("distinct", "shared"):
        ours = fill(kind)
        name = f"memory per (engine, block), {options.engines} x {options.blocks:,} {kind}"
        theirs = fill(f"peer-{kind}")["resident"] if peer else None
        rows.append(Row(name, "bytes", ours["resident"], theirs, "<= 80", ours["resident"] <= 80))
        rows.append(Row("  the same as `KvIndex.memory` counts it", "bytes", ours["counted"]))
    if options.stores:
        ours = fill("endless")
        name = f"{options.stores:,} stores, no removal, cap {options.stores // 10:,}: per pair of the cap"
        rows.append(Row(name, "bytes", ours["resident"], None, "<= 80", ours["resident"] <= 80))
        rows.append(Row("  CPU per block, eviction included", "µs", ours["cost"]))
    return rows


RUN = 100
"""Blocks per event of the fillings."""


def fill_ours(options: argparse.Namespace, shared: bool) -> dict[str, float]:
    index = KvIndex(ROOM)
    handles = itertools.count()
    before = resident_bytes(os.getpid())
    for engine in range(options.engines):
        holder = index.join()
        for run in range(options.blocks // RUN):
            index.store(holder, _filling(handles, run if shared else run + engine * options.blocks))
    pairs = options.engines * (options.blocks // RUN * RUN)
    assert index.blocks == pairs
    return {"resident": (resident_bytes(os.getpid()) - before) / pairs, "counted": index.memory / pairs}


def fill_peer(options: argparse.Namespace, shared: bool) -> dict[str, float]:
    peer = find_peer()
    assert peer
    tree, handles = peer.RadixTree(), itertools.count()
    before = resident_bytes(os.getpid())
    for engine in range(options.engines):
        for run in range(options.blocks // RUN):
            event = _filling(handles, run if shared else run + engine * options.blocks)
            tree.apply_event(engine, their_stored(peer, event))
    return {"resident": (resident_bytes(os.getpid()) - before) / (options.engines * (options.blocks // RUN * RUN))}


def fill_without_end(options: argparse.Namespace) -> dict[str, float]:
    """Four engines that store and never remove, under a cap of a tenth of all."""
    cap = options.stores // 10
    index = KvIndex(cap)
    holders = [index.join() for _ in range(4)]
    handles = itertools.count()
    before, cost = resident_bytes(os.getpid()), 0.0
    for run in range(options.stores // RUN):
        event = _filling(handles, run)
        cost += cpu(partial(index.store, holders[run % 4], event))
    assert index.evicted == options.stores // RUN * RUN - index.blocks
    assert index.blocks <= cap
    return {"resident": (resident_bytes(os.getpid()) - before) / cap, "cost": cost / options.stores}


def _filling(handles: Iterable[int], number: int) -> Stored:
    """A run with content of its own per number."""
    words = random.Random(number).randbytes(RUN * SIZE * 2)
    hashes = [(one * 0x9E3779B97F4A7C15) % 2**63 for one in itertools.islice(handles, RUN)]
    return Stored(hashes, None, array("H", words).tolist(), SIZE)


FILLS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "distinct": partial(fill_ours, shared=False),
    "shared": partial(fill_ours, shared=True),
    "peer-distinct": partial(fill_peer, shared=False),
    "peer-shared": partial(fill_peer, shared=True),
    "endless": fill_without_end,
}


def table(rows: list[Row], peer: ModuleType | None) -> str:
    """For people."""
    lines = [] if peer else ["The peer is not installed (pip install ai-dynamo-runtime==1.6.1): no ratio can be given."]
    lines.append(f"{'':<68} {'ours':>9} {'peer':>9} {'ratio':>6}  bar")
    for row in rows:
        theirs = f"{row.theirs:9.2f}" if row.theirs is not None else f"{'-':>9}"
        ratio = f"{row.ratio:6.2f}" if row.ratio is not None else f"{'-':>6}"
        verdict = "" if row.met is None else "  met" if row.met else "  NOT met"
        lines.append(f"{row.name:<68} {row.ours:9.2f} {theirs} {ratio}  {row.bar}{verdict} [{row.unit}]")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
