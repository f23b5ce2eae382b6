"""How fast engines join and leave, on a real API server: `python -m bench.churn [--json] [--rounds N]`.

Real processes: `enginehouse serve` follows the pods of a kube-apiserver through a proxy of ours; its engines are
`enginehouse mock` on 127.0.0.2 and up, all on one pool-wide port. 200 requests a second flow all the time. Each figure
counts from just before the change is written to the API server to what the engine itself saw, so it is never flattered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.cluster import ApiServer, PodEngine, Proxy, api_server
from bench.contestants import Program, free_port, running, wait_listening
from bench.report import Bar, print_bars, run_in_folder
from bench.traffic import Traffic, stream

SETTLE = 2.0
"""Seconds after a withdrawal in which a request that must not come would still come."""
LONG = 160
"""Tokens of the streams that a leaving engine still has to end: 4 s."""
STREAMS = 12
MOCK = ("--max-running", "4096", "--prefill-tokens-per-second", "5000")


class Churn:
    """The programs, and what is done to them."""

    def __init__(self, api: ApiServer, proxy: Proxy, frontend: Program, engines: list[PodEngine]) -> None:
        self.api, self.proxy, self.frontend = api, proxy, frontend
        self.engines = engines
        self.pods = api.pods()
        self.traffic = Traffic(frontend.port)
        self.figures: dict[str, list[float]] = {}

    def note(self, what: str, value: float) -> None:
        """One round's figure."""
        self.figures.setdefault(what, []).append(value)

    async def create(self, engine: PodEngine, *, ready: bool) -> None:
        """The pod of an engine."""
        labels = {"app": "bench"}
        await asyncio.to_thread(self.pods.create, engine.name, ip=engine.address, labels=labels, ready=ready)

    async def at(self, change: Callable[..., Any], *arguments: Any, **named: Any) -> float:
        """Make a change at the API server; returns the moment before it."""
        moment = time.time()
        await asyncio.to_thread(change, *arguments, **named)
        return moment

    async def first(self, engine: PodEngine, moment: float, within: float) -> float:
        """Seconds from the moment to the engine's first request; `within` if there was none."""
        while time.time() - moment < within:
            if (seen := engine.first_request_after(moment)) is not None:
                return seen
            await asyncio.sleep(0.02)
        return within

    async def last(self, engine: PodEngine, moment: float) -> float:
        """Seconds from the moment to the engine's last new request; it must have had some until then."""
        if not any(moment - 0.5 < seen for seen in engine.events("request")):
            raise RuntimeError(f"{engine.name} got no requests before it was to leave: nothing is measured")
        await asyncio.sleep(max(0.0, moment + SETTLE - time.time()))
        return engine.last_request_after(moment)

    async def join_flap_leave(self, engine: PodEngine, *, gracefully: bool) -> None:
        """Ready, unready, ready again, deleted; streams run on the engine as it goes."""
        await self.create(engine, ready=False)
        await asyncio.sleep(0.3)
        moment = await self.at(self.pods.set, engine.name, ready=True)
        self.note("ready: first request", await self.first(engine, moment, 20))
        moment = await self.at(self.pods.set, engine.name, ready=False)
        self.note("unready: last new request", await self.last(engine, moment))
        moment = await self.at(self.pods.set, engine.name, ready=True)
        self.note("ready again: first request", await self.first(engine, moment, 20))
        await asyncio.sleep(0.5)

        streams = [asyncio.create_task(stream(self.frontend.port, LONG)) for _ in range(STREAMS)]
        await asyncio.sleep(0.5)
        moment = await self.at(self.pods.delete if gracefully else self.pods.gone, engine.name)
        self.note(f"{'deleted' if gracefully else 'gone'}: last new request", await self.last(engine, moment))
        ends = await asyncio.gather(*streams)
        self.note("streams cut by withdrawals", sum(end.how != "whole" for end in ends))
        if gracefully:
            await asyncio.to_thread(self.pods.gone, engine.name)

    async def outage(self, leaver: PodEngine, newcomer: PodEngine) -> None:
        """The API server is away; one pod goes and one comes; it is back as a new process."""
        await self.proxy.away()
        before = self.traffic.answers.total()
        await asyncio.to_thread(self.pods.gone, leaver.name)
        await self.create(newcomer, ready=True)
        await asyncio.to_thread(self.api.restart)
        await asyncio.sleep(1.0)
        self.note("requests answered while it was away", self.traffic.answers.total() - before)
        moment = time.time()
        await self.proxy.back()
        joined = await self.first(newcomer, moment, 30)
        await asyncio.sleep(SETTLE)
        left = leaver.last_request_after(moment)
        self.note("API server back: both known", max(joined, left))

    async def silence(self, newcomer: PodEngine) -> None:
        """The watch's connection carries nothing any more; a pod comes."""
        await asyncio.sleep(1.0)
        self.proxy.hush()
        moment = await self.at(lambda: None)
        await self.create(newcomer, ready=True)
        self.note("watch silent: first request", await self.first(newcomer, moment, 120))

    async def killed(self, engine: PodEngine) -> None:
        """An engine process is killed: with streams in the middle, with requests that it has only just taken up."""
        streams = [asyncio.create_task(stream(self.frontend.port, LONG)) for _ in range(STREAMS)]
        await asyncio.sleep(1.0)
        errors = sum(self.traffic.errors.values())
        for number in range(STREAMS):  # each has a prefill of a tenth of a second before its first token
            prompt = [5 + (number * 97 + place) % 1000 for place in range(500)]
            streams.append(asyncio.create_task(stream(self.frontend.port, 20, prompt)))
        await asyncio.sleep(0.05)
        engine.process.send_signal(signal.SIGKILL)
        ends = await asyncio.gather(*streams)
        odd = [end for end in ends if end.how not in ("whole", "error event")]
        self.note("killed: streams that broke off", len(odd))
        failed = [end for end in ends if end.how != "whole"]
        self.note("killed: requests with nothing sent that failed", sum(not end.begun for end in failed))
        self.note("killed: streams that got an error event", sum(end.begun for end in failed))
        await asyncio.sleep(1.0)
        self.note("killed: small requests that failed", sum(self.traffic.errors.values()) - errors)


async def run(rounds: int, silent: bool, folder: Path) -> dict[str, object]:
    """All rounds; figures and bars."""
    with ExitStack() as stack:
        api = stack.enter_context(api_server(folder / "api"))
        port = free_port()
        engines = []
        for number in range(6):
            engine = PodEngine(f"engine-{number}", f"127.0.0.{number + 2}", port, folder, *MOCK)
            stack.callback(engine.stop)
            engines.append(engine)
        proxy = Proxy(api.port)
        await proxy.back()
        own = free_port()
        command = [sys.executable, "-m", "enginehouse", "serve", "--port", str(own), "--policy", "round-robin"]
        command += ["--pods", "app=bench", "--pod-port", str(port), "--shutdown-grace", "0", "--shutdown-timeout", "0"]
        command += ["--kubeconfig", str(api.kubeconfig_through(proxy.port))]
        frontend = stack.enter_context(running("enginehouse", command, own, folder / "enginehouse.log"))
        await asyncio.to_thread(wait_listening, frontend)
        churn = Churn(api, proxy, frontend, engines)
        first, second, third, fourth, fifth, sixth = engines
        await churn.create(first, ready=True)
        await asyncio.sleep(3.0)
        async with churn.traffic.flowing():
            await churn.first(first, time.time(), 20)
            churn.traffic.answers.clear()
            for number in range(rounds):
                await churn.join_flap_leave(second, gracefully=number % 2 == 0)
            await churn.create(third, ready=True)
            await churn.first(third, time.time(), 20)
            await churn.outage(third, fourth)
            await churn.killed(fourth)
            if silent:
                await churn.silence(fifth)
            await churn.create(sixth, ready=True)
            await churn.first(sixth, time.time(), 20)
        await proxy.away()
        return report(churn)


def report(churn: Churn) -> dict[str, object]:
    """Medians against the bars."""
    limits = {
        "ready: first request": ("s", 0.3),
        "unready: last new request": ("s", 0.2),
        "deleted: last new request": ("s", 0.2),
        "gone: last new request": ("s", 0.2),
        "ready again: first request": ("s", 0.3),
        "API server back: both known": ("s", 2.0),
        "watch silent: first request": ("s", 60.0),
        "streams cut by withdrawals": ("", 0.0),
        "killed: requests with nothing sent that failed": ("", 0.0),
        "killed: streams that broke off": ("", 0.0),
    }
    bars = []
    for what, (unit, limit) in limits.items():
        if rounds := churn.figures.get(what):
            middle = statistics.median(rounds) if unit else max(rounds)
            bars.append(Bar(what, unit, round(middle, 3), limit, [round(value, 3) for value in rounds]))
    return {
        "bench": "churn",
        "bars": [bar.told() for bar in bars],
        "figures": {what: values for what, values in churn.figures.items() if what not in limits},
        "answers": dict(churn.traffic.answers),
    }


def show(result: dict[str, Any]) -> None:
    """The result for people."""
    print_bars(result["bars"], rounds=True)
    for what, values in result["figures"].items():
        print(f"{what:50}{values}")
    print(f"answers to the small requests: {result['answers']}")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.churn", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5, help="times that a pod joins, flaps and leaves")
    parser.add_argument("--no-silence", action="store_true", help="leave out the half-open watch (up to a minute)")
    options = parser.parse_args()
    result = run_in_folder("churn", lambda folder: run(options.rounds, not options.no_silence, folder))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
