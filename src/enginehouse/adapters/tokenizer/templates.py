"""All chat templates of a model: where its files keep them, and which of them a conversation is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from enginehouse.adapters.tokenizer.content import read_json, special_tokens
from enginehouse.adapters.tokenizer.errors import TokenizerError
from enginehouse.adapters.tokenizer.template import ChatTemplate
from enginehouse.core.tokenizer_files import TEMPLATES

_DEFAULT: Final = "default"
_FOR_TOOLS: Final = "tool_use"
_FOR_DOCUMENTS: Final = "rag"


class ChatTemplates:
    """By name: most models have one, some another one for tools or documents."""

    def __init__(self, sources: Mapping[str, str], named_tokens: Mapping[str, Any]) -> None:
        """sources: at least one. Raises TokenizerError for one that cannot be compiled."""
        self._named = {name: ChatTemplate(source, named_tokens) for name, source in sources.items()}
        self._default = self._named.get(_DEFAULT) or next(iter(self._named.values()))

    @property
    def source(self) -> str:
        """Of all of them."""
        return "\n".join(template.source for template in self._named.values())

    def render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """See ChatTemplate.render."""
        template = self._default
        if options.get("documents"):
            template = self._named.get(_FOR_DOCUMENTS, template)
        if options.get("tools"):
            template = self._named.get(_FOR_TOOLS, template)
        return template.render(messages, options)


def find_templates(files: Mapping[str, bytes]) -> ChatTemplates | None:
    """The templates of a model's files, None if there are none. Raises TokenizerError for a broken one."""
    sources = dict(_sources(files))
    return ChatTemplates(sources, special_tokens(files)) if sources else None


def with_template(files: Mapping[str, bytes], source: bytes) -> dict[str, bytes]:
    """The same files with this template and no other."""
    others = {name: content for name, content in files.items() if not name.startswith(f"{TEMPLATES}/")}
    return {**others, "chat_template.jinja": source}


def _sources(files: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """(name, source). What lies in a file of its own counts; else what other files hold."""
    own = {
        PurePosixPath(name).stem: content
        for name, content in files.items()
        if name.startswith(f"{TEMPLATES}/") and name.endswith(".jinja")
    }
    if "chat_template.jinja" in files:
        own[_DEFAULT] = files["chat_template.jinja"]
    if own:
        for name, content in own.items():
            try:
                yield name, content.decode()
            except UnicodeDecodeError as error:
                raise TokenizerError(f"the chat template {name!r} is not UTF-8") from error
        return
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = read_json(files, name).get("chat_template")
        if isinstance(found, str):
            yield _DEFAULT, found
        elif isinstance(found, list):  # {"name": "default", "template": "..."}
            for item in found:
                match item:
                    case {"name": str() as key, "template": str() as source}:
                        yield key, source
        elif isinstance(found, dict):
            yield from ((key, source) for key, source in found.items() if isinstance(source, str))
        if found:
            return
