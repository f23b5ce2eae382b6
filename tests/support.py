"""Helpers for tests that start real programs: free ports, children that end with the test, waiting with a deadline."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable


_random = random.Random()
_given: set[int] = set()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on, for programs that cannot be told port 0: better ask those which they took."""
    return free_ports(1, host)


def free_ports(count: int, host: str = "127.0.0.1") -> int:
    """The first of so many neighbouring free ports.

    They stay free until they are taken, as far as that can be: the kernel gives such as these to nobody who asks for
    any (port 0, the near end of a connection), and this process gives each of them once.
    """
    low, high = _unasked_ports()
    for _ in range(1000):
        first = _random.randrange(low, high - count)
        wanted = range(first, first + count)
        if not _given.isdisjoint(wanted):
            continue
        try:
            for port in wanted:
                with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind((host, port))
        except OSError:
            continue
        _given.update(wanted)
        return first
    raise RuntimeError(f"found no {count} free ports in a row")


def _unasked_ports() -> tuple[int, int]:
    """A range that the kernel takes no ports from by itself."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    return (10_000, first) if first > 20_000 else (last + 1, 65_536)


def own_address(number: int) -> str:
    """A loopback address that other test processes do not use."""
    return f"127.{os.getpid() >> 8 & 127 | 128}.{os.getpid() & 255}.{number % 254 + 1}"


def until(what: Callable[[], Any], *, within: float = 20.0, saying: str = "") -> Any:
    """The first true value of what(), asked again and again; AssertionError after so many seconds."""
    deadline = time.monotonic() + within
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(saying or f"{what} did not come true within {within} s")
        time.sleep(0.02)


def port_open(port: int, host: str = "127.0.0.1") -> bool:
    """Does somebody listen there?"""
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def json_lines(path: Path) -> list[dict[str, Any]]:
    """What a rig or a mock engine has written to its log so far, without a line that is still being written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Child:
    """A program that we started. Its output is kept; it ends at the latest with the test that started it."""

    def __init__(self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that its children can be ended with it
        )
        self._reader = threading.Thread(target=self._read, name=f"output of {self.process.pid}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_line(self, text: str, *, within: float = 30.0) -> str:
        """The first line with this text."""
        found = self._wait(lambda: next((line for line in self.lines if text in line), None), f"line {text!r}", within)
        return str(found)

    def wait_port(self, port: int, *, within: float = 30.0) -> None:
        self._wait(lambda: port_open(port), f"port {port}", within)

    def _wait(self, what: Callable[[], Any], name: str, within: float) -> Any:
        def look() -> Any:
            value = what()
            if not value and self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before {name}:\n{self.output[-3000:]}")
            return value

        try:
            return until(look, within=within)
        except AssertionError as error:
            raise AssertionError(f"no {name} within {within} s:\n{self.output[-3000:]}") from error

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, *, within: float = 10.0) -> int:
        """SIGTERM, and SIGKILL for it and its children if that does not help. Returns the exit status."""
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(within)
        self._reader.join(within)
        if self.process.stdout is not None and not self._reader.is_alive():
            self.process.stdout.close()
        return int(self.process.returncode)


@contextmanager
def running(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> Iterator[Child]:
    """A child for the length of a with block."""
    child = Child(command, env=env)
    try:
        yield child
    finally:
        child.end()


Start = Callable[..., Child]


@contextmanager
def starter() -> Iterator[Start]:
    """start(command, env=…) -> Child: programs that end with a with block."""
    with ExitStack() as stack:

        def run(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> Child:
            return stack.enter_context(running(command, env=env))

        yield run


class Answers(BaseHTTPRequestHandler):
    """To be given its `do_GET` and the like; keeps no log."""

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def http_server(answers: type[Answers]) -> Iterator[str]:
    """A server of another thread, for the length of a with block; its URL."""
    with HTTPServer(("127.0.0.1", 0), answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
