"""Where tokens become bytes for one client: streamed answers, written as they come, and whole ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from enginehouse.core.openai.choice import AnyChoice, whole_choice
from enginehouse.core.output.answer import Choice, Frames, News, Usage, together
from enginehouse.domain.errors import EnginehouseError
from enginehouse.domain.stream import Delta
from enginehouse.http.exchange import Headers, Stream
from enginehouse.ports import Call, RequestMeter
from enginehouse.wire.sse import CONTENT_TYPE

_SSE: Headers = [
    (b"content-type", CONTENT_TYPE.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

NewChoice = Callable[[], AnyChoice]


class Tally:
    """The prompts of a request, each counted once however many answers it gets, and what engines had of them."""

    def __init__(self, prompts: Sequence[int], meter: RequestMeter) -> None:
        self._prompts = prompts
        self._cached: list[int | None] = [None] * len(prompts)
        self._meter = meter
        self._told: int | None = None
        self.prompt_tokens = sum(prompts)

    def took(self, prompt: int, cached: int | None) -> None:
        """An engine has taken the prompt up, and says what it had of it; None: it does not say."""
        if cached is not None:
            cached = min(cached, self._prompts[prompt])  # an engine may say what it likes, and our usage adds up
        self._cached[prompt] = cached
        known = self.cached_tokens or 0
        if known != self._told:
            self._told = known
            self._meter.prompt(self.prompt_tokens, known)

    def forget(self, prompt: int) -> None:
        """An attempt begins: what another engine had counts no more."""
        self._cached[prompt] = None

    @property
    def cached_tokens(self) -> int | None:
        known = [cached for cached in self._cached if cached is not None]
        return sum(known) if known else None

    def usage(self, choices: Sequence[AnyChoice]) -> Usage:
        """With the answers as they are now."""
        reasoning = [choice.reasoning_tokens for choice in choices if choice.reasoning_tokens is not None]
        return Usage(
            self.prompt_tokens,
            sum(choice.tokens for choice in choices),
            self.cached_tokens,
            sum(reasoning) if reasoning else None,
        )


class _Counted:
    """What every choice keeps: its reader, and what its engine says of the prompt. An Answer to its attempts."""

    def __init__(self, index: int, new: NewChoice, tally: Tally, prompt: int | None, meter: RequestMeter) -> None:
        """prompt: the one that this is the first answer to; None: another choice counts it."""
        self.index = index
        self._new = new
        self._tally = tally
        self._prompt = prompt
        self._meter = meter
        self._cached = -1  # nothing was told yet, not even that nobody knows
        self.choice: AnyChoice
        self.sent = False

    def begin(self, call: Call) -> None:
        self.choice = self._new()
        self._cached = -1
        if self._prompt is not None:
            self._tally.forget(self._prompt)

    def _take(self, delta: Delta) -> str | News:
        """What this delta makes certain."""
        if self._cached == -1 or (delta.cached_tokens is not None and delta.cached_tokens != self._cached):
            self._cached = delta.cached_tokens or 0
            if self._prompt is not None:
                self._tally.took(self._prompt, delta.cached_tokens)
        if delta.token_ids:
            self._meter.tokens(len(delta.token_ids))
        return self.choice.push(delta)


class WholeChoice(_Counted):
    """Collects an answer; nothing reaches the client before its end, so every attempt may be repeated."""

    def begin(self, call: Call) -> None:
        super().begin(call)
        self._parts: list[str | News] = []

    def push(self, delta: Delta) -> bool:
        part = self._take(delta)
        if part:
            self._parts.append(part)
        return self.choice.end is not None

    def whole(self) -> Choice:
        """When it is over."""
        assert self.choice.end is not None
        return whole_choice(self.index, self._parts, self.choice.end)


class StreamedChoice(_Counted):
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
            self.sent = True
            self._answer.start()
            out = self._frames.begin(self.index)
        if part:
            out += self._frames.text(self.index, part) if type(part) is str else self._frame(part)
        end = self.choice.end
        if end is not None:
            self._answer.ended(out + self._frames.finish(self.index, end))
        elif out:
            self._stream.write(out)


class StreamedAnswer:
    """What the choices of one streamed answer share: the client, the frames, the end."""

    def __init__(self, stream: Stream, frames: Frames, headers: Headers, tally: Tally) -> None:
        """headers: besides those of every stream; read when the first bytes leave, so an attempt may change them."""
        self.stream = stream
        self.frames = frames
        self._headers = headers
        self._tally = tally
        self._choices: list[StreamedChoice] = []
        self._over = 0
        self._room: asyncio.Future[None] | None = None
        self.sent = False
        self.complete = False
        stream.watch(self._pause, self._resume)

    def add(self, choice: StreamedChoice) -> None:
        self._choices.append(choice)

    def start(self) -> None:
        """Something is about to be written."""
        if not self.sent:
            self.sent = True
            self.stream.start(200, [*_SSE, *self._headers])

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
