"""The programs that a frontend measurement runs: mock engines, our frontend, a peer beside it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from bench.load import Load, Outcome, drive
from bench.measure import cpu_seconds_of_tree, resident_bytes, tree_of
from enginehouse.mock.vocabulary import BUNDLED

READY_WITHIN = 60.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Program:
    """A process under measurement."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    figures: dict[str, float] = field(default_factory=dict)

    def cpu(self) -> float:
        """CPU seconds of it and its children so far."""
        return cpu_seconds_of_tree(self.process.pid)

    def resident(self) -> int:
        """Resident bytes of it and its children."""
        return sum(resident_bytes(pid) for pid in tree_of(self.process.pid))


@contextmanager
def running(name: str, command: Sequence[str], port: int, log: Path) -> Iterator[Program]:
    """A program for the length of a with block, its output in a file."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield Program(name, port, process)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def mock_command(port: int, *options: object) -> list[str]:
    """A mock engine with the contract that the peer speaks too."""
    command = [sys.executable, "-m", "enginehouse", "mock", "--protocol", "vllm", "--port", str(port)]
    return [*command, "--max-running", "4096", *map(str, options)]


def frontend_command(
    port: int, engines: Sequence[int], policy: str = "round-robin", events: Sequence[int] = ()
) -> list[str]:
    """Our frontend on fixed engines. events: the port of each engine's KV events, where it has them."""
    command = [sys.executable, "-m", "enginehouse", "serve", "--port", str(port), "--policy", policy]
    for engine, where in zip_longest(engines, events):
        command += ["--engine", f"grpc://127.0.0.1:{engine}" + (f"?kv-events-port={where}" if where else "")]
    return [*command, "--shutdown-grace", "0", "--shutdown-timeout", "0"]


def smg_command(program: str, port: int, engines: Sequence[int]) -> list[str]:
    """The peer on the same engines."""
    urls = [f"grpc://127.0.0.1:{engine}" for engine in engines]
    where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    return [program, "launch", "--worker-urls", *urls, "--policy", "round_robin", "--model-path", str(BUNDLED), *where]


def wait_listening(program: Program) -> None:
    """Return when its port accepts connections."""
    _wait(program, lambda: socket.create_connection(("127.0.0.1", program.port), 1).close())


def wait_serving(program: Program) -> None:
    """Return when a small request is answered."""
    body = b'{"model": "mock", "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}'
    url = f"http://127.0.0.1:{program.port}/v1/chat/completions"

    def ask() -> None:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=5).read()

    _wait(program, ask)


async def spend(program: Program, load: Load, seed: int) -> tuple[float, Outcome]:
    """CPU seconds that a program spends on a load. Raises RuntimeError unless all of it is answered."""
    before = program.cpu()
    outcome = await drive(program.port, load, seed=seed)
    await asyncio.sleep(0.1)  # the last answer's own cleanup belongs to it
    if outcome.errors:
        raise RuntimeError(f"{program.name}: {len(outcome.errors)} failed requests, the first: {outcome.errors[0]}")
    return program.cpu() - before, outcome


def _wait(program: Program, attempt: object) -> None:
    assert callable(attempt)
    deadline = time.monotonic() + READY_WITHIN
    while True:
        try:
            attempt()
        except (OSError, urllib.error.URLError) as error:
            if program.process.poll() is not None:
                raise RuntimeError(f"{program.name} ended with {program.process.returncode}") from error
            if time.monotonic() > deadline:
                raise RuntimeError(f"{program.name} is not ready after {READY_WITHIN:.0f} s: {error}") from error
            time.sleep(0.1)
        else:
            return
