"""Policies compared on simulated engines: `python -m bench.routing_sim --trace FILE --engines 8 --load 0.7 [--json]`.

The router, the ledger, the index and what surrounds it are the real ones; engines, clients and time are not. Load 1 is
the rate at which the engines would just keep up if no prompt were ever found in a cache; time is stretched evenly to
the load asked for, the same for every policy. Each engine's cache has, unless said otherwise, an equal share of the
blocks that the whole workload ever makes: together they hold the working set.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import get_args

from bench.sim_engine import Engine, Job, Spec
from bench.sim_frontend import Frontend, removed, stored
from bench.sim_workload import Request, Workload, multi_turn, shared_prefix, trace
from enginehouse.core.kv.knowledge import Sent
from enginehouse.core.routing.ledger import Charge
from enginehouse.core.routing.settings import PolicyName, RoutingSettings
from enginehouse.domain.kv import KvEvent

EVENT_DELAY = 0.01
"""Seconds from a change in an engine's cache until all frontends know it."""

_ENGINE, _EVENTS = 1, 0
"""What can happen; of things at one instant the lower comes first, and a request that arrives last."""


@dataclass(frozen=True)
class Result:
    """How one policy did."""

    policy: str
    requests: int
    hit_rate: float
    """Blocks found in caches, of all blocks of prompts."""
    of_unlimited: float
    """The same, of what one unlimited cache would find."""
    ttft_mean: float
    """Seconds to the first token, as the others."""
    ttft_p50: float
    ttft_p99: float
    token_mean: float
    """Mean seconds between two tokens of an answer."""
    spread_requests: float
    """Of the busiest engine, by the mean."""
    spread_prefill: float
    """The same, of seconds spent on prefill."""
    prefill_busy: float
    """Mean share of time in which an engine had a prompt to compute."""
    predicted_exactly: float | None
    """Requests of which the frontend foretold the blocks found."""
    cpu_us: float
    """CPU per decision; not deterministic."""


class Simulation:
    """One policy on one workload. A Watcher of its engines."""

    def __init__(
        self,
        workload: Workload,
        spec: Spec,
        routing: RoutingSettings,
        *,
        engines: int,
        frontends: int = 1,
        seed: int = 1,
        event_delay: float = EVENT_DELAY,
    ) -> None:
        size = workload.block_size
        self.workload = workload
        self.frontends = [
            Frontend(
                routing,
                engines=engines,
                block_size=size,
                capacity=spec.blocks,
                max_running=spec.max_running,
                seed=f"{seed}/{number}",
            )
            for number in range(frontends)
        ]
        self.engines = [Engine(number, spec, size, self) for number in range(engines)]
        self.done: list[Job] = []
        self.ended_at = 0.0
        self.foretold = 0
        self._policy = routing.policy
        self._rng = Random(f"clients/{seed}")
        self._delay = event_delay
        self._agenda: list[tuple[float, int, int, int | list[KvEvent], int]] = []
        self._order = 0
        self._open: dict[int, tuple[Charge, Sent | None]] = {}

    def run(self) -> Result:
        """Until the last answer."""
        arrivals = iter(enumerate(self.workload.requests))
        upcoming = next(arrivals, None)
        while self._agenda or upcoming is not None:
            if upcoming is not None and (not self._agenda or upcoming[1].at < self._agenda[0][0]):
                number, request = upcoming
                self._arrive(number, request)
                upcoming = next(arrivals, None)
                continue
            now, kind, _, what, engine_number = heapq.heappop(self._agenda)
            if kind == _EVENTS:
                assert isinstance(what, list)
                for frontend in self.frontends:
                    frontend.hear(engine_number, what)
                continue
            engine = self.engines[engine_number]
            if what == engine.version:
                engine.advance(now)
                self._wake(engine)
        return self._result()

    def first_token(self, job: Job, now: float) -> None:
        charge, sent = self._open[job.number]
        charge.prefilled()
        if sent is not None:
            sent.answered(now)

    def finished(self, job: Job, now: float) -> None:
        charge, sent = self._open.pop(job.number)
        charge.release()
        if sent is not None:
            sent.ended(min(job.found * self.workload.block_size, job.request.tokens - 1))
        self.done.append(job)
        job.done_at = now
        self.ended_at = now

    def blocks(
        self,
        engine: int,
        runs: Sequence[tuple[int | None, Sequence[int]]],
        gone: Iterable[int],
        now: float,
    ) -> None:
        if self._policy == "kv":
            events = stored(self.workload.block_size, runs)
            if gone:
                events += removed(gone)
            self._put(now + self._delay, _EVENTS, events, engine)

    def _arrive(self, number: int, request: Request) -> None:
        which = int(self._rng.random() * len(self.frontends))
        decision, charge, sent = self.frontends[which].choose(request, request.at)
        self._open[number] = charge, sent
        engine = self.engines[decision.chosen.member]
        job = Job(request, number, engine.number)
        job.predicted = decision.predicted
        engine.submit(job, request.at)
        self._wake(engine)

    def _wake(self, engine: Engine) -> None:
        at = engine.next_at
        if at is not None:
            self._put(at, _ENGINE, engine.version, engine.number)

    def _put(self, at: float, kind: int, what: int | list[KvEvent], engine: int) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (at, kind, self._order, what, engine))

    def _result(self) -> Result:
        jobs = self.done
        size = self.workload.block_size
        found = sum(job.found for job in jobs)
        waits = sorted(job.first_at - job.request.at for job in jobs)
        choosing = sum(frontend.choosing for frontend in self.frontends)
        exact = sum(job.predicted == min(job.found, (job.request.tokens - 1) // size) * size for job in jobs)
        pauses = [(j.done_at - j.first_at) / (j.request.output - 1) for j in jobs if j.request.output > 1]
        return Result(
            policy=self._policy,
            requests=len(jobs),
            hit_rate=found / self.workload.total_blocks,
            of_unlimited=found / max(1, self.workload.unlimited_hits()),
            ttft_mean=statistics.fmean(waits),
            ttft_p50=waits[len(waits) // 2],
            ttft_p99=waits[int(len(waits) * 0.99)],
            token_mean=statistics.fmean(pauses) if pauses else 0.0,
            spread_requests=_spread([engine.requests for engine in self.engines]),
            spread_prefill=_spread([engine.prefill_seconds for engine in self.engines]),
            prefill_busy=statistics.fmean(engine.prefill_seconds for engine in self.engines) / self.ended_at,
            predicted_exactly=exact / len(jobs) if self._policy == "kv" else None,
            cpu_us=choosing / len(jobs) * 1e6,
        )


def _spread(values: Sequence[float]) -> float:
    return max(values) / statistics.fmean(values)


def prepare(workload: Workload, spec: Spec, engines: int, load: float, capacity: int | None) -> tuple[Workload, Spec]:
    """The workload at the load asked for, and engines whose caches together hold it unless a capacity is given."""
    if capacity is None:
        capacity = -(-workload.distinct_blocks // engines)
    largest = max(len(r.blocks) + workload.answer_blocks(r) for r in workload.requests)
    spec = replace(spec, blocks=max(capacity, largest))
    return workload.at_rate(load * engines * spec.most_per_second(workload)), spec


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.routing_sim", description=__doc__)
    parser.add_argument("--trace", type=Path, help="recorded requests, JSON lines")
    parser.add_argument("--workload", choices=["multi-turn", "shared-prefix"], help="generated, in place of a trace")
    parser.add_argument("--requests", type=int, help="so many and no more (generated: 12000)")
    parser.add_argument(
        "--smooth", action="store_true", help="spread those of a tick of the trace's clock up to the next"
    )
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--frontends", type=int, default=1)
    parser.add_argument("--policies", default="round-robin,random,least-loaded,power-of-two,kv")
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--capacity-blocks", type=int, help="of one engine's cache")
    parser.add_argument("--event-delay", type=float, default=EVENT_DELAY, help="seconds")
    parser.add_argument("--affinity", action="store_true", help="keep chats on their engines")
    parser.add_argument("--weights", default="", help="settings of policy kv, such as queue=1,decode=0.1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    if (given.trace is None) == (given.workload is None):
        parser.error("give either --trace or --workload")
    unknown = set(given.policies.split(",")) - set(get_args(PolicyName))
    if unknown:
        parser.error(f"no such policy: {', '.join(sorted(unknown))}")
    return given


def load_workload(given: argparse.Namespace) -> Workload:
    """As the command line has it."""
    if given.trace is not None:
        return trace(given.trace, given.requests, smooth=given.smooth)
    make = multi_turn if given.workload == "multi-turn" else shared_prefix
    return make(given.requests or 12_000, given.seed)


def main(argv: Sequence[str] | None = None) -> int:
    """Run and print."""
    given = _arguments(argv)
    workload, spec = prepare(load_workload(given), Spec(), given.engines, given.load, given.capacity_blocks)
    weights = {
        f"kv_{name}": float(value) for name, _, value in (w.partition("=") for w in given.weights.split(",") if w)
    }
    weights = {name if name == "kv_temperature" else f"{name}_weight": value for name, value in weights.items()}
    results = []
    for policy in given.policies.split(","):
        routing = replace(RoutingSettings(policy=policy, affinity="user" if given.affinity else "off"), **weights)
        simulation = Simulation(
            workload,
            spec,
            routing,
            engines=given.engines,
            frontends=given.frontends,
            seed=given.seed,
            event_delay=given.event_delay,
        )
        results.append(simulation.run())
        if not given.json:
            print(_line(results[-1], header=len(results) == 1), flush=True)
    if given.json:
        unlimited = workload.unlimited_hits() / workload.total_blocks
        told = {
            "workload": workload.name,
            "engines": given.engines,
            "frontends": given.frontends,
            "load": given.load,
            "requests_per_second": len(workload.requests) / workload.requests[-1].at,
            "cache_blocks_per_engine": spec.blocks,
            "unlimited_hit_rate": unlimited,
            "results": [asdict(result) for result in results],
        }
        json.dump(told, sys.stdout, indent=1)
        print()
    return 0


def _line(r: Result, *, header: bool) -> str:
    names = (
        "policy",
        "hits",
        "of all",
        "ttft mean",
        "p50",
        "p99",
        "s/token",
        "requests",
        "prefill",
        "busy",
        "exact",
        "cpu us",
    )
    line = "".join(f"{name:>13}" if i == 0 else f"{name:>10}" for i, name in enumerate(names)) + "\n" if header else ""
    exact = "" if r.predicted_exactly is None else f"{r.predicted_exactly:.3f}"
    return line + (
        f"{r.policy:>13}{r.hit_rate:>10.3f}{r.of_unlimited:>10.3f}{r.ttft_mean:>10.3f}{r.ttft_p50:>10.3f}"
        f"{r.ttft_p99:>10.3f}{r.token_mean:>10.4f}{r.spread_requests:>10.3f}{r.spread_prefill:>10.3f}"
        f"{r.prefill_busy:>10.3f}{exact:>10}{r.cpu_us:>10.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
