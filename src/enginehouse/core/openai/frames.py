"""Streamed answers as bytes: what the frames of chat and text completions have in common.

Everything that does not change from frame to frame is put together once; a frame of text is that, the text as JSON, and
the rest. Each choice gets exactly one frame with a finish reason; after the last of them comes the usage frame, if
asked for, and `DONE` once. A stream that fails ends with an error frame and without `DONE`: official clients raise on
it, and a client that only waits for `[DONE]` cannot take half an answer for a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from enginehouse.core.openai.answers import error_body, finish_reason, usage_of
from enginehouse.core.output.answer import End, Identity, Usage
from enginehouse.domain.errors import EnginehouseError
from enginehouse.wire.sse import frame, to_json

DONE: Final = frame(b"[DONE]")

_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode


class OpenAiFrames:
    """Frames (see core/output/answer.py) of one answer with any number of choices."""

    __slots__ = ("_after", "_before", "_head", "_include_usage", "_tail")

    _nothing: bytes
    """Within a choice, before its finish reason: no text."""

    def __init__(
        self, kind: bytes, identity: Identity, choices: int, include_usage: bool, before: bytes, after: bytes
    ) -> None:
        """before, after: what stands around a text within a choice."""
        self._include_usage = include_usage
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"system_fingerprint":null,' % (
            to_json(identity.answer_id),
            kind,
            identity.created,
            to_json(identity.model),
        )
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._before = [self._choice(index) + before for index in range(choices)]
        self._after = after + b',"logprobs":null,"finish_reason":null}]' + self._tail

    def text(self, choice: int, text: str) -> bytes:
        """A frame of text."""
        return self._before[choice] + (_encode(text) if text.isascii() else to_json(text)) + self._after

    def finish(self, choice: int, end: End) -> bytes:
        """The one frame that says why the choice ended."""
        reason = finish_reason(end).encode()
        return self._frame(choice, self._nothing, finish=b'"%b"' % reason)

    def end(self, usage: Usage) -> bytes:
        """The usage, with no choice, if it was asked for; `DONE`."""
        if not self._include_usage:
            return DONE
        return self._head + b'"choices":[],"usage":' + to_json(usage_of(usage)) + b"}\n\n" + DONE

    def error(self, error: EnginehouseError) -> bytes:
        """The last frame of a stream that failed; no `DONE` after it."""
        return frame(error_body(error))

    def _choice(self, choice: int) -> bytes:
        return self._head + b'"choices":[{"index":%d,' % choice

    def _frame(
        self,
        choice: int,
        text: bytes,
        *,
        logprobs: bytes = b"null",
        finish: bytes = b"null",
        more: bytes = b"",
        beside: bytes = b"",
    ) -> bytes:
        """text: a delta or a text, with its name; more: further members of the choice; beside: some beside it."""
        return b"".join(
            (
                self._choice(choice),
                text,
                b',"logprobs":',
                logprobs,
                b',"finish_reason":',
                finish,
                more,
                b"}]",
                beside,
                self._tail,
            )
        )


def member(name: str, value: object | None) -> bytes:
    """A further member of an object; None: it has none."""
    return b"" if value is None else b",%b:%b" % (to_json(name), to_json(value))
