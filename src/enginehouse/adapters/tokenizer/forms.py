"""The forms of messages that a template reads, found out by trying, and messages brought into them.

Clients send content as a string or as parts, arguments as JSON text, and calls with or without content beside them. A
template was written for some of that, shows the rest wrongly, loses it, or fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]
"""(messages, tools) to text; raises whatever a template can."""

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""What earlier answers thought: clients and templates disagree about its name, so each of them gets to see it."""
_WORD: Final = "b7e1probe"
_KEY: Final = "b7e1key"
_ID: Final = "b7e1prob0"  # some templates insist on nine letters and digits
_ASK: Final = {"role": "user", "content": "?"}
_TOOL: Final = {"type": "function", "function": {"name": _WORD, "description": "", "parameters": {"type": "object"}}}
_ABSENT: Final = object()


class Forms:
    """What one template reads."""

    def __init__(self, render: Render, source: str) -> None:
        self._render = render
        self._knows_developer = "developer" in source
        self._strings = {role: self._shows(role, _WORD) for role in _AROUND}
        self._parts = {role: self._shows(role, [{"type": "text", "text": _WORD}]) for role in _AROUND}
        self._text_arguments, self._no_content = self._probe_calls()
        self._keeps_empty = self._calls_show("", text=self._text_arguments)
        """Calls are shown beside content that is an empty string."""

    def prepared(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as this template reads it."""
        prepared = dict(message)
        if prepared["role"] == "developer" and not self._knows_developer:
            prepared["role"] = "system"  # which is what newer clients call it
        calls = prepared.get("tool_calls")
        if calls:
            self._prepare_call(prepared, calls)
        if "content" in prepared:
            prepared["content"] = self._content(prepared["content"], prepared["role"])
        reasoning = next((prepared[name] for name in _REASONING if prepared.get(name) is not None), None)
        if reasoning is not None:
            for name in _REASONING:
                prepared.setdefault(name, reasoning)
        return prepared

    def _content(self, content: Any, role: str) -> Any:
        role = role if role in _AROUND else "system"
        if isinstance(content, list) and not self._parts[role]:
            return "\n".join([part["text"] for part in content])
        if isinstance(content, str) and self._parts[role] and not self._strings[role]:
            return [{"type": "text", "text": content}]
        return content

    def _prepare_call(self, message: dict[str, Any], calls: Sequence[Mapping[str, Any]]) -> None:
        if not message.get("content") and (message.get("content") is None or not self._keeps_empty):
            message.pop("content", None)
            if self._no_content is not _ABSENT:
                message["content"] = self._no_content
        if self._text_arguments:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": _json(call["function"]["arguments"])}}
                for call in calls
            ]

    # How it was found out.

    def _shows(self, role: str, content: Any) -> bool:
        before, after = _AROUND[role]
        text = self._try([*before, {**_MESSAGES[role], "content": content}, *after])
        as_it_stands = f"'text': '{_WORD}'" in text or f'"text": "{_WORD}"' in text
        return _WORD in text and not as_it_stands

    def _probe_calls(self) -> tuple[bool, Any]:
        """(arguments have to be JSON text, what content there has to be beside calls alone)."""
        for text in (False, True):
            for content in (_ABSENT, None, ""):
                if self._calls_show(content, text=text):
                    return text, content
        return False, _ABSENT

    def _calls_show(self, content: Any, *, text: bool) -> bool:
        arguments = {_KEY: "v"}
        call = {**_CALL, "function": {"name": _WORD, "arguments": _json(arguments) if text else arguments}}
        message = {"role": "assistant", "tool_calls": [call]} | ({} if content is _ABSENT else {"content": content})
        shown = self._try([_ASK, message, _RESULT])
        return _KEY in shown and f"{{'{_KEY}'" not in shown  # not as Python writes it

    def _try(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Empty: it fails."""
        tools = [_TOOL] if any("tool_calls" in message for message in messages) else []
        try:
            return self._render(messages, tools)
        except Exception:  # a template may insist on anything; then it gets what most of them read
            return ""


_CALL: Final = {"id": _ID, "type": "function", "function": {"name": "f", "arguments": {}}}
_CALLS: Final = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT: Final = {"role": "tool", "tool_call_id": _ID, "name": "f", "content": "1"}
_MESSAGES: Final[dict[str, dict[str, Any]]] = {
    "system": {"role": "system"},
    "user": {"role": "user"},
    "assistant": {"role": "assistant"},
    "tool": {"role": "tool", "tool_call_id": _ID, "name": "f"},
}
_AROUND: Final[dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]] = {
    "system": ([], [_ASK]),
    "user": ([], []),
    "assistant": ([_ASK], [_ASK]),
    "tool": ([_ASK, _CALLS], []),
}
"""What stands before and after a message of each role, so that a template takes it."""


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
