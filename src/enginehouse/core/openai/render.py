"""Streamed answers as bytes: the frames of chat and text completions.

Everything that does not change from frame to frame is put together once; a frame of text is that, the text as JSON, and
the rest. Each choice gets exactly one frame with a finish reason; the usage frame, if asked for, comes after it and
`DONE` last. A stream that fails ends with `error_frame` and without `DONE`: official clients raise on it, and a client
that only waits for `[DONE]` cannot take half an answer for a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from enginehouse.core.openai.answers import chat_answer, completion_answer, error_body, models_list, usage_of
from enginehouse.domain.errors import EnginehouseError
from enginehouse.wire.sse import frame

__all__ = [
    "DONE",
    "AnswerStream",
    "ChatStream",
    "CompletionStream",
    "chat_answer",
    "completion_answer",
    "error_body",
    "error_frame",
    "json_text",
    "models_list",
]

DONE: Final = frame(b"[DONE]")

_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
_LINE_ENDS: Final = (("\x85", b"\\u0085"), ("\u2028", b"\\u2028"), ("\u2029", b"\\u2029"))


def json_text(text: str) -> bytes:
    """A JSON string. Characters that some readers of event streams take for line ends are escaped too."""
    encoded = _encode(text)
    if not text.isascii():
        for character, escape in _LINE_ENDS:
            if character in text:
                encoded = encoded.replace(character.encode(), escape)
    return encoded


class _Frames:
    """What both kinds of stream have in common: the end."""

    __slots__ = ("_after", "_before", "_head", "_include_usage", "_tail")

    _before: bytes
    _after: bytes

    def __init__(
        self, kind: bytes, answer_id: str, model: str, created: int, include_usage: bool, fingerprint: str
    ) -> None:
        self._include_usage = include_usage
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"system_fingerprint":%b,' % (
            json_text(answer_id),
            kind,
            created,
            json_text(model),
            json_text(fingerprint) if fingerprint else b"null",
        )
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def text(self, text: str) -> bytes:
        """A frame of text."""
        if text.isascii():
            return self._before + _encode(text) + self._after
        return self._before + json_text(text) + self._after

    def finish(self, reason: str) -> bytes:
        """The one frame that says why the answer ended."""
        raise NotImplementedError

    def usage(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> bytes:
        """The frame with the usage: no choice in it."""
        usage = _encode(usage_of(prompt_tokens, completion_tokens, cached_tokens))
        return self._head + b'"choices":[],"usage":' + usage + b"}\n\n"

    def last(
        self, reason: str, *, prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None
    ) -> bytes:
        """Everything after the last text: the finish frame, the usage if it was asked for, `DONE`."""
        usage = self.usage(prompt_tokens, completion_tokens, cached_tokens) if self._include_usage else b""
        return self.finish(reason) + usage + DONE


class ChatStream(_Frames):
    """Frames of one streamed chat answer with one choice."""

    __slots__ = ("_empty",)

    def __init__(
        self, answer_id: str, model: str, created: int, include_usage: bool = False, fingerprint: str = ""
    ) -> None:
        super().__init__(b"chat.completion.chunk", answer_id, model, created, include_usage, fingerprint)
        self._empty = self._head + b'"choices":[{"index":0,"delta":{'
        self._before = self._empty + b'"content":'
        self._after = b'},"logprobs":null,"finish_reason":null}]' + self._tail

    def first(self) -> bytes:
        """The frame that says who speaks; before any text."""
        return self._empty + b'"role":"assistant","content":""' + self._after

    def finish(self, reason: str) -> bytes:
        """The one frame that says why the answer ended."""
        return self._empty + b'},"logprobs":null,"finish_reason":"%b"}]' % reason.encode() + self._tail


class CompletionStream(_Frames):
    """Frames of one streamed text completion with one choice."""

    __slots__ = ()

    def __init__(
        self, answer_id: str, model: str, created: int, include_usage: bool = False, fingerprint: str = ""
    ) -> None:
        super().__init__(b"text_completion", answer_id, model, created, include_usage, fingerprint)
        self._before = self._head + b'"choices":[{"index":0,"text":'
        self._after = b',"logprobs":null,"finish_reason":null}]' + self._tail

    def first(self) -> bytes:
        """Nothing: a completion has no opening frame."""
        return b""

    def finish(self, reason: str) -> bytes:
        """The one frame that says why the answer ended."""
        return self._before + b'"","logprobs":null,"finish_reason":"%b"}]' % reason.encode() + self._tail


AnswerStream = ChatStream | CompletionStream


def error_frame(error: EnginehouseError) -> bytes:
    """The last frame of a stream that failed; no `DONE` after it."""
    return frame(error_body(error))
