"""A model's chat template: compiled once, rendered in a sandbox, with the helpers that templates in use rely on.

Templates come with the model, never from a client. What goes wrong while rendering is the messages' fault as far as a
client can see; only the words that a template itself raises are passed on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import structlog
from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from enginehouse.adapters.tokenizer.content import read_json, special_tokens
from enginehouse.adapters.tokenizer.errors import TokenizerError
from enginehouse.core.openai.refusals import printable
from enginehouse.domain.errors import InvalidRequest

log = structlog.get_logger("enginehouse.tokenizer")

_REASONING: Final = ("reasoning_content", "reasoning", "thinking")
"""What earlier answers thought: clients and templates disagree about its name, so each of them gets to see it."""
_PROBE: Final = "b7e1probe"


class _Refused(TemplateError):
    """The template called raise_exception."""


class _Generation(Extension):
    """`{% generation %}` marks what the model said, for training. For us only its content matters."""

    tags = {"generation"}  # noqa: RUF012  (an attribute of the base class)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _raise_exception(message: Any) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """Messages to prompt text."""

    def __init__(self, source: str, named_tokens: Mapping[str, Any]) -> None:
        """Raises TokenizerError for a template that cannot be compiled."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            line = f" at line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
            raise TokenizerError(f"the chat template cannot be compiled{line}: {error}") from error
        self.source = source
        self._named_tokens = dict(named_tokens)
        self._knows_developer = "developer" in source
        self._wants_parts = self._probe_parts()

    def render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """The prompt. options: `add_generation_prompt` and `chat_template_kwargs`. Raises InvalidRequest."""
        prepared = [self._prepared(message) for message in messages]
        try:
            return self._render(
                prepared, options.get("add_generation_prompt", True), options.get("chat_template_kwargs") or {}
            )
        except _Refused as error:
            words = printable(error.message or "", 300)  # a template may quote what it was given
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {words}", param="messages"
            ) from None
        except RecursionError:
            raise InvalidRequest("'messages' are nested too deeply for the chat template", param="messages") from None
        except Exception as error:  # whatever a template can do wrong, with messages that it was not written for
            log.info("chat template failed", error=type(error).__name__)
            raise InvalidRequest(
                "the model's chat template cannot render these messages; check roles, their order and 'content'",
                param="messages",
            ) from None

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool, extra: Mapping[str, Any]) -> str:
        variables = {
            "tools": None,
            "documents": None,
            **extra,
            **self._named_tokens,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._template.render(variables)

    def _prepared(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Content as this template reads it; `developer` is what newer clients call the system."""
        prepared = dict(message)
        content = prepared["content"]
        if isinstance(content, list) and not self._wants_parts:
            prepared["content"] = "\n".join([part["text"] for part in content])
        elif isinstance(content, str) and self._wants_parts:
            prepared["content"] = [{"type": "text", "text": content}]
        if prepared["role"] == "developer" and not self._knows_developer:
            prepared["role"] = "system"
        if reasoning := next((prepared[name] for name in _REASONING if prepared.get(name)), None):
            prepared.update(dict.fromkeys(_REASONING, reasoning))
        return prepared

    def _probe_parts(self) -> bool:
        """Whether it loses content that is a string and shows content that is a list of parts."""
        return not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])

    def _shows(self, content: Any) -> bool:
        try:
            return _PROBE in self._render([{"role": "user", "content": content}], True, {})
        except Exception:  # a template may insist on more than one message; then it gets strings
            return False


def find_template(files: Mapping[str, bytes]) -> ChatTemplate | None:
    """The template of a model's files, None if there is none. Raises TokenizerError for a broken one."""
    source = _source(files)
    return None if source is None else ChatTemplate(source, special_tokens(files))


def _source(files: Mapping[str, bytes]) -> str | None:
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode(errors="replace")
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = read_json(files, name).get("chat_template")
        if isinstance(found, list):  # named ones: {"name": "default", "template": "..."}
            named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
            found = named.get("default") or next(iter(named.values()), None)
        if isinstance(found, str):
            return found
    return None
