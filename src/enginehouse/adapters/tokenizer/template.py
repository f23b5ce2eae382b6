"""A model's chat template: compiled once, rendered as the models' own tools do it.

Templates come with the model or its operator, never from a client. What goes wrong while rendering is the messages'
fault as far as a client can see; only the words that a template itself raises are passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from jinja2 import UndefinedError

from enginehouse.adapters.tokenizer.environment import Refused, compiled
from enginehouse.adapters.tokenizer.forms import Forms
from enginehouse.core.openai.refusals import printable
from enginehouse.domain.errors import InvalidRequest

log = structlog.get_logger("enginehouse.tokenizer")

_NAMED_TOKEN: Final = re.compile(r"'(\w+_token)' is undefined")

_END: Final = "b7e1continues "
"""Put behind the text that is to go on, to be found again in what the template makes of it. Whether the space at its
end survives tells whether the template trims."""


class ChatTemplate:
    """Messages to prompt text."""

    def __init__(self, source: str, named_tokens: Mapping[str, Any]) -> None:
        """Raises TokenizerError for a template that cannot be compiled."""
        self.source = source
        self._template = compiled(source)
        self._named_tokens = dict(named_tokens)
        self._forms = Forms(lambda messages, tools: self._render(messages, {"tools": tools}), source)

    def render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """The prompt; options as for ports.Tokenizer.encode_chat. Raises InvalidRequest."""
        prepared = [self._forms.prepared(message) for message in messages]
        if not options.get("continue_final_message"):
            return self._rendered(prepared, options)
        last = _mark_end(prepared[-1])
        text = self._rendered(prepared, options)
        at = text.rfind(_END.strip())
        if at < 0 or last.strip() not in text:
            raise _cannot_go_on("the model's chat template leaves something of it out")
        return text[:at] if text.startswith(_END, at) else text[:at].rstrip()

    def _rendered(self, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
        try:
            return self._render(messages, options)
        except Refused as error:
            words = printable(error.message or "", 300)  # a template may quote what it was given
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {words}", param="messages"
            ) from None
        except RecursionError:
            raise InvalidRequest("'messages' are nested too deeply for the chat template", param="messages") from None
        except UndefinedError as error:
            if missing := _NAMED_TOKEN.fullmatch(error.message or ""):
                raise InvalidRequest(
                    f"the model's chat template needs '{missing[1]}', which the files of its tokenizer do not name; "
                    "that is for the operator of this server to mend",
                    param="messages",
                ) from None
            raise _cannot_render(error) from None
        except Exception as error:  # whatever a template can do wrong, with messages that it was not written for
            raise _cannot_render(error) from None

    def _render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        tools, documents = options.get("tools"), options.get("documents")
        variables = {
            **(options.get("chat_template_kwargs") or {}),
            **self._named_tokens,
            "messages": messages,
            "tools": list(tools) if tools else None,
            "documents": list(documents) if documents else None,
            "add_generation_prompt": options.get("add_generation_prompt", True),
        }
        return self._template.render(variables)


def _mark_end(message: dict[str, Any]) -> str:
    """Mark where the text of a message ends, and return that text."""
    match message.get("content"):
        case str() as text:
            message["content"] = text + _END
            return text
        case [*before, {"text": str() as text} as last]:
            message["content"] = [*before, {**last, "text": text + _END}]
            return text
    raise _cannot_go_on("it has no text")


def _cannot_render(error: Exception) -> InvalidRequest:
    log.info("chat template failed", error=type(error).__name__)
    return InvalidRequest(
        "the model's chat template cannot render these messages; check roles, their order and 'content'",
        param="messages",
    )


def _cannot_go_on(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the answer is to go on with the last message, and that cannot be: {why}", param="continue_final_message"
    )
