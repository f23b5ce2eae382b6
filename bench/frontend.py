"""What the whole frontend costs on mock engines, beside a peer when one is given: CPU, first token, memory.

`python -m bench.frontend --peer PATH_OF_SMG --json`. Contestants are measured in turns, on the same engines.

Many streams: `python -m bench.frontend --streams 2000 --pace 4 --max-tokens 32 --rounds 1`. Engines, frontend and
clients share the machine, so streams times pace must be what it can carry: else the figures are those of a queue.

Parsers: `python -m bench.frontend --parsers --rounds 5` compares parsers of calls and thinking, on and off.

KV events: `python -m bench.frontend --kv-events --engines 16` compares policy kv with and without events.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from bench.contestants import (
    Program,
    free_port,
    frontend_command,
    mock_command,
    running,
    smg_command,
    spend,
    wait_listening,
    wait_serving,
)
from bench.frontend_kv import run_kv
from bench.frontend_parsers import run_parsers
from bench.load import Load, Outcome, close, connect, first_tokens, request_bytes
from bench.measure import percentile
from bench.report import Bar, print_bars, run_in_folder
from enginehouse.adapters.link import Link, LinkSettings
from enginehouse.domain.engine import Target
from enginehouse.domain.link import LinkError


class Bench:
    """One run over running programs; figures gather under each program's name."""

    def __init__(self, contestants: Sequence[Program], engine: Program, paced: bool, max_tokens: int) -> None:
        self.contestants = contestants
        self.engine = engine
        self.paced = paced
        self.max_tokens = max_tokens
        self.seed = 0

    async def each(self, rounds: int, measure: Callable[[Program], Awaitable[None]]) -> None:
        """Measure every contestant in each round, in turns, first one first and then the other."""
        for number in range(rounds):
            for program in self.contestants if number % 2 == 0 else reversed(self.contestants):
                await measure(program)

    async def spend(self, program: Program, load: Load) -> tuple[float, Outcome]:
        """CPU seconds that a program spends on a load."""
        self.seed += 100_000
        return await spend(program, load, self.seed)


async def tokens(bench: Bench, streams: int, rounds: int, figures: dict[str, dict[str, list[float]]]) -> None:
    """CPU per token and time to the first one, with so many streams open."""
    kind = "paced" if bench.paced else "unpaced"
    load = Load(streams, streams * (2 if bench.paced else 4), max_tokens=bench.max_tokens)

    async def measure(program: Program) -> None:
        cpu, outcome = await bench.spend(program, load)
        mine = figures[program.name]
        name = f"{kind} {streams} streams"
        mine.setdefault(f"{name}: CPU us per token", []).append(cpu / outcome.tokens * 1e6)
        mine.setdefault(f"{name}: tokens per second of one core", []).append(outcome.tokens / cpu)
        mine.setdefault(f"{name}: tokens per second", []).append(outcome.tokens / outcome.seconds)
        mine.setdefault(f"{name}: first token p50 ms", []).append(percentile(outcome.first_token, 50) * 1e3)
        mine.setdefault(f"{name}: first token p99 ms", []).append(percentile(outcome.first_token, 99) * 1e3)

    await bench.each(rounds, measure)


async def long_prompts(bench: Bench, rounds: int, figures: dict[str, dict[str, list[float]]]) -> None:
    """CPU per request of 6,000 words, 64 at once."""
    load = Load(streams=64, requests=192, prompt_words=6000, max_tokens=1)

    async def measure(program: Program) -> None:
        cpu, outcome = await bench.spend(program, load)
        figures[program.name].setdefault("6000 words: CPU ms per request", []).append(cpu / outcome.answers * 1e3)

    await bench.each(rounds, measure)


async def first_token(bench: Bench, samples: int, figures: dict[str, dict[str, list[float]]]) -> None:
    """Time to the first token of one request of 300 words, beyond what the engine itself takes on the same tokens."""
    load = Load(streams=1, requests=1, max_tokens=2)
    clients = {program.name: (await connect(program.port, 1))[0] for program in bench.contestants}
    direct: list[float] = []
    through: dict[str, list[float]] = {name: [] for name in clients}
    loop = asyncio.get_running_loop()
    link = Link(Target("127.0.0.1", bench.engine.port), LinkSettings(), loop=loop)
    for number in range(samples + 5):
        seed = 7_000_000 + number
        taken = [await _directly(link, number)]
        for client in clients.values():
            await client.ask(request_bytes(load, seed))
            assert client.first_token is not None
            taken.append(client.first_token)
        if number >= 5:  # the first ones open connections and warm caches
            direct.append(taken[0])
            for name, value in zip(through, taken[1:], strict=True):
                through[name].append(value)
    await link.close()
    close(list(clients.values()))
    for name, values in through.items():
        added = statistics.median(values) - statistics.median(direct)
        figures[name]["one request, 300 words: first token added ms"] = [added * 1e3]
        figures[name]["one request, 300 words: first token ms"] = [statistics.median(values) * 1e3]
    for mine in figures.values():
        mine["one request, 300 words: engine alone ms"] = [statistics.median(direct) * 1e3]


class _FirstMessage:
    """Notes when the first message of a call came."""

    def __init__(self) -> None:
        self.at = 0.0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_message(self, message: bytes) -> None:
        self.at = self.at or time.perf_counter()

    def on_end(self, error: LinkError | None) -> None:
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


async def _directly(link: Link, number: int) -> float:
    """The engine's own time for as many tokens as 300 words make.

    Through our own link, the client that adds the least: grpcio's would hide a millisecond of what a frontend adds.
    """
    ids = [300 + (number * 7 + place * 13) % 2500 for place in range(320)]
    params = pb.SamplingParams(max_tokens=2, ignore_eos=True)
    request = pb.GenerateRequest(
        request_id=f"direct-{number}", tokenized=pb.TokenizedInput(input_ids=ids), sampling_params=params, stream=True
    ).SerializeToString()
    sink = _FirstMessage()
    began = time.perf_counter()
    link.stream("/vllm.grpc.engine.VllmEngine/Generate", request, sink, timeout=30)
    await sink.ended
    return sink.at - began


async def memory(bench: Bench, streams: int, figures: dict[str, dict[str, list[float]]]) -> None:
    """Resident memory idle, and per stream while so many are open: they end long after the measurement."""

    async def measure(program: Program) -> None:
        idle = program.resident()
        clients = await connect(program.port, streams)
        load = Load(streams, streams, max_tokens=2000)
        async with asyncio.timeout(30):
            await first_tokens(clients, [request_bytes(load, 9_000_000 + number) for number in range(streams)])
        await asyncio.sleep(0.2)
        per_stream = (program.resident() - idle) / streams
        close(clients)
        figures[program.name]["memory idle MB"] = [idle / 1e6]
        figures[program.name]["memory per open stream KB"] = [per_stream / 1e3]
        await asyncio.sleep(0.5)

    await bench.each(1, measure)


async def run(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """All measurements; paced engines first, then engines that are as fast as they are read."""
    streams = [int(part) for part in options.streams.split(",")]
    names = ["enginehouse", "smg"] if options.peer else ["enginehouse"]
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    allow_descriptors(2 * max(*streams, options.open_streams) + 500)
    for pace in (options.pace, 0.0):
        with ExitStack() as stack:
            engines = [stack.enter_context(_engine(folder, number, pace)) for number in range(options.engines)]
            for engine in engines:
                wait_listening(engine)
            contestants = [stack.enter_context(_contestant(name, options.peer, engines, folder)) for name in names]
            for program in contestants:
                wait_serving(program)
            bench = Bench(contestants, engines[0], bool(pace), options.max_tokens)
            if pace:
                await memory(bench, options.open_streams, figures)
                for count in streams:
                    await tokens(bench, count, options.rounds, figures)
            else:
                await first_token(bench, options.samples, figures)
                await long_prompts(bench, options.rounds, figures)
                for count in streams:
                    await tokens(bench, count, options.rounds, figures)
    medians = {
        name: {what: statistics.median(values) for what, values in mine.items()} for name, mine in figures.items()
    }
    bars = judge(medians, streams)
    return {
        "figures": {name: {what: round(value, 3) for what, value in mine.items()} for name, mine in medians.items()},
        "bars": [bar.told() for bar in bars],
        "met": all(bar.met for bar in bars),
    }


def allow_descriptors(number: int) -> None:
    """So many open files for this process and its children; RuntimeError where the system does not let us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < number:
        raise RuntimeError(f"{number} open files are needed and {hard} allowed: raise `ulimit -Hn` or ask for less")
    if soft != resource.RLIM_INFINITY and soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


def _engine(folder: Path, number: int, pace: float) -> AbstractContextManager[Program]:
    port = free_port()
    command = mock_command(port, "--tokens-per-second", pace)
    return running(f"engine {number}", command, port, folder / f"engine-{number}-{pace}.log")


def _contestant(
    name: str, peer: str | None, engines: Sequence[Program], folder: Path
) -> AbstractContextManager[Program]:
    port, ports = free_port(), [engine.port for engine in engines]
    command = smg_command(peer, port, ports) if name == "smg" and peer else frontend_command(port, ports)
    return running(name, command, port, folder / f"{name}.log")


def judge(medians: dict[str, dict[str, float]], streams: Sequence[int]) -> list[Bar]:
    """The figures against the bars that this project sets itself; those relative to the peer need the peer."""
    mine = medians["enginehouse"]
    bars = [
        Bar(
            "first token added, one request of 300 words",
            "ms",
            mine["one request, 300 words: first token added ms"],
            2.0,
        ),
        Bar("resident memory idle", "MB", mine["memory idle MB"], 150.0),
        Bar("resident memory per open stream", "KB", mine["memory per open stream KB"], 40.0),
    ]
    peer = medians.get("smg")
    if peer:
        for count in streams:
            name = f"paced {count} streams: CPU us per token"
            bars.append(Bar(f"CPU per token, paced, {count} streams", "of smg", mine[name] / peer[name], 0.9))
        name = "6000 words: CPU ms per request"
        bars.append(Bar("CPU per request of 6000 words, 64 at once", "of smg", mine[name] / peer[name], 1.5))
    return bars


def show(result: dict[str, object]) -> None:
    """The result for people."""
    figures, bars = result["figures"], result["bars"]
    assert isinstance(figures, dict)
    assert isinstance(bars, list)
    names = list(figures)
    print(f"{'':58}" + "".join(f"{name:>14}" for name in names))
    for what in figures[names[0]]:
        print(f"{what:58}" + "".join(f"{figures[name].get(what, float('nan')):>14.2f}" for name in names))
    print()
    print_bars(bars)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.frontend", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--peer", metavar="PATH", help="the smg program, run on the same engines in the same run")
    parser.add_argument("--streams", default="64,256", help="open streams, one measurement each")
    parser.add_argument("--pace", type=float, default=40.0, help="tokens per second of each paced stream")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--engines", type=int, default=2, help="mock engines")
    parser.add_argument("--rounds", type=int, default=2, help="times that each contestant is measured")
    parser.add_argument("--samples", type=int, default=100, help="requests for the first-token figure")
    parser.add_argument("--open-streams", type=int, default=512, help="open streams for the memory figure")
    parser.add_argument("--kv-events", action="store_true", help="measure what KV events cost, and nothing else")
    parser.add_argument("--kv-rate", type=float, default=25.0, help="batches of events per second of each engine")
    parser.add_argument("--kv-blocks", type=int, default=40, help="blocks stored, and as many removed, by a batch")
    parser.add_argument("--parsers", action="store_true", help="measure what parsers cost, and nothing else")
    options = parser.parse_args()
    measure = run_kv if options.kv_events else run_parsers if options.parsers else run
    result = run_in_folder("frontend", lambda folder: measure(options, folder))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
