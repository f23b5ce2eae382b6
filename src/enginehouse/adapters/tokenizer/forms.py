"""The forms of messages that a template reads, found out by trying, and messages brought into them.

Clients send content as a string or as parts, arguments as JSON text, and calls with or without content beside them. A
template was written for some of that, shows the rest wrongly, loses it, or fails.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from enginehouse.core.openai.arguments import written

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]
"""(messages, tools) to text; raises whatever a template can."""

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""What earlier answers thought: clients and templates disagree about its name, so each of them gets to see it."""
_WORD: Final = "b7e1probe"
_KEY: Final = "b7e1key"
_ID: Final = "b7e1prob0"
_LONG_ID: Final = "call_b7e1probe"
_SHORT: Final = re.compile("[A-Za-z0-9]{9}")
"""Ids of calls that the templates of one maker insist on."""
_TOOL: Final = {"type": "function", "function": {"name": _WORD, "description": "", "parameters": {"type": "object"}}}
_ABSENT: Final = object()


class Forms:
    """What one template reads."""

    def __init__(self, render: Render, source: str) -> None:
        self._render = render
        self._knows_developer = "developer" in source
        self._reads = {"user": self._probe_content([], {"role": "user"}, []) or (True, False)}
        self._ask = {"role": "user", "content": self._content("?", "user")}
        for before, message, after in (
            ([], {"role": "system"}, [self._ask]),
            ([self._ask], {"role": "assistant"}, [self._ask]),
            ([self._ask, _CALLS], {"role": "tool", "tool_call_id": _ID, "name": "f"}, []),
        ):
            self._reads[message["role"]] = self._probe_content(before, message, after) or self._reads["user"]
        found = self._probe_calls()
        self._text_arguments: bool
        self._no_content: Any
        self._text_arguments, self._no_content = found or (False, "")
        self._keeps_empty = found is None or self._calls_show("", text=self._text_arguments)
        """Calls are shown beside content that is an empty string, if anywhere."""
        self._short_ids = found is not None and not self._calls_show(
            self._no_content, text=self._text_arguments, call_id=_LONG_ID
        )

    def prepared(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as this template reads it."""
        prepared = dict(message)
        if prepared["role"] == "developer" and not self._knows_developer:
            prepared["role"] = "system"  # which is what newer clients call it
        calls = prepared.get("tool_calls")
        if calls:
            self._prepare_call(prepared, calls)
        if self._short_ids and isinstance(prepared.get("tool_call_id"), str):
            prepared["tool_call_id"] = _short(prepared["tool_call_id"])
        if "content" in prepared:
            prepared["content"] = self._content(prepared["content"], prepared["role"])
        reasoning = next((prepared[name] for name in _REASONING if prepared.get(name) is not None), None)
        if reasoning is not None:
            for name in _REASONING:
                prepared.setdefault(name, reasoning)
        return prepared

    def _content(self, content: Any, role: str) -> Any:
        strings, parts = self._reads[role if role in self._reads else "system"]
        if isinstance(content, list) and not parts:
            return "\n".join([part["text"] for part in content])
        if isinstance(content, str) and not strings:
            return [{"type": "text", "text": content}]
        return content

    def _prepare_call(self, message: dict[str, Any], calls: Sequence[Mapping[str, Any]]) -> None:
        if not message.get("content") and (message.get("content") is None or not self._keeps_empty):
            message.pop("content", None)
            if self._no_content is not _ABSENT:
                message["content"] = self._no_content
        if self._text_arguments:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": written(call["function"]["arguments"])}}
                for call in calls
            ]
        if self._short_ids:
            message["tool_calls"] = [
                {**call, "id": _short(call["id"])} if isinstance(call.get("id"), str) else call
                for call in message["tool_calls"]
            ]

    # How it was found out.

    def _probe_content(
        self, before: list[dict[str, Any]], message: dict[str, Any], after: list[dict[str, Any]]
    ) -> tuple[bool, bool] | None:
        """(strings are read, parts are) for messages like this one; None: neither.

        A template reads parts if it makes of one what it makes of a string. Else it may show the list as it stands.
        """
        string, part = [
            self._try([*before, {**message, "content": content}, *after])
            for content in (_WORD, [{"type": "text", "text": _WORD}])
        ]
        strings, parts = _WORD in string, _WORD in part
        return (strings, parts and (part == string or not strings)) if strings or parts else None

    def _probe_calls(self) -> tuple[bool, Any] | None:
        """(arguments have to be JSON text, what content there has to be beside calls alone); None: no call is shown."""
        for text in (False, True):
            for content in (_ABSENT, None, ""):
                if self._calls_show(content, text=text):
                    return text, content
        return None

    def _calls_show(self, content: Any, *, text: bool, call_id: str = _ID) -> bool:
        arguments = {_KEY: "v"}
        function = {"name": _WORD, "arguments": written(arguments) if text else arguments}
        call = {**_CALL, "id": call_id, "function": function}
        message = {"role": "assistant", "tool_calls": [call]} | ({} if content is _ABSENT else {"content": content})
        shown = self._try([self._ask, message, {**_RESULT, "tool_call_id": call_id}])
        return _KEY in shown and f"{{'{_KEY}'" not in shown  # not as Python writes it

    def _try(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Empty: it fails."""
        tools = [_TOOL] if any("tool_calls" in message for message in messages) else []
        try:
            return self._render(messages, tools)
        except Exception:  # a template may insist on anything; then it gets what most of them read
            return ""


def _short(call_id: str) -> str:
    """An id of nine letters and digits for any other: always the same, so that a prompt begins as it did before."""
    if _SHORT.fullmatch(call_id):
        return call_id
    return base64.b32encode(sha256(call_id.encode(errors="surrogatepass")).digest()).decode().lower()[:9]


_CALL: Final = {"id": _ID, "type": "function", "function": {"name": "f", "arguments": {}}}
_CALLS: Final = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_RESULT: Final = {"role": "tool", "tool_call_id": _ID, "name": "f", "content": "1"}
