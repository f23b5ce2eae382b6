"""A streamed response as bytes: its events, numbered, each with its name.

Items open and close as the answer goes on: text and thinking are told piece by piece, a call when the model has
finished it. The last event is `response.completed`, `.incomplete` or `.failed`; before the latter comes an `error`
event, which official clients raise.
"""

from __future__ import annotations

from typing import Any, Final

from enginehouse.core.openai.logprobs import chat_logprobs
from enginehouse.core.output.answer import End, Identity, Likelihood, News, Usage
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall
from enginehouse.core.responses.answer import response, status_of
from enginehouse.core.responses.items import (
    Ids,
    Status,
    function_call,
    message,
    output_items,
    reasoning,
    reasoning_part,
    text_part,
    thought,
)
from enginehouse.core.responses.request import ResponseRequest
from enginehouse.domain.errors import EnginehouseError
from enginehouse.domain.stream import Finish
from enginehouse.wire.sse import named, to_json

_Kind = type[Content] | type[Reasoning]
_TEXT: Final[dict[_Kind, str]] = {Content: "output_text", Reasoning: "reasoning_text"}
_PREFIX: Final[dict[_Kind, str]] = {Content: "msg", Reasoning: "rs"}


class ResponseFrames:
    """Frames of one response. It has one choice, so nothing here looks at which."""

    def __init__(self, identity: Identity, request: ResponseRequest) -> None:
        self._identity = identity
        self._request = request
        self._ids = Ids(identity.answer_id)
        self._number = 0
        """Of the next event."""
        self._kind: _Kind | None = None
        """Of the open item, its text and what stands around the text of its deltas."""
        self._texts: list[str] = []
        self._before = self._after = b""
        self._said: list[Piece] = []
        """What the items hold that are closed."""
        self._likelihoods: list[Likelihood] = []
        self._told = 0
        """Of the likelihoods, how many were in a delta."""
        self._end = End(Finish.STOP)

    def begin(self, choice: int) -> bytes:
        now = response(self._identity, self._request, "in_progress")
        return self._event("response.created", response=now) + self._event("response.in_progress", response=now)

    def text(self, choice: int, text: str) -> bytes:
        return self._delta(Content, text)

    def news(self, choice: int, news: News) -> bytes:
        if news.likelihoods:
            self._likelihoods += news.likelihoods
        return b"".join(
            [
                self._call(piece) if isinstance(piece, ToolCall) else self._delta(type(piece), piece.text)
                for piece in news.pieces
            ]
        )

    def finish(self, choice: int, end: End) -> bytes:
        self._end = end
        empty = b"" if self._said or self._kind else self._open(Content)
        return empty + self._close("incomplete" if end.finish is Finish.LENGTH else "completed")

    def end(self, usage: Usage) -> bytes:
        cut, status = self._end.finish is Finish.LENGTH, status_of(self._end)
        output = self._output(self._said, cut)
        last = response(self._identity, self._request, status, output, usage)
        return self._event(f"response.{status}", response=last)

    def error(self, error: EnginehouseError) -> bytes:
        told = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
        first = self._event("error", code=error.code, message=error.message, param=error.param, error=told)
        cut = self._kind is not None
        said = [*self._said, *([self._kind("".join(self._texts))] if self._kind else [])]
        output = self._output(said, cut) if said else []
        last = response(self._identity, self._request, "failed", output, error=error)
        return first + self._event("response.failed", response=last)

    def _delta(self, kind: _Kind, text: str) -> bytes:
        """Text of an item of this kind, which is opened if need be."""
        out = b"" if self._kind is kind else self._close("completed") + self._open(kind)
        self._texts.append(text)
        after = self._after
        if kind is Content and self._told < len(self._likelihoods):
            new = self._likelihoods[self._told :]
            self._told = len(self._likelihoods)
            after = b',"logprobs":%b,"sequence_number":' % to_json(chat_logprobs(new)["content"])
        number = self._number
        self._number = number + 1
        return b"%b%b%b%b%d}\n\n" % (out, self._before, to_json(text), after, number)

    def _open(self, kind: _Kind) -> bytes:
        self._kind, self._texts = kind, []
        name = f"response.{_TEXT[kind]}.delta"
        head = to_json({"type": name, **self._place()})
        self._before = b"event: %b\ndata: %b" % (name.encode(), head[:-1] + b',"delta":')
        self._after = b',"logprobs":[],"sequence_number":' if kind is Content else b',"sequence_number":'
        return self._event(
            "response.output_item.added", output_index=len(self._said), item=self._item(kind, "in_progress", [])
        ) + self._event("response.content_part.added", **self._place(), part=_part(kind, ""))

    def _close(self, status: Status) -> bytes:
        """End the open item, if there is one."""
        kind = self._kind
        if kind is None:
            return b""
        text = "".join(self._texts)
        first = not any(isinstance(piece, Content) for piece in self._said)
        part = _part(kind, text, self._likelihoods if first else ())
        done: dict[str, Any] = {**self._place(), "text": text}
        if kind is Content:
            done["logprobs"] = part["logprobs"]
            item = self._item(kind, status, [part])
        else:
            item = thought(done["item_id"], status, text, seals=self._request.seals)
        out = (
            self._event(f"response.{_TEXT[kind]}.done", **done)
            + self._event("response.content_part.done", **self._place(), part=part)
            + self._event("response.output_item.done", output_index=len(self._said), item=item)
        )
        self._said.append(kind(text))
        self._kind = None
        return out

    def _call(self, call: ToolCall) -> bytes:
        out = self._close("completed")
        index = len(self._said)
        item_id = self._ids.item("fc", index)
        place = {"item_id": item_id, "output_index": index}
        begun = function_call(item_id, call, "in_progress", "", self._request)
        whole = function_call(item_id, call, "completed", call.arguments, self._request)
        self._said.append(call)
        return (
            out
            + self._event("response.output_item.added", output_index=index, item=begun)
            + self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
            + self._event("response.function_call_arguments.done", **place, arguments=call.arguments)
            + self._event("response.output_item.done", output_index=index, item=whole)
        )

    def _output(self, said: list[Piece], cut: bool) -> list[dict[str, Any]]:
        return output_items(self._ids, self._request, said, cut=cut, likelihoods=self._likelihoods)

    def _item(self, kind: _Kind, status: Status, parts: list[dict[str, Any]]) -> dict[str, Any]:
        make = message if kind is Content else reasoning
        return make(self._ids.item(_PREFIX[kind], len(self._said)), status, parts)

    def _place(self) -> dict[str, Any]:
        """Where the open item's content stands."""
        assert self._kind is not None
        index = len(self._said)
        return {"item_id": self._ids.item(_PREFIX[self._kind], index), "output_index": index, "content_index": 0}

    def _event(self, name: str, **members: Any) -> bytes:
        number = self._number
        self._number = number + 1
        return named(name.encode(), to_json({"type": name, **members, "sequence_number": number}))


def _part(kind: _Kind, text: str, likelihoods: list[Likelihood] | tuple[()] = ()) -> dict[str, Any]:
    return text_part(text, likelihoods) if kind is Content else reasoning_part(text)
