"""Two pools that change under load, and pairs that fail: `python -m bench.pair_churn [--json] [--rounds N]`.

Real processes: `enginehouse serve` on an engines file, and `enginehouse mock` for each engine. Joins and leaves are
counted from just before the file is written to what the engine itself saw, while 200 requests a second and long streams
run; failures from just before the request is sent, or the engine killed, to what the other engine or the client saw.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.churn import LONG, SETTLE, STREAMS
from bench.cluster import PodEngine
from bench.contestants import free_port, running, wait_listening, wait_serving
from bench.report import Bar, print_bars, run_in_folder
from bench.traffic import Traffic, stream

FAILURE = 1.0
"""Seconds until the other leg has stopped, or the client has its answer."""
JOIN, LEAVE = 0.3, 0.2
WITHIN = 20.0
SAMPLES = 30
QUICK = ("--engines-file-poll-interval", "0.05", "--engines-file-settle-time", "0.02")
ONE_TRY = ("--attempts", "1", "--failures-in-a-row", "0")
"""A failure is seen as it is, and the engine stays for the next."""

Figures = dict[str, list[float]]


class Pools:
    """A frontend on an engines file, and its engines."""

    def __init__(self, stack: ExitStack, folder: Path, protocol: str, *options: str) -> None:
        self.protocol = protocol
        self._stack = stack
        self._folder = folder
        self._named: dict[str, str] = {}
        """URLs with the role, by name."""
        self._path = folder / "engines.yaml"
        self._write()
        self.port = free_port()
        command = [sys.executable, "-m", "enginehouse", "serve", "--port", str(self.port), "--policy", "round-robin"]
        command += ["--engines-file", str(self._path), *QUICK, "--topology", "disaggregated", *options]
        command += ["--shutdown-grace", "0", "--shutdown-timeout", "0"]
        self.frontend = stack.enter_context(running("frontend", command, self.port, folder / "frontend.log"))
        wait_listening(self.frontend)

    async def engine(self, role: str, name: str, *options: str) -> PodEngine:
        """One that runs, and that nobody knows yet."""
        port = free_port()
        told = ("--role", role, "--max-running", "4096", "--shutdown-grace", "5", *options)
        made = PodEngine(name, "127.0.0.1", port, self._folder, *told, protocol=self.protocol)
        self._stack.callback(made.stop)
        await _seen(made, "listening", 1)
        hint = "" if self.protocol == "sglang" else f"?role={role}"
        self._named[name] = f"grpc://127.0.0.1:{port}{hint}"
        return made

    def know(self, *engines: PodEngine) -> float:
        """Name these and no others; the moment before."""
        moment = time.time()
        self._write(*engines)
        return moment

    def _write(self, *engines: PodEngine) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text("".join(f"- {self._named[engine.name]}\n" for engine in engines) or "[]\n")
        fresh.replace(self._path)


async def changes(pools: Pools, rounds: int, figures: Figures) -> None:
    """Each round one engine of each pool joins and leaves again; streams run on it as it goes."""
    p, d = await pools.engine("prefill", "p"), await pools.engine("decode", "d")
    pools.know(p, d)
    await asyncio.to_thread(wait_serving, pools.frontend)
    traffic = Traffic(pools.port)
    async with traffic.flowing():
        for number in range(rounds):
            for role in ("prefill", "decode"):
                comer = await pools.engine(role, f"{role}-{number}")
                moment = pools.know(p, d, comer)
                figures.setdefault(f"{role} joins: first request", []).append(await _first(comer, moment))
                streams = [asyncio.create_task(stream(pools.port, LONG)) for _ in range(STREAMS)]
                await asyncio.sleep(0.5)
                moment = pools.know(p, d)
                await asyncio.sleep(SETTLE)
                figures.setdefault(f"{role} leaves: last new request", []).append(comer.last_request_after(moment))
                ends = await asyncio.gather(*streams)
                figures.setdefault("streams cut", []).append(sum(end.how != "whole" for end in ends))
                comer.stop()
    figures["requests lost"] = [float(sum(traffic.errors.values()))]
    figures["requests answered"] = [float(traffic.answers.total())]


async def _first(engine: PodEngine, moment: float) -> float:
    while time.time() - moment < WITHIN:
        if (seen := engine.first_request_after(moment)) is not None:
            return seen
        await asyncio.sleep(0.02)
    return WITHIN


async def decode_refuses(pools: Pools, figures: Figures) -> None:
    """The prefill leg would never end by itself. Of vLLM there is none any more when the decode leg is sent."""
    p = await pools.engine("prefill", "p", "--prefill-hold")
    d = await pools.engine("decode", "d", "--refuse", "RESOURCE_EXHAUSTED")
    await _serve(pools, p, d)
    for number in range(1, SAMPLES + 1):
        moment = time.time()
        end = await stream(pools.port, 8)
        _failed(end.how)
        ends = await _seen(p, "end", number)
        figures.setdefault("decode leg refuses: prefill leg stopped", []).append(ends[-1] - moment)


async def prefill_fails(pools: Pools, figures: Figures) -> None:
    """It ends with an error; on SGLang the decode leg waits for it then."""
    p = await pools.engine("prefill", "p", "--refuse", "INTERNAL")
    d = await pools.engine("decode", "d")
    await _serve(pools, p, d)
    for _ in range(SAMPLES):
        moment = time.time()
        _failed((await stream(pools.port, 8)).how)
        figures.setdefault("prefill leg fails: client answered", []).append(time.time() - moment)


async def prefill_dies(pools: Pools, figures: Figures) -> None:
    """The prefill engine is killed while caches pass, with requests in flight."""
    p = await pools.engine("prefill", "p", "--handover-hold")
    d = await pools.engine("decode", "d")
    await _serve(pools, p, d)
    asked = [asyncio.create_task(stream(pools.port, 8)) for _ in range(STREAMS)]
    await _seen(d, "met", STREAMS)
    moment = time.time()
    p.process.send_signal(signal.SIGKILL)
    for task in asyncio.as_completed(asked):
        _failed((await task).how)
        figures.setdefault("prefill engine killed: client answered", []).append(time.time() - moment)


async def _seen(engine: PodEngine, event: str, number: int) -> list[float]:
    """Wait until it wrote so many of these down; when they were."""
    deadline = time.time() + WITHIN
    while time.time() < deadline:
        if len(times := engine.events(event)) >= number:
            return times
        await asyncio.sleep(0.02)
    raise RuntimeError(f"{engine.name}: not {number} times {event} within {WITHIN:g} s")


async def _serve(pools: Pools, p: PodEngine, d: PodEngine) -> None:
    pools.know(p, d)
    page = b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n"
    deadline = time.time() + WITHIN
    while time.time() < deadline:
        reader, writer = await asyncio.open_connection("127.0.0.1", pools.port)
        writer.write(page)
        answer = await reader.read()
        writer.close()
        if b" 200 " in answer[:20]:
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("the fleet is not ready")


def _failed(how: str) -> None:
    if not how.startswith("HTTP"):
        raise RuntimeError(f"a request that had to fail ended otherwise: {how}")


async def run(protocols: Sequence[str], rounds: int, folder: Path) -> dict[str, object]:
    """All of it for each protocol."""
    bars: list[Bar] = []
    answered: dict[str, float] = {}
    for protocol in protocols:
        figures: Figures = {}
        parts = {"fails": prefill_fails, "dies": prefill_dies}
        if protocol == "sglang":
            parts["refuses"] = decode_refuses
        for name, part in parts.items():
            with ExitStack() as stack:
                own = folder / f"{protocol}-{name}"
                own.mkdir()
                await part(Pools(stack, own, protocol, *ONE_TRY), figures)
        with ExitStack() as stack:
            own = folder / f"{protocol}-changes"
            own.mkdir()
            await changes(Pools(stack, own, protocol), rounds, figures)
        answered[protocol] = figures.pop("requests answered")[0]
        bars += [_bar(f"{protocol}: {what}", values) for what, values in figures.items()]
    return {
        "bench": "pair_churn",
        "bars": [bar.told() for bar in bars],
        "requests answered while engines came and went": answered,
        "met": all(bar.met for bar in bars),
    }


def _bar(what: str, values: list[float]) -> Bar:
    rounds = [round(value, 3) for value in values]
    if "joins" in what or "leaves" in what:
        return Bar(what, "s", round(statistics.median(values), 3), JOIN if "joins" in what else LEAVE, rounds)
    if "lost" in what or "cut" in what:
        return Bar(what, "", max(values), 0.0, rounds)
    return Bar(what, "s", round(max(values), 3), FAILURE, rounds)


def main() -> None:
    """Parse, run, print; exit with 1 if a bar is not met."""
    parser = argparse.ArgumentParser(prog="python -m bench.pair_churn", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--protocols", default="sglang,vllm", help="engines to measure")
    parser.add_argument("--rounds", type=int, default=3, help="times that an engine of each pool joins and leaves")
    options = parser.parse_args()
    result = run_in_folder("pair_churn", lambda folder: run(options.protocols.split(","), options.rounds, folder))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    raise SystemExit(0 if result["met"] else 1)


def show(result: dict[str, object]) -> None:
    """The result for people."""
    bars = result["bars"]
    assert isinstance(bars, list)
    print_bars(bars)
    print(f"requests answered while engines came and went: {result['requests answered while engines came and went']}")


if __name__ == "__main__":
    main()
