"""Processes and clients for the end-to-end tests: mock engines with a log, a frontend, streams by the event."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from enginehouse.mock.vocabulary import load_vocabulary
from tests.support import PYTHON, Child, free_port, json_lines, until

Start = Callable[..., Child]
WITHIN = 30.0
"""Seconds that anything may take here before the test gives up: a safety net, never the measure."""


class Engine:
    """A mock engine process, and what it saw."""

    def __init__(
        self, start: Start, folder: Path, name: str, *, host: str = "127.0.0.1", port: int = 0, **options: Any
    ):
        self.name = name
        self.host = host
        self.port = port or free_port(host)  # known before it runs, and kept when it runs again
        self._start = start
        self._log = folder / f"{name}.log"
        self._control = folder / f"{name}.faults"
        self._options = options
        self.child: Child | None = None

    @property
    def url(self) -> str:
        return f"grpc://{self.host}:{self.port}"

    def run(self, *, wait: bool = True, **options: Any) -> Engine:
        """Start it (again)."""
        command = [PYTHON, "-m", "enginehouse", "mock", "--host", self.host, "--port", str(self.port)]
        command += ["--log", str(self._log), "--control", str(self._control)]
        for name, value in {**self._options, **options}.items():
            flag = "--" + name.replace("_", "-")
            command += [flag] if value is True else [flag, str(value)]
        self.child = self._start(command)
        if wait:
            self.child.wait_line("on grpc://")
            self._wait_obeyed()
        return self

    def kill(self) -> None:
        """As the kernel would: no goodbye."""
        assert self.child is not None
        self.child.signal(signal.SIGKILL)
        self.child.process.wait(WITHIN)

    def faults(self, **faults: Any) -> None:
        """Misbehave like this from now on, and be sure that it does, if it runs."""
        fresh = self._control.with_suffix(".new")
        fresh.write_text(json.dumps(faults))
        fresh.replace(self._control)
        self._wait_obeyed()

    def _wait_obeyed(self) -> None:
        if self.child is None or self.child.process.poll() is not None or not self._control.exists():
            return
        found = self._control.stat()
        stamp = [found.st_mtime_ns, found.st_ino]
        # Only of this process: one before it may have read the same file.
        until(
            lambda: any(line["stamp"] == stamp for line in self._since_start("faults")),
            within=WITHIN,
            saying=f"{self.name} has not read its faults: {self.child.output[-1000:]}",
        )

    def _since_start(self, event: str) -> list[dict[str, Any]]:
        lines = json_lines(self._log)
        start = max((at for at, line in enumerate(lines) if line["event"] == "listening"), default=len(lines))
        return [line for line in lines[start:] if line["event"] == event]

    def seen(self, event: str) -> list[dict[str, Any]]:
        """Lines of its log about this: request, abort, end."""
        return [line for line in json_lines(self._log) if line["event"] == event]

    @property
    def requests(self) -> int:
        return len(self.seen("request"))

    @property
    def open(self) -> int:
        """Requests that it works on now."""
        return self.requests - len(self.seen("end"))


def _listening_port(child: Child) -> int:
    """What the frontend says that it listens on."""
    line = child.wait_line("listening", within=WITHIN)
    found = re.search(r'\bport"?[=:] ?(\d+)', line)  # the log may be JSON
    assert found is not None, line
    return int(found[1])


class Front:
    """A frontend process."""

    def __init__(self, start: Start, *options: object, policy: str = "round-robin", ready: bool = True) -> None:
        command = [PYTHON, "-m", "enginehouse", "serve", "--port", "0", "--policy", policy]
        # A test that ends should not wait for load balancers; later options come before earlier ones.
        settings = {"--shutdown-grace": "0", "--shutdown-timeout": "5", "--hold-timeout": "0.2"}
        given = {str(option) for option in options}
        command += [part for name, value in settings.items() if name not in given for part in (name, value)]
        self.child = start([*command, *map(str, options)])
        self.port = _listening_port(self.child)
        if ready:
            self.wait_ready()

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def wait_ready(self) -> None:
        self._until(self.ready, "ready")

    def page(self) -> dict[str, Any]:
        """The `/engines` page."""
        status, body = self.get("/engines")
        assert status == 200
        page = json.loads(body)
        assert isinstance(page, dict)
        return page

    def engine(self, engine: Engine) -> dict[str, Any] | None:
        """What the page says of an engine's newest incarnation."""
        rows = [row for row in self.page()["engines"] if row["url"] == engine.url]
        return max(rows, key=lambda row: int(row["incarnation"]), default=None)

    def state(self, engine: Engine) -> str | None:
        row = self.engine(engine)
        return None if row is None else str(row["state"])

    def wait_state(self, engine: Engine, *states: str | None) -> None:
        self._until(lambda: self.state(engine) in states, f"{engine.name} in {states}")

    def idle(self) -> bool:
        """No counter shows work."""
        page = self.page()
        return page["requests_in_flight"] == 0 and not any(
            row["streams"] or any(load["requests"] or load["prompt_tokens"] for load in row["load"])
            for row in page["engines"]
        )

    def wait_idle(self) -> None:
        self._until(self.idle, "idle")

    def _until(self, what: Callable[[], bool], name: str) -> None:
        def look() -> bool:
            return self.child.process.poll() is not None or what()

        try:
            until(look, within=WITHIN)
            assert self.child.process.poll() is None, "the frontend has ended"
        except AssertionError as error:
            page = self.get("/engines")[1].decode() if self.child.process.poll() is None else "ended"
            raise AssertionError(f"not {name} within {WITHIN} s\n{page}\n{self.child.output[-3000:]}") from error


@dataclass
class Answer:
    """What a client got."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    """Parsed `data:` events in order; the string "[DONE]" for the last."""
    body: Any = None
    """The parsed body where it was no stream."""
    broken: str = ""
    """How the connection failed, if it did."""

    @property
    def text(self) -> str:
        if self.body is not None and "choices" in self.body:
            choice = self.body["choices"][0]
            return str(choice["text"] if "text" in choice else choice["message"]["content"])
        return "".join(piece for event in self.events for piece in _pieces(event))

    @property
    def finish(self) -> str | None:
        """The one finish reason; None: there is none."""
        reasons = [
            choice["finish_reason"]
            for event in self.events
            if isinstance(event, dict)
            for choice in event.get("choices", ())
            if choice.get("finish_reason")
        ]
        assert len(reasons) <= 1, reasons
        return str(reasons[0]) if reasons else None

    @property
    def error(self) -> dict[str, Any] | None:
        """The error that it ended with."""
        found = [event["error"] for event in self.events if isinstance(event, dict) and "error" in event]
        if isinstance(self.body, dict) and "error" in self.body:
            found.append(self.body["error"])
        assert len(found) <= 1, found
        return found[0] if found else None

    @property
    def whole(self) -> bool:
        """It came to its regular end."""
        return self.finish is not None and self.events[-1:] == ["[DONE]"] and self.error is None and not self.broken


def _pieces(event: Any) -> Iterator[str]:
    if isinstance(event, dict):
        for choice in event.get("choices", ()):
            yield choice.get("text") or choice.get("delta", {}).get("content") or ""


def well_formed(error: dict[str, Any] | None) -> bool:
    """OpenAI's error object, complete."""
    return error is not None and {"message", "type", "param", "code"} <= set(error) and bool(error["message"])


def chat(text: str = "which engine are you", **more: Any) -> dict[str, Any]:
    body = {"model": "mock", "messages": [{"role": "user", "content": text}], "max_tokens": 8, "ignore_eos": True}
    return {**body, "stream": True, **more}


class Stream:
    """One request on its own connection, read when the test says so. It is closed at the latest with the test."""

    opened: ClassVar[list[Stream]] = []

    def __init__(
        self, front: Front, body: dict[str, Any], *, path: str = "/v1/chat/completions", receive: int = 0
    ) -> None:
        """receive: size of the socket's receive buffer, for clients that do not read."""
        self.answer = Answer()
        self.sock = socket.socket()
        self.opened.append(self)
        if receive:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        self.sock.settimeout(WITHIN)
        self.sock.connect(("127.0.0.1", front.port))
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        self.sock.sendall(head.encode() + b"\r\n\r\n" + data)
        self._response: http.client.HTTPResponse | None = None

    def _begin(self) -> http.client.HTTPResponse:
        if self._response is None:
            self._response = http.client.HTTPResponse(self.sock, method="POST")
            self._response.begin()
            self.answer.status = self._response.status
            self.answer.headers = {name.lower(): value for name, value in self._response.getheaders()}
        return self._response

    def event(self) -> Any:
        """The next event; None at the end."""
        try:
            response = self._begin()
            if not self.answer.headers.get("content-type", "").startswith("text/event-stream"):
                raw = response.read()
                self.answer.body = json.loads(raw) if raw else None
                return None
            while line := response.readline():
                if line.startswith(b"data: "):
                    text = line[6:].strip().decode()
                    event = text if text == "[DONE]" else json.loads(text)
                    self.answer.events.append(event)
                    return event
        except (OSError, http.client.HTTPException) as error:
            self.answer.broken = repr(error)
        return None

    def until_text(self, pieces: int = 1) -> None:
        """Read until so many events brought text.

        Engines with a pace put tokens together when they are late: there only the first piece is certain.
        """
        while pieces:
            event = self.event()
            assert event is not None, self.answer
            pieces -= any(_pieces(event))

    def rest(self) -> Answer:
        """Read to the end."""
        while self.event() is not None:
            pass
        self.close()
        return self.answer

    def close(self) -> None:
        """Hang up."""
        if self._response is not None:
            self._response.close()
        self.sock.close()


def ask(front: Front, body: dict[str, Any] | None = None, *, path: str = "/v1/chat/completions") -> Answer:
    """One request and its whole answer."""
    return Stream(front, chat() if body is None else body, path=path).rest()


def at_once(front: Front, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Many requests together."""
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: ask(front, body), bodies))


def counts(engines: Sequence[Engine], work: Callable[[], object]) -> list[int]:
    """How many requests each engine got while work() ran."""
    before = [engine.requests for engine in engines]
    work()
    return [engine.requests - was for engine, was in zip(engines, before, strict=True)]


def eos() -> int:
    """The end token of the mock engines' tokenizer."""
    return load_vocabulary().eos
