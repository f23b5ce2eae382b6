"""Output items: what an answer is made of in `/v1/responses`. Streamed or whole, equal pieces give equal items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from enginehouse.core.api.sealed import sealed
from enginehouse.core.openai.logprobs import chat_logprobs
from enginehouse.core.output.answer import Likelihood
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall, joined
from enginehouse.core.responses.request import ResponseRequest

Status = Literal["in_progress", "completed", "incomplete"]


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids of the items of one answer, all made of the answer's own."""

    answer_id: str

    def item(self, kind: str, index: int) -> str:
        """kind: `msg`, `rs` or `fc`; index: the item's place in the output."""
        return f"{kind}_{self.answer_id[-32:]}{index:02x}"


def message(item_id: str, status: Status, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Text for the reader."""
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": parts}


def text_part(text: str, likelihoods: Sequence[Likelihood] = ()) -> dict[str, Any]:
    """The content of a message."""
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": chat_logprobs(likelihoods)["content"],
    }


def reasoning(item_id: str, status: Status, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The model's thinking, as it is: nobody sums it up."""
    return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": parts}


def thought(item_id: str, status: Status, text: str, *, seals: bool) -> dict[str, Any]:
    """All of a reasoning item; seals: packed too."""
    item = reasoning(item_id, status, [reasoning_part(text)])
    return {**item, "encrypted_content": sealed(text)} if seals else item


def reasoning_part(text: str) -> dict[str, Any]:
    """The content of a reasoning item."""
    return {"type": "reasoning_text", "text": text}


def function_call(
    item_id: str, call: ToolCall, status: Status, arguments: str, request: ResponseRequest
) -> dict[str, Any]:
    """A call of a tool, with these of its arguments."""
    namespace, name = request.names.get(call.name, (None, call.name))
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call.id or item_id,
        **({} if namespace is None else {"namespace": namespace}),
        "name": name,
        "arguments": arguments,
    }


def output_items(
    ids: Ids, request: ResponseRequest, pieces: Sequence[Piece], *, cut: bool, likelihoods: Sequence[Likelihood] = ()
) -> list[dict[str, Any]]:
    """All items of an answer; cut: a limit ended it, so that the last text may go on. There is always one item.

    The likelihoods are those of all tokens, thinking and marks included, as in chat; the first message has them.
    """
    whole = joined(pieces) or (Content(""),)
    items: list[dict[str, Any]] = []
    left: Sequence[Likelihood] = likelihoods
    for index, piece in enumerate(whole):
        status: Status = "incomplete" if cut and index == len(whole) - 1 else "completed"
        match piece:
            case Content(text):
                items.append(message(ids.item("msg", index), status, [text_part(text, left)]))
                left = ()
            case Reasoning(text):
                items.append(thought(ids.item("rs", index), status, text, seals=request.seals))
            case ToolCall():  # never half of one
                items.append(function_call(ids.item("fc", index), piece, "completed", piece.arguments, request))
    return items
