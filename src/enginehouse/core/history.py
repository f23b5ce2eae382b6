"""A conversation as chat templates take it, from APIs that tell it in items or blocks instead of messages."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from enginehouse.core.openai.bounds import MAX_MESSAGES, MAX_PARTS, MAX_VALUES, few_strings, values_in
from enginehouse.core.openai.refusals import kind, too_much
from enginehouse.domain.errors import InvalidRequest

_ORDER: Final = ("reasoning_content", "content", "tool_calls")
"""What one turn of the assistant has, in the order in which templates write it."""


class History:
    """Messages so far. What the assistant thinks, says and calls is one message as long as it comes in that order."""

    def __init__(self, param: str) -> None:
        """param: the field that holds it, to name in errors."""
        self._messages: list[dict[str, Any]] = []
        self._param = param
        self._stage: int | None = None
        """How far the open turn of the assistant has come."""
        self._parts = self._values = 0

    def messages(self) -> tuple[dict[str, Any], ...]:
        """All of it. A message that only calls tools has no content."""
        for message in self._messages:
            if "tool_calls" not in message:
                message.setdefault("content", "")
        return tuple(self._messages)

    def says(self, role: str, texts: str | list[str]) -> None:
        """A message: its text, or the texts of its parts."""
        content = self._content(texts)
        if role == "assistant":
            self._turn("content")["content"] = content
        else:
            self._add({"role": role, "content": content})

    def thinks(self, text: str) -> None:
        """What the assistant thought before it spoke."""
        self._turn("reasoning_content")["reasoning_content"] = text

    def calls(self, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        """A tool that the assistant called."""
        function = {"name": name, "arguments": arguments}
        made = self._turn("tool_calls").setdefault("tool_calls", [])
        made.append({"id": call_id, "type": "function", "function": function})

    def returns(self, call_id: str, texts: str | list[str]) -> None:
        """What came of a call."""
        self._add({"role": "tool", "tool_call_id": call_id, "content": self._content(texts)})

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
        return decoded

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

    def _content(self, texts: str | list[str]) -> str | list[dict[str, str]]:
        if isinstance(texts, str):
            return texts
        self._parts += len(texts)
        if self._parts > MAX_PARTS:
            raise too_much(self._param, f"has more than {MAX_PARTS} content parts together, which is the limit")
        return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
