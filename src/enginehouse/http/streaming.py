"""Where tokens become bytes for one client: an answer that is written as it comes."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from enginehouse.core.output.answer import Frames, News, together
from enginehouse.domain.errors import EnginehouseError
from enginehouse.domain.stream import Delta
from enginehouse.http.answers import CountedChoice, NewChoice, Tally
from enginehouse.http.exchange import Headers, Stream
from enginehouse.ports import Call, RequestMeter
from enginehouse.wire.sse import CONTENT_TYPE

_SSE: Headers = [
    (b"content-type", CONTENT_TYPE.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_COMMENT: Final = b": the model is writing what can be shown only when it is whole\n\n"
_SILENCE: Final = 15.0
"""Seconds; proxies cut streams after a minute, often."""


class StreamedChoice(CountedChoice):
    """Writes each delta to the client's transport from inside the engine's read callback.

    While the client does not read, what comes is held here and the engine's stream is granted no more window: what can
    arrive is bounded by the window granted already. A client that stays away too long is cut by the server.
    """

    def __init__(
        self, index: int, new: NewChoice, tally: Tally, prompt: int | None, meter: RequestMeter, answer: StreamedAnswer
    ) -> None:
        super().__init__(index, new, tally, prompt, meter)
        self._answer = answer
        self._stream = answer.stream
        self._frames = answer.frames
        self._call: Call | None = None
        self._held: list[str | News] = []

    def begin(self, call: Call) -> None:
        super().begin(call)
        self._held.clear()
        self._call = call
        if self._stream.paused:
            call.pause()

    def push(self, delta: Delta) -> bool:
        part = self._take(delta)
        if self._stream.paused:
            self._held.append(part)
        else:
            self._write(part)
        return self.choice.end is not None

    def held(self) -> bytes:
        """What has not been written, of a choice of which something was."""
        part = together(self._held)
        self._held.clear()
        return self._frame(part) if self.sent and part else b""

    def release(self) -> None:
        """Write what was held."""
        if self._held:
            part = together(self._held)
            self._held.clear()
            self._write(part)

    def pause(self) -> None:
        if self._call is not None:
            self._call.pause()

    def resume(self) -> None:
        if self._call is not None:
            self._call.resume()

    def _frame(self, part: str | News) -> bytes:
        if isinstance(part, str):
            return self._frames.text(self.index, part)
        return self._frames.news(self.index, part)

    def _write(self, part: str | News) -> None:
        out = b""
        if not self.sent:
            out = self._answer.begin(self.index)
            if not (out or part) and self.choice.end is None:
                return  # nothing to be seen of it yet: another engine may still give all of it
            self.sent = True
            self._answer.start()
        if part:
            out += self._frames.text(self.index, part) if type(part) is str else self._frame(part)
        end = self.choice.end
        if end is not None:
            self._answer.ended(out + self._frames.finish(self.index, end))
        elif out:
            self._stream.write(out)
        else:
            self._answer.silent()


class StreamedAnswer:
    """What the choices of one streamed answer share: the client, the frames, the end."""

    def __init__(self, stream: Stream, frames: Frames, headers: Headers, tally: Tally) -> None:
        """headers: besides those of every stream; read when the first bytes leave, so an attempt may change them."""
        self.stream = stream
        self.frames = frames
        self._headers = headers
        self._tally = tally
        self._choices: list[StreamedChoice] = []
        self._begun = self._over = 0
        self._room: asyncio.Future[None] | None = None
        self.sent = False
        self.complete = False
        self._commented = monotonic()
        stream.watch(self._pause, self._resume)

    def add(self, choice: StreamedChoice) -> None:
        self._choices.append(choice)

    def begin(self, index: int) -> bytes:
        """The beginnings of this choice and, unless they had theirs, of those before it: clients count by them."""
        begun, self._begun = self._begun, max(self._begun, index + 1)
        return b"".join([self.frames.begin(at) for at in range(begun, self._begun)])

    def start(self) -> None:
        """Something is about to be written: from here on the answer is a stream."""
        if not self.sent:
            self.sent = True
            self.stream.start(200, [*_SSE, *self._headers])

    def silent(self) -> None:
        """Tokens came and nothing of them can be written: the arguments of a call may be long. Every client of events
        skips comments, and whoever cuts what is silent sees that it is not."""
        now = monotonic()
        if now - self._commented >= _SILENCE:
            self._commented = now
            self.stream.write(_COMMENT)

    def ended(self, out: bytes) -> None:
        """Write the last of a choice; with the last choice the answer ends too."""
        self._over += 1
        if self._over < len(self._choices):
            self.stream.write(out)
            return
        self.complete = True
        usage = self._tally.usage([one.choice for one in self._choices])
        self.stream.finish(out + self.frames.end(usage))

    def fail(self, error: EnginehouseError) -> None:
        """End an answer that has begun with an error."""
        self.complete = True
        held = b"".join([choice.held() for choice in self._choices])
        self.stream.finish(held + self.frames.error(error))

    async def flushed(self) -> None:
        """Wait until a client that did not read has taken the rest. Cutting it instead cancels this request."""
        while not self.complete:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def _pause(self) -> None:
        if not self.complete:
            for choice in self._choices:
                choice.pause()

    def _resume(self) -> None:
        if self.complete:
            return
        for choice in self._choices:
            choice.release()
            if self.stream.paused:  # full again
                break
        if self.complete:
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
        elif not self.stream.paused:
            for choice in self._choices:
                choice.resume()
