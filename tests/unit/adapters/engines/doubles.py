"""Stand-ins for tests of the engine adapters: golden data, a link that answers from a table, a sink that remembers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from enginehouse.domain.errors import EngineError
from enginehouse.domain.link import GrpcStatus, LinkError, LinkErrorKind
from enginehouse.domain.stream import Delta, Finish
from enginehouse.ports import Call, MessageSink
from tests.support import ROOT


def golden(name: str) -> dict[str, dict[str, Any]]:
    """Recorded cases by name."""
    cases = json.loads((ROOT / "tests" / "rigs" / "golden" / f"{name}.json").read_text())
    return {case["case"]: case for case in cases}


def messages(case: Mapping[str, Any]) -> list[bytes]:
    return [bytes.fromhex(text) for text in case["responses_hex"]]


def status_error(code: str, text: str = "") -> LinkError:
    return LinkError(LinkErrorKind.STATUS, text, may_have_been_processed=True, status=GrpcStatus[code])


def case_error(case: Mapping[str, Any]) -> LinkError | None:
    """How the recorded call ended, as the link would say it."""
    status = case["status"]
    return None if status["code"] == "OK" else status_error(status["code"], status.get("details", ""))


UNIMPLEMENTED = status_error("UNIMPLEMENTED")


@dataclass
class Told:
    """A DeltaSink that remembers."""

    deltas: list[Delta] = field(default_factory=list)
    ends: list[EngineError | None] = field(default_factory=list)

    def on_delta(self, delta: Delta) -> None:
        assert not self.ends, "news after the end"
        self.deltas.append(delta)

    def on_end(self, error: EngineError | None) -> None:
        self.ends.append(error)

    @property
    def ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def finish(self) -> Finish | None:
        return self.deltas[-1].finish if self.deltas else None

    @property
    def error(self) -> EngineError:
        assert len(self.ends) == 1
        assert self.ends[0] is not None
        return self.ends[0]


@dataclass
class FakeCall:
    path: str
    message: bytes
    sink: MessageSink
    metadata: Sequence[tuple[str, str]]
    timeout: float | None
    on_answered: Callable[[], None] | None = None
    did: list[str] = field(default_factory=list)

    def answer(self) -> None:
        """The header fields of the answer come."""
        if self.on_answered is not None:
            self.on_answered()

    def pause(self) -> None:
        self.did.append("pause")

    def resume(self) -> None:
        self.did.append("resume")

    def cancel(self) -> None:
        self.did.append("cancel")


HANGS = LinkError(LinkErrorKind.DEADLINE, "no answer", may_have_been_processed=True)
"""The answer of a call that keeps its caller waiting until the deadline."""
Answer = bytes | LinkError | Callable[[bytes], bytes]


class FakeLink:
    """A ports.Link: unary calls answered from a table by path, streams fed by the test or from a table."""

    def __init__(
        self,
        answers: Mapping[str, Answer] | None = None,
        streams: Mapping[str, Sequence[bytes] | LinkError] | None = None,
    ) -> None:
        self.answers: dict[str, Answer] = dict(answers or {})
        self.streams = dict(streams or {})
        self.asked: list[str] = []
        self.calls: list[FakeCall] = []
        self.timeouts: list[float | None] = []
        self.closed = 0
        self.lost: list[Callable[[LinkError], None]] = []

    async def unary(
        self, path: str, message: bytes, *, timeout: float, metadata: Sequence[tuple[str, str]] = ()
    ) -> bytes:
        self.asked.append(path)
        self.timeouts.append(timeout)
        answer = self.answers.get(path, UNIMPLEMENTED)
        if answer is HANGS:
            await asyncio.sleep(timeout)
        if isinstance(answer, LinkError):
            raise answer
        return answer if isinstance(answer, bytes) else answer(message)

    def stream(
        self,
        path: str,
        message: bytes,
        sink: MessageSink,
        *,
        metadata: Sequence[tuple[str, str]] = (),
        timeout: float | None = None,
        on_answered: Callable[[], None] | None = None,
    ) -> Call:
        self.asked.append(path)
        call = FakeCall(path, message, sink, metadata, timeout, on_answered)
        self.calls.append(call)
        if path in self.streams:
            answer = self.streams[path]
            wait = (timeout or 0.0) if answer is HANGS else 0.0
            asyncio.get_running_loop().call_later(wait, self._play, call, answer)
        return call

    @staticmethod
    def _play(call: FakeCall, answer: Sequence[bytes] | LinkError) -> None:
        if isinstance(answer, LinkError):
            call.sink.on_end(answer)
            return
        for message in answer:
            if "cancel" not in call.did:
                call.sink.on_message(message)
        if "cancel" not in call.did:
            call.sink.on_end(None)

    def on_lost(self, callback: Callable[[LinkError], None]) -> None:
        self.lost.append(callback)

    async def close(self) -> None:
        self.closed += 1
