"""Where templates are compiled: a sandbox with the helpers that templates in use rely on."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from enginehouse.adapters.tokenizer.errors import TokenizerError


class Refused(TemplateError):
    """The template called raise_exception."""


class _Generation(Extension):
    """`{% generation %}` marks what the model said, for training. For us only its content matters."""

    tags = {"generation"}  # noqa: RUF012  (an attribute of the base class)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _raise_exception(message: Any) -> NoReturn:
    raise Refused(str(message))


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


def compiled(source: str) -> Template:
    """Raises TokenizerError."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except (TemplateError, RecursionError) as error:
        line = f" at line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
        raise TokenizerError(f"the chat template cannot be compiled{line}: {error}") from error
