"""What a hand-over costs the frontend: the first token it adds, and CPU per token, beside the same engine kind alone.

`python -m bench.pairs --json`. One prefill and one decode mock for each protocol beside an aggregated one; the two
frontends of a protocol are measured in turns, in the same run. What the mocks need to meet is in the first token of
both legs whoever sends them: it is measured in the same turns with no frontend between, and taken off.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.bare_pairs import Bare
from bench.contestants import Program, free_port, running, spend, wait_listening, wait_serving
from bench.load import Load, close, connect, request_bytes
from bench.report import Bar, print_bars, run_in_folder
from enginehouse.domain.engine import Target

FIRST_TOKEN_MS = {"sglang": 1.0, "vllm": 2.0, "vllm-native": 2.0}
CPU_RATIO = 1.1
AGGREGATED, APART = "aggregated", "apart"
BARE_AGGREGATED, BARE_APART = "aggregated, no frontend", "apart, no frontend"

Figures = dict[str, list[float]]


def _engine(stack: ExitStack, folder: Path, protocol: str, role: str, pace: float) -> str:
    port = free_port()
    command = [sys.executable, "-m", "enginehouse", "mock", "--protocol", protocol, "--port", str(port)]
    command += ["--role", role, "--max-running", "4096", "--tokens-per-second", str(pace)]
    name = f"{protocol}-{role}-{pace:g}"
    program = stack.enter_context(running(name, command, port, folder / f"{name}.log"))
    wait_listening(program)
    # Engines of vLLM cannot say their role.
    hint = f"?role={role}" if protocol != "sglang" and role != AGGREGATED else ""
    return f"grpc://127.0.0.1:{port}{hint}"


def _frontend(stack: ExitStack, folder: Path, name: str, engines: Sequence[str]) -> Program:
    port = free_port()
    command = [sys.executable, "-m", "enginehouse", "serve", "--port", str(port), "--shutdown-grace", "0"]
    for engine in engines:
        command += ["--engine", engine]
    program = stack.enter_context(running(name, command, port, folder / f"{name}.log"))
    wait_serving(program)
    return program


async def _first_tokens(
    programs: dict[str, Program], bare: Bare, samples: int, figures: Figures, protocol: str
) -> None:
    load = Load(streams=1, requests=1, max_tokens=2)
    clients = {name: (await connect(program.port, 1))[0] for name, program in programs.items()}
    taken: dict[str, list[float]] = {name: [] for name in (*programs, BARE_AGGREGATED, BARE_APART)}
    try:
        await bare.open()
        for number in range(samples + 20):
            names = list(clients)
            for name in names if number % 2 else reversed(names):
                await clients[name].ask(request_bytes(load, 1_000_000 + number))
                first = clients[name].first_token
                assert first is not None
                taken[name].append(first)
            taken[BARE_AGGREGATED].append(await bare.aggregated())
            taken[BARE_APART].append(await bare.apart())
    finally:
        close(list(clients.values()))
        await bare.close()
    for name, values in taken.items():
        # The first ones open connections and warm caches.
        figures[f"{protocol}, {name}: first token ms"] = [statistics.median(values[20:]) * 1e3]


async def _cpu(programs: dict[str, Program], load: Load, rounds: int, figures: Figures, protocol: str) -> None:
    for number in range(rounds):
        names = list(programs)
        for name in names if number % 2 else reversed(names):
            spent, outcome = await spend(programs[name], load, (number + 1) * 100_000)
            figures.setdefault(f"{protocol}, {name}: CPU us per token", []).append(spent / outcome.tokens * 1e6)


async def run(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """First token on engines that are as fast as they are read; CPU per token on paced ones."""
    figures: Figures = {}
    load = Load(options.streams, options.streams * 2, max_tokens=options.max_tokens)
    for protocol in options.protocols.split(","):
        for pace in (0.0, options.pace):
            with ExitStack() as stack:
                alone = _engine(stack, folder, protocol, AGGREGATED, pace)
                pair = [_engine(stack, folder, protocol, role, pace) for role in ("prefill", "decode")]
                programs = {
                    AGGREGATED: _frontend(stack, folder, f"{protocol}-{AGGREGATED}", [alone]),
                    APART: _frontend(stack, folder, f"{protocol}-{APART}", pair),
                }
                if pace:
                    await _cpu(programs, load, options.rounds, figures, protocol)
                else:
                    bare = Bare(protocol, *(Target.parse(engine).port for engine in (alone, *pair)))
                    await _first_tokens(programs, bare, options.samples, figures, protocol)
    medians = {what: statistics.median(values) for what, values in figures.items()}
    bars = _bars(medians, options.protocols.split(","))
    return {
        "figures": {what: round(value, 3) for what, value in medians.items()},
        "bars": [bar.told() for bar in bars],
        "met": all(bar.met for bar in bars),
    }


def _bars(medians: dict[str, float], protocols: Sequence[str]) -> list[Bar]:
    bars = []
    for protocol in protocols:
        first, cpu = f"{protocol}, {{}}: first token ms", f"{protocol}, {{}}: CPU us per token"
        whole = medians[first.format(APART)] - medians[first.format(AGGREGATED)]
        engines = medians[first.format(BARE_APART)] - medians[first.format(BARE_AGGREGATED)]
        added = whole - engines
        bars.append(Bar(f"{protocol}: first token added by a hand-over", "ms", added, FIRST_TOKEN_MS[protocol]))
        ratio = medians[cpu.format(APART)] / medians[cpu.format(AGGREGATED)]
        bars.append(Bar(f"{protocol}: CPU per token, apart", "of aggregated", ratio, CPU_RATIO))
    return bars


def show(result: dict[str, object]) -> None:
    """The result for people."""
    figures, bars = result["figures"], result["bars"]
    assert isinstance(figures, dict)
    assert isinstance(bars, list)
    for what, value in figures.items():
        print(f"{what:56}{value:>12.3f}")
    print()
    print_bars(bars)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.pairs", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--protocols", default="sglang,vllm,vllm-native", help="engines to measure")
    parser.add_argument("--streams", type=int, default=64, help="open streams for CPU per token")
    parser.add_argument("--pace", type=float, default=40.0, help="tokens per second of each paced stream")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=4, help="times that CPU per token is measured")
    parser.add_argument("--samples", type=int, default=300, help="requests for the first-token figure")
    options = parser.parse_args()
    result = run_in_folder("pairs", lambda folder: run(options, folder))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
