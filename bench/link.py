"""CPU per received message: our link against `grpc.aio`, one grpcio server, paced streams, each in a process.

Bar: at most 0.35 of `grpc.aio` with 64 and with 256 streams of 40 messages a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import grpc
import grpc.aio
import uvloop

from bench.measure import first_line, interleave, ratio_of_medians, spawn
from enginehouse.adapters.link import Link, LinkSettings
from enginehouse.domain.engine import Target
from enginehouse.domain.link import LinkError

BAR = 0.35
PATH = "/bench.Paced/Stream"
RATE = 40.0
CHUNK = bytes(range(60))
"""About as long as one token's message of a real engine."""


async def serve() -> None:
    """Answer every call with CHUNK at RATE until it is cancelled."""

    async def stream(_: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += 1 / RATE
            await asyncio.sleep(max(0.0, due - loop.time()))
            yield CHUNK

    server = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Paced", {"Stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


class Counter:
    """Counts messages, which is the least that a receiver can do."""

    def __init__(self) -> None:
        self.count = 0

    def on_message(self, message: bytes) -> None:
        self.count += 1

    def on_end(self, error: LinkError | None) -> None:
        raise RuntimeError(f"the server ended a stream: {error!r}")


async def receive_with_link(port: int, streams: int, seconds: float, settings: LinkSettings | None = None) -> float:
    """CPU seconds per message with our link."""
    link = Link(Target("127.0.0.1", port), settings or LinkSettings())
    counter = Counter()
    calls = []
    for number in range(streams):
        calls.append(link.stream(PATH, b"", counter))
        await asyncio.sleep(_phase(number))
    cost = await _measure(lambda: counter.count, seconds)
    for call in calls:
        call.cancel()
    await link.close()
    return cost


async def receive_with_grpc_aio(port: int, streams: int, seconds: float) -> float:
    """CPU seconds per message with `grpc.aio`, read in its cheapest way."""
    counter = Counter()

    async def read(call: grpc.aio.UnaryStreamCall) -> None:
        while await call.read() is not grpc.aio.EOF:
            counter.count += 1

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_stream(PATH)
        readers = []
        for number in range(streams):
            readers.append(asyncio.ensure_future(read(method(b""))))
            await asyncio.sleep(_phase(number))
        cost = await _measure(lambda: counter.count, seconds)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return cost


def _phase(number: int) -> float:
    """Streams begin apart, so that their messages do: arriving together would flatter whoever reads in batches."""
    return ((number * 0.618) % 1) / RATE / 10


async def _measure(count: Callable[[], int], seconds: float) -> float:
    await asyncio.sleep(0.5)
    before, cpu = count(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - cpu) / (count() - before)


def client(kind: str, port: int, streams: int, seconds: float) -> None:
    """One measurement in this process."""
    if kind == "link":
        print(uvloop.run(receive_with_link(port, streams, seconds)))
    elif kind == "link/gather=0":
        print(uvloop.run(receive_with_link(port, streams, seconds, LinkSettings(gather=0))))
    else:
        run = uvloop.run if kind == "grpc.aio" else asyncio.run
        print(run(receive_with_grpc_aio(port, streams, seconds)))


def compare(rounds: int, seconds: float) -> dict[str, object]:
    """Measure both, in turns."""
    server = spawn("bench.link", "--serve")
    try:
        port = first_line(server)

        def one(kind: str, streams: int) -> float:
            child = spawn(
                "bench.link", "--client", kind, "--port", port, "--streams", str(streams), "--seconds", str(seconds)
            )
            cost = float(first_line(child))
            child.wait()
            return cost

        result: dict[str, object] = {"benchmark": "link", "bar": BAR, "rounds": rounds, "seconds": seconds}
        met = True
        for streams in (64, 256):
            costs = interleave({kind: partial(one, kind, streams) for kind in KINDS}, rounds)
            rivals = {kind: statistics.median(costs[kind]) for kind in KINDS if kind.startswith("grpc")}
            ratio = ratio_of_medians(costs["link"], costs[min(rivals, key=rivals.__getitem__)])
            met = met and ratio <= BAR
            result[f"streams_{streams}"] = {
                "microseconds_per_message": {kind: round(statistics.median(costs[kind]) * 1e6, 2) for kind in KINDS},
                "ratio": round(ratio, 3),
            }
        result["met"] = met
        return result
    finally:
        server.terminate()
        server.wait()


KINDS = ("link", "link/gather=0", "grpc.aio", "grpc.aio/asyncio")
"""What the bar is for; the same, reading each arrival at once; the rival on two loops, of which the better counts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--streams", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve())
    elif options.client:
        client(options.client, options.port, options.streams, options.seconds)
    else:
        result = compare(options.rounds, options.seconds)
        print(json.dumps(result) if options.json else table(result))


def table(result: dict[str, object]) -> str:
    """For people."""
    head = " ".join(f"{kind:>16}" for kind in KINDS)
    lines = ["CPU µs per message", f"{'streams':>8} {head} {'ratio':>7}"]
    for streams in (64, 256):
        row = result[f"streams_{streams}"]
        assert isinstance(row, dict)
        cost = row["microseconds_per_message"]
        lines.append(f"{streams:>8} " + " ".join(f"{cost[kind]:>16}" for kind in KINDS) + f" {row['ratio']:>7}")
    lines.append(f"bar {BAR}: {'met' if result['met'] else 'NOT met'}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
