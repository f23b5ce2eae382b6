"""What KV events cost the frontend: CPU per token with engines that publish, beside the same while they are silent."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.contestants import Program, free_port, frontend_command, mock_command, running, wait_listening, wait_serving
from bench.load import Load, drive
from bench.report import Bar

WARM = 5.0
"""Seconds of events before anything is measured: by then what comes makes as much go."""
ALONE = 5.0
"""Seconds of events with no request, to tell their own cost."""


class Publishers:
    """The process that publishes in the engines' place."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.ports: list[int] = json.loads(self._line())
        self.sent = 0

    def order(self, what: str) -> int:
        """`go` or `stop`; returns the batches sent since the last order."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        before, self.sent = self.sent, int(self._line())
        return self.sent - before

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the publishers ended with {self._process.wait()}")
        return line


@contextmanager
def _publishers(options: argparse.Namespace) -> Iterator[Publishers]:
    command = [sys.executable, "-m", "bench.kv_publishers", "--publishers", str(options.engines)]
    command += ["--rate", str(options.kv_rate), "--blocks", str(options.kv_blocks)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Publishers(process)
        finally:
            process.terminate()


async def run_kv(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The same load on the same frontend in turns, without and with events; the ratio of the medians is the bar."""
    streams = [int(part) for part in options.streams.split(",")]
    with ExitStack() as stack:
        publishers = stack.enter_context(_publishers(options))
        engines = []
        for number in range(options.engines):
            port = free_port()
            command = mock_command(port, "--tokens-per-second", options.pace)
            engines.append(stack.enter_context(running(f"engine {number}", command, port, folder / f"e{number}.log")))
        for engine in engines:
            wait_listening(engine)
        port = free_port()
        command = frontend_command(port, [engine.port for engine in engines], "kv", publishers.ports)
        frontend = stack.enter_context(running("enginehouse", command, port, folder / "frontend.log"))
        wait_serving(frontend)
        await _all_serve(frontend, options.engines)
        figures: dict[str, list[float]] = {}
        publishers.order("go")
        await asyncio.sleep(WARM)
        before = frontend.cpu()
        publishers.order("go")
        await asyncio.sleep(ALONE)
        batches = publishers.order("stop")
        stored = batches * options.kv_blocks
        figures["events alone: CPU us per stored block"] = [(frontend.cpu() - before) / stored * 1e6]
        figures["events alone: stored blocks per second"] = [stored / ALONE]
        figures["events alone: CPU percent of a core"] = [(frontend.cpu() - before) / ALONE * 100]
        seed = 0
        for number in range(options.rounds):
            for count in streams:
                load = Load(count, count * 2, max_tokens=options.max_tokens)
                for with_events in (False, True) if number % 2 == 0 else (True, False):
                    seed += 100_000
                    await _measure(frontend, publishers, load, with_events, seed, figures)
        page = _page(frontend)
    return _result(figures, streams, page, publishers.sent)


async def _measure(
    frontend: Program, publishers: Publishers, load: Load, events: bool, seed: int, figures: dict[str, list[float]]
) -> None:
    if events:
        publishers.order("go")
    before = frontend.cpu()
    outcome = await drive(frontend.port, load, seed=seed)
    sent = publishers.order("stop")
    behind = publishers.sent - _heard(_page(frontend))
    await _worked_off(frontend, publishers.sent)  # what waits at the end is part of the price
    spent = frontend.cpu() - before
    if outcome.errors:
        raise RuntimeError(f"{len(outcome.errors)} failed requests, the first: {outcome.errors[0]}")
    name = f"{load.streams} streams, {'with' if events else 'without'} events"
    figures.setdefault(f"{name}: CPU us per token", []).append(spent / outcome.tokens * 1e6)
    figures.setdefault(f"{name}: tokens per second", []).append(outcome.tokens / outcome.seconds)
    if events:
        figures.setdefault(f"{name}: batches per second", []).append(sent / outcome.seconds)
        figures.setdefault(f"{name}: batches that waited at the end", []).append(behind)
    await asyncio.sleep(0.5)


def _heard(page: Any) -> int:
    return sum(rank["batches"] for engine in page["engines"] for rank in engine["kv"])


async def _worked_off(frontend: Program, sent: int) -> None:
    async with asyncio.timeout(30):
        while _heard(_page(frontend)) < sent:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _all_serve(frontend: Program, engines: int) -> None:
    async with asyncio.timeout(60):
        while sum(engine["state"] == "serving" for engine in _page(frontend)["engines"]) < engines:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


def _page(frontend: Program) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{frontend.port}/engines", timeout=10) as answer:
        return json.load(answer)


def _result(figures: dict[str, list[float]], streams: list[int], page: Any, sent: int) -> dict[str, object]:
    ranks = [rank for engine in page["engines"] for rank in engine["kv"]]
    medians = {what: statistics.median(values) for what, values in figures.items()}
    medians["batches sent"] = sent
    for what in ("batches", "gaps", "overflows", "orphans", "malformed"):
        medians[f"{what} seen by the frontend"] = sum(rank[what] for rank in ranks)
    medians["index: blocks"] = page["kv_index"]["blocks"]
    if not all(rank["policy"] == "events" for rank in ranks):
        raise RuntimeError(f"not every engine's events are credited: {[rank['trust_reason'] for rank in ranks]}")
    bars = []
    for count in streams:
        with_, without = (medians[f"{count} streams, {how} events: CPU us per token"] for how in ("with", "without"))
        bars.append(Bar(f"CPU per token with KV events, {count} streams", "of none", with_ / without, 1.25))
    return {
        "figures": {"enginehouse": {what: round(value, 3) for what, value in medians.items()}},
        "bars": [bar.told() for bar in bars],
        "met": all(bar.met for bar in bars),
    }
