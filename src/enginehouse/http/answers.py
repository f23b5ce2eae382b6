"""Where tokens become bytes for one client: a streamed answer, written as it comes, or a whole one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from enginehouse.core.openai.render import AnswerStream
from enginehouse.core.openai.text import AnswerText
from enginehouse.domain.stream import Delta, Finish
from enginehouse.http.exchange import Headers, Stream
from enginehouse.ports import Call, RequestMeter
from enginehouse.wire.sse import CONTENT_TYPE

_SSE: Headers = [
    (b"content-type", CONTENT_TYPE.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class _Counted:
    """What every answer keeps: its text so far, and the numbers for usage."""

    def __init__(self, new_text: Callable[[], AnswerText], prompt_tokens: int, meter: RequestMeter) -> None:
        self._new_text = new_text
        self._meter = meter
        self._text = new_text()
        self._prompted = False
        self.sent = False
        self.prompt_tokens = prompt_tokens
        self.cached_tokens: int | None = None
        self.finish: Finish | None = None

    @property
    def completion_tokens(self) -> int:
        return self._text.tokens

    def _take(self, delta: Delta) -> str:
        """The text that this delta makes certain; sets `finish` when it is the last."""
        cached = delta.cached_tokens
        if cached is not None and cached > self.prompt_tokens:
            cached = self.prompt_tokens  # an engine may say what it likes, and our usage adds up
        if not self._prompted or (cached is not None and cached != self.cached_tokens):
            self._prompted = True
            self._meter.prompt(self.prompt_tokens, cached or 0)
        if cached is not None:
            self.cached_tokens = cached
        if delta.token_ids:
            self._meter.tokens(len(delta.token_ids))
        text, ended = self._text.push(delta.token_ids, delta.finish)
        if ended is not None:
            self.finish = ended
        elif delta.finish is not None:
            self.finish = delta.finish
        return text


class WholeAnswer(_Counted):
    """Collects the answer; nothing reaches the client before its end, so every attempt may be repeated."""

    def begin(self, call: Call) -> None:
        self._text = self._new_text()
        self._parts: list[str] = []
        self.cached_tokens = self.finish = None

    def push(self, delta: Delta) -> bool:
        text = self._take(delta)
        if text:
            self._parts.append(text)
        return self.finish is not None

    @property
    def text(self) -> str:
        return "".join(self._parts)


class StreamedAnswer(_Counted):
    """Writes each delta to the client's transport from inside the engine's read callback.

    While the client does not read, text is merged and held here and the engine's stream is granted no more window: what
    can arrive is bounded by the window granted already. A client that stays away too long is cut by the server.
    """

    def __init__(
        self,
        new_text: Callable[[], AnswerText],
        prompt_tokens: int,
        meter: RequestMeter,
        stream: Stream,
        frames: AnswerStream,
        headers: Headers,
    ) -> None:
        """headers: besides those of every stream; read when the first bytes leave, so an attempt may change them."""
        super().__init__(new_text, prompt_tokens, meter)
        self._stream = stream
        self._frames = frames
        self._headers = headers
        self._call: Call | None = None
        self._held = ""
        self.complete = False
        stream.watch(self._pause, self._resume)

    def begin(self, call: Call) -> None:
        self._text = self._new_text()
        self.cached_tokens = None
        self._held = ""
        self._call = call
        if self._stream.paused:
            self._pause()

    def push(self, delta: Delta) -> bool:
        text = self._take(delta)
        if self._stream.paused:
            self._held += text
            return self.finish is not None
        self._write(text)
        return self.finish is not None

    def fail(self, frame: bytes) -> None:
        """End an answer that has begun with an error event."""
        self.complete = True
        held, self._held = self._held, ""
        self._stream.finish((self._frames.text(held) if held else b"") + frame)

    async def flushed(self) -> None:
        """Wait until a client that did not read has taken the rest. Cutting it instead cancels this request."""
        while not self.complete:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def _write(self, text: str) -> None:
        frames = self._frames
        out = b""
        if not self.sent:
            self.sent = True
            self._stream.start(200, [*_SSE, *self._headers])
            out = frames.first()
        if text:
            out += frames.text(text)
        if self.finish is not None:
            self.complete = True
            out += frames.last(
                self.finish,
                prompt_tokens=self.prompt_tokens,
                completion_tokens=self.completion_tokens,
                cached_tokens=self.cached_tokens,
            )
            self._stream.finish(out)
        elif out:
            self._stream.write(out)

    def _pause(self) -> None:
        if self.complete:
            return
        if self._call is not None:
            self._call.pause()

    def _resume(self) -> None:
        if self.complete:
            return
        held, self._held = self._held, ""
        if held or self.finish is not None:
            self._write(held)
        if self._call is not None and not self.complete and not self._stream.paused:
            self._call.resume()
        if self.complete and self._room is not None and not self._room.done():
            self._room.set_result(None)

    _room: asyncio.Future[None] | None = None
