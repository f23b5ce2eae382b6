"""What a chat template gets besides the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from enginehouse.core.openai.fields import ChatFields
from enginehouse.core.openai.tools import Offer
from enginehouse.domain.errors import InvalidRequest

_OURS: Final = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template")
"""What clients give as parameters of their own, or not at all."""


def template_options(fields: ChatFields, messages: Sequence[Mapping[str, Any]], offer: Offer) -> dict[str, Any]:
    """See ChatRequest.template_options. Raises InvalidRequest."""
    continued = fields.continue_final_message is True
    if continued:
        _check_continued(fields, messages)
    options: dict[str, Any] = {"add_generation_prompt": not continued and fields.add_generation_prompt is not False}
    if continued:
        options["continue_final_message"] = True
    if offer.for_template:
        options["tools"] = offer.for_template
    if fields.documents:
        options["documents"] = fields.documents
    given = fields.chat_template_kwargs or {}
    for name in _OURS:
        if name in given:
            where = f"chat_template_kwargs.{name}"
            raise InvalidRequest(f"'{where}' is refused: it is not an option of a template", param=where)
    variables = {**effort_options(fields.reasoning_effort), **given}
    if variables:
        options["chat_template_kwargs"] = variables
    return options


def effort_options(effort: str | None) -> dict[str, Any]:
    """`reasoning_effort` as templates know it, and its value `none` as those do that only know on and off.

    A template that knows none of these names does what it always does.
    """
    if effort is None:
        return {}
    return {"reasoning_effort": effort, **({"enable_thinking": False, "thinking": False} if effort == "none" else {})}


def _check_continued(fields: ChatFields, messages: Sequence[Mapping[str, Any]]) -> None:
    name = "continue_final_message"
    if fields.add_generation_prompt is True:
        raise InvalidRequest(
            f"'{name}' and 'add_generation_prompt' are both true, but an answer cannot go on with the last message and "
            "begin anew; give one only",
            param=name,
        )
    last = messages[-1]
    if last["role"] != "assistant" or "tool_calls" in last or not last["content"]:
        raise InvalidRequest(
            f"'{name}' is true, and the last message is none that can go on; it must be of the role assistant, with "
            "content and without tool calls",
            param=name,
        )
