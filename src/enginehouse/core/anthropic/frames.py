"""A streamed message as bytes: its events, each with its name.

Blocks open and close as the answer goes on: text and thinking are told piece by piece, the input of a tool when the
model has finished the call. A message that fails ends with an `error` event and without `message_stop`.
"""

from __future__ import annotations

from typing import Any, Final

from enginehouse.core.anthropic import answer
from enginehouse.core.anthropic.request import MessageRequest
from enginehouse.core.output.answer import End, Identity, News, Usage
from enginehouse.core.output.pieces import Content, Reasoning, ToolCall
from enginehouse.domain.errors import EnginehouseError
from enginehouse.domain.stream import Finish
from enginehouse.wire.sse import named, to_json

_Kind = type[Content] | type[Reasoning]
_EMPTY: Final[dict[_Kind, dict[str, Any]]] = {
    Content: {"type": "text", "text": ""},
    Reasoning: {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTA: Final[dict[_Kind, bytes]] = {
    Content: b'"type":"text_delta","text":',
    Reasoning: b'"type":"thinking_delta","thinking":',
}


class MessageFrames:
    """Frames of one message. It has one choice, so nothing here looks at which."""

    def __init__(self, identity: Identity, request: MessageRequest) -> None:
        self._identity = identity
        self._omits = request.omits_thinking
        self._omitted: list[str] = []
        """Thinking of the open block that is not told."""
        self._index = 0
        """Of the open block, else of the next."""
        self._kind: _Kind | None = None
        """Of the open block."""
        self._before = b""
        """What comes before the text of its deltas."""
        self._end = End(Finish.STOP)

    def begin(self, choice: int) -> bytes:
        usage = answer.started(self._identity.prompt_tokens)
        return _event("message_start", message=answer.message(self._identity, [], None, usage))

    def text(self, choice: int, text: str) -> bytes:
        return self._delta(Content, text)

    def news(self, choice: int, news: News) -> bytes:
        return b"".join(
            [
                self._call(piece) if isinstance(piece, ToolCall) else self._delta(type(piece), piece.text)
                for piece in news.pieces
            ]
        )

    def finish(self, choice: int, end: End) -> bytes:
        self._end = end
        return self._close()

    def end(self, usage: Usage) -> bytes:
        ended = {"stop_reason": answer.stop_reason(self._end), "stop_sequence": answer.stop_sequence(self._end)}
        return _event("message_delta", delta=ended, usage=answer.usage_of(usage)) + _event("message_stop")

    def error(self, error: EnginehouseError) -> bytes:
        return named(b"error", answer.error_answer(error))

    def _delta(self, kind: _Kind, text: str) -> bytes:
        out = b"" if self._kind is kind else self._close() + self._open(kind)
        if kind is Reasoning and self._omits:
            self._omitted.append(text)
            return out
        return b"%b%b%b}}\n\n" % (out, self._before, to_json(text))

    def _open(self, kind: _Kind) -> bytes:
        self._kind = kind
        head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{' % self._index
        self._before = head + _DELTA[kind]
        return _event("content_block_start", index=self._index, content_block=_EMPTY[kind])

    def _close(self) -> bytes:
        """End the open block, if there is one."""
        kind, self._kind = self._kind, None
        if kind is None:
            return b""
        return (self._signed() if kind is Reasoning else b"") + self._stop()

    def _signed(self) -> bytes:
        text = "".join(self._omitted)
        self._omitted.clear()
        signed = {"type": "signature_delta", "signature": answer.signature(text, self._omits)}
        return _event("content_block_delta", index=self._index, delta=signed)

    def _call(self, call: ToolCall) -> bytes:
        out = self._close()
        begun: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        told = {"type": "input_json_delta", "partial_json": call.arguments}
        return (
            out
            + _event("content_block_start", index=self._index, content_block=begun)
            + _event("content_block_delta", index=self._index, delta=told)
            + self._stop()
        )

    def _stop(self) -> bytes:
        index, self._index = self._index, self._index + 1
        return _event("content_block_stop", index=index)


def _event(name: str, **members: Any) -> bytes:
    return named(name.encode(), to_json({"type": name, **members}))
