"""A conversation as chat templates take it, from APIs that tell it in items or blocks instead of messages."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enginehouse.core.openai.arguments import Arguments
from enginehouse.core.openai.bounds import MAX_MESSAGES, MAX_PARTS, MAX_VALUES, few_strings, values_in
from enginehouse.core.openai.refusals import kind, too_much
from enginehouse.domain.errors import InvalidRequest

_ORDER: Final = ("reasoning_content", "content", "tool_calls")
"""What one turn of the assistant has, in the order in which templates write it."""
_INSTRUCTIONS: Final = ("system", "developer")


class History:
    """Messages so far. What the assistant thinks, says and calls is one message as long as it comes in that order.

    So are instructions, and texts of the user's, that follow each other: agents send them in pieces, and there are
    templates that lose all but one of them, or refuse turns that do not alternate. For the same reason all content is
    one text.
    """

    def __init__(self, param: str) -> None:
        """param: the field that holds it, to name in errors."""
        self._messages: list[dict[str, Any]] = []
        self._param = param
        self._stage: int | None = None
        """How far the open turn of the assistant has come."""
        self._parts = self._values = 0

    def messages(self) -> tuple[dict[str, Any], ...]:
        """All of it. A message that only calls tools has no content."""
        return tuple([_whole(message) for message in self._messages])

    def says(self, role: str, texts: str | list[str]) -> None:
        """A message: its text, or the texts of its parts."""
        parts = self._counted(texts)
        if role == "assistant":
            self._turn("content")["content"] = parts
        elif self._messages and _alike(self._messages[-1]["role"], role):
            self._messages[-1]["content"] += parts
        else:
            self._add({"role": role, "content": parts})

    def thinks(self, text: str) -> None:
        """What the assistant thought before it spoke; clients that do not keep it send nothing in its place."""
        if text:
            self._turn("reasoning_content")["reasoning_content"] = text

    def calls(self, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        """A tool that the assistant called."""
        function = {"name": name, "arguments": arguments}
        made = self._turn("tool_calls").setdefault("tool_calls", [])
        made.append({"id": call_id, "type": "function", "function": function})

    def returns(self, call_id: str, texts: str | list[str]) -> None:
        """What came of a call."""
        self._add({"role": "tool", "tool_call_id": call_id, "content": self._counted(texts)})

    def arguments(self, text: str, where: str) -> dict[str, Any]:
        """The arguments of a call, which templates write out again in the model's own form."""
        data = text.encode()
        self._values += values_in(data) if few_strings(data) else MAX_VALUES + 1
        if self._values > MAX_VALUES:
            raise too_much(self._param, f"has more than {MAX_VALUES} values in arguments of calls, which is the limit")
        try:
            decoded = msgspec.json.decode(data) if data.strip() else {}
        except RecursionError:
            raise InvalidRequest(f"'{where}' is nested too deeply", param=where) from None
        except msgspec.DecodeError:
            raise InvalidRequest(f"'{where}' is no JSON text; it must be that of an object", param=where) from None
        if not isinstance(decoded, dict):
            problem = f"'{where}' holds {kind(decoded)}; it must be JSON text of an object"
            raise InvalidRequest(problem, param=where)
        return Arguments(decoded, text if text.strip() else "{}")

    @property
    def in_turn(self) -> bool:
        """The last message is the assistant's, and may be gone on with."""
        return self._stage is not None

    def end_turn(self) -> None:
        """What the assistant does next is a message of its own."""
        self._stage = None

    def _turn(self, what: str) -> dict[str, Any]:
        """The assistant's message that this goes into."""
        stage = _ORDER.index(what)
        if self._stage is None or stage < self._stage or (stage == self._stage and what != "tool_calls"):
            self._add({"role": "assistant"})
        self._stage = stage
        return self._messages[-1]

    def _add(self, message: dict[str, Any]) -> None:
        if len(self._messages) == MAX_MESSAGES:
            raise too_much(self._param, f"makes more than {MAX_MESSAGES} messages, which is the limit")
        self._stage = None
        self._messages.append(message)

    def _counted(self, texts: str | list[str]) -> list[str]:
        parts = [texts] if isinstance(texts, str) else texts
        self._parts += len(parts)
        if self._parts > MAX_PARTS:
            raise too_much(self._param, f"has more than {MAX_PARTS} texts, which is the limit")
        return list(parts)


def _alike(role: str, other: str) -> bool:
    return role == other == "user" or (role in _INSTRUCTIONS and other in _INSTRUCTIONS)


def _whole(message: dict[str, Any]) -> dict[str, Any]:
    if "content" in message:
        return {**message, "content": "\n".join(message["content"])}
    return message if "tool_calls" in message else {**message, "content": ""}
