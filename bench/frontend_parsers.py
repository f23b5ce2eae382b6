"""What parsers of calls and thinking cost the frontend on plain text: CPU per token with them, beside the same without.

The same chats with tools go to two frontends on the same engines in turns. One reads what comes, the other does not.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from pathlib import Path

from bench.contestants import (
    Program,
    free_port,
    frontend_command,
    mock_command,
    running,
    spend,
    wait_listening,
    wait_serving,
)
from bench.load import Load
from bench.report import Bar

BAR = 1.15
PARSERS = {"without parsers": ("none", "none"), "with parsers": ("hermes", "qwen3")}


async def run_parsers(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The ratio of the medians is the bar."""
    streams = [int(part) for part in options.streams.split(",")]
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in PARSERS}
    with ExitStack() as stack:
        engines = []
        for number in range(options.engines):
            port = free_port()
            command = mock_command(port, "--tokens-per-second", options.pace)
            engines.append(stack.enter_context(running(f"engine {number}", command, port, folder / f"e{number}.log")))
        for engine in engines:
            wait_listening(engine)
        frontends: list[Program] = []
        for name, (tools, thinking) in PARSERS.items():
            port = free_port()
            command = frontend_command(port, [engine.port for engine in engines])
            command += ["--tool-parser", tools, "--reasoning-parser", thinking]
            frontends.append(stack.enter_context(running(name, command, port, folder / f"{port}.log")))
        for frontend in frontends:
            wait_serving(frontend)
        seed = 0
        for count in streams:
            load = Load(count, count * 2, max_tokens=options.max_tokens, tools=True)
            for number in range(options.rounds):
                for frontend in frontends if number % 2 == 0 else reversed(frontends):
                    seed += 100_000
                    cpu, outcome = await spend(frontend, load, seed)
                    mine = figures[frontend.name].setdefault(f"paced {count} streams: CPU us per token", [])
                    mine.append(cpu / outcome.tokens * 1e6)
    medians = {name: {what: statistics.median(all_) for what, all_ in mine.items()} for name, mine in figures.items()}
    bars = [
        Bar(f"CPU per token with parsers, {count} streams", "of that without", _ratio(medians, count), BAR)
        for count in streams
    ]
    return {
        "figures": {name: {what: round(value, 3) for what, value in mine.items()} for name, mine in medians.items()},
        "bars": [bar.told() for bar in bars],
        "met": all(bar.met for bar in bars),
    }


def _ratio(medians: dict[str, dict[str, float]], streams: int) -> float:
    without, parsed = (medians[name][f"paced {streams} streams: CPU us per token"] for name in PARSERS)
    return parsed / without
