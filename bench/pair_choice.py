"""Pairs of prefill and decode engines: cross-group pairs and room collisions in 100,000 requests, and CPU per choice.

The fleet has three groups on each side, one of them without a mate; engines are excluded as if they had failed, loads
come and go. `python -m bench.pair_choice`
"""

from __future__ import annotations

import argparse
import json
import statistics
from array import array
from collections import deque
from collections.abc import Sequence
from random import Random
from time import thread_time

from enginehouse.core.kv.knowledge import Knowledge
from enginehouse.core.kv.settings import KvSettings
from enginehouse.core.routing.candidate import Candidate, Pairing
from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.core.routing.ledger import Charge, Ledger
from enginehouse.core.routing.pairs import NoPrefill, PairDecision, PairRouter
from enginehouse.core.routing.policy import AllExcluded, RoutingSettings
from enginehouse.core.routing.room import room
from enginehouse.domain.engine import ProtocolName
from enginehouse.domain.kv import RankKey

GROUPS = ("old", "new")
RANKS = 8
"""Of each prefill engine, for the rooms."""
TOKENS = 2000
BAR_MS = 1.0
"""CPU for one choice among 256 and 256: what may hold the event loop."""


class World:
    """A frontend's view of two pools, under the kv policy."""

    def __init__(self, each: int, seed: int) -> None:
        self.ledger = Ledger()
        self.knowledge = Knowledge(KvSettings())
        self.prefill = self._pool("prefill", each, (*GROUPS, "no decode"))
        self.decode = self._pool("decode", each, (*GROUPS, "no prefill"))
        self.router = PairRouter(RoutingSettings(policy="kv"), HandoverSettings(), Random(seed))
        self._running: deque[tuple[Charge, Charge]] = deque()

    def _pool(self, role: str, each: int, groups: Sequence[str]) -> tuple[Candidate, ...]:
        made = []
        for number in range(each):
            name = f"{role}-{number}"
            kind = Pairing(ProtocolName.SGLANG, "nixl", "auto", 16, groups[number % len(groups)])
            load = self.ledger.load(name, 1, None)
            made.append(Candidate(name, 1, name, None, load, number, 1_000_000, 256, pairing=kind))
            self.knowledge.join(RankKey(name, 1, 0), block_size=16, capacity_tokens=1_000_000)
        return tuple(made)

    def choose(self, token_ids: array[int], excluded: set[tuple[str, int]], now: float) -> tuple[PairDecision, float]:
        """A choice, booked and remembered, and the seconds of CPU that it took without these."""
        prompt = self.knowledge.prompt(token_ids, session=None, now=now)
        started = thread_time()
        decision = self.router.choose(self.prefill, self.decode, prompt, excluded)
        took = thread_time() - started
        assert isinstance(decision, PairDecision)
        for leg in (decision.prefill, decision.decode):
            if (sent := self.knowledge.dispatched(prompt, leg.chosen)) is not None:
                sent.answered(now)
                sent.ended(None)
        charge = self.ledger.charge
        first = charge(decision.prefill.chosen, prompt.tokens, decision.prefill.uncached)
        self._running.append((first, charge(decision.decode.chosen, prompt.tokens, 0)))
        if len(self._running) > 2 * len(self.prefill):
            for one in self._running.popleft():
                one.release()
        return decision, took


def main() -> None:
    """Run, print, and exit with 1 if a bar is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--timed", type=int, default=2000, help="choices among --candidates on each side")
    parser.add_argument("--candidates", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {**pairs(options.requests, options.seed), **cost(options.timed, options.candidates, options.seed)}
    met = not found["cross_group_pairs"] and not found["room_collisions"] and found["choice_ms_median"] <= BAR_MS
    if options.json:
        print(json.dumps(found | {"met": met}))
    else:
        print(f"requests {found['requests']:,.0f}, of them paired {found['paired']:,.0f}")
        print(f"cross-group pairs    {found['cross_group_pairs']:.0f}  (bar 0)")
        print(f"room collisions      {found['room_collisions']:.0f}  (bar 0)")
        print(f"CPU per choice among {options.candidates} and {options.candidates}, hashing of the prompt included:")
        print(f"  median {found['choice_ms_median']:.2f} ms (bar {BAR_MS:g}), p99 {found['choice_ms_p99']:.2f} ms")
        print("all met" if met else "NOT met")
    raise SystemExit(0 if met else 1)


def pairs(requests: int, seed: int) -> dict[str, float]:
    """One engine of each group on each side, so that exclusion often leaves one group only, or none."""
    world, rng = World(3, seed), Random(seed)
    everyone = [(c.engine_id, c.incarnation) for c in (*world.prefill, *world.decode)]
    prompts = [array("I", rng.randbytes(4 * 64)) for _ in range(200)]
    paired = crossed = 0
    rooms = set()
    for turn in range(requests):
        excluded = set(rng.sample(everyone, rng.randrange(4)))
        try:
            decision, _took = world.choose(rng.choice(prompts), excluded, turn / 100)
        except (AllExcluded, NoPrefill):
            continue
        first, second = decision.prefill.chosen.pairing, decision.decode.chosen.pairing
        assert first is not None
        assert second is not None
        paired += 1
        crossed += first.group != second.group
        rooms.add(room(rng.getrandbits(64), turn % RANKS, RANKS))
    collisions = paired - len(rooms)
    return {
        "requests": requests,
        "paired": paired,
        "cross_group_pairs": crossed,
        "room_collisions": collisions,
    }


def cost(choices: int, candidates: int, seed: int) -> dict[str, float]:
    """CPU per choice on a fleet that has work and knows what its engines hold."""
    world, rng = World(candidates, seed), Random(seed)
    prompts = [array("I", rng.randbytes(4 * TOKENS)) for _ in range(300)]
    took = [world.choose(rng.choice(prompts), set(), turn / 100)[1] for turn in range(choices)]
    warm = sorted(took[choices // 10 :])
    return {
        "choice_ms_median": statistics.median(warm) * 1e3,
        "choice_ms_p99": warm[int(0.99 * len(warm))] * 1e3,
    }


if __name__ == "__main__":
    main()
