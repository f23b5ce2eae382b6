"""What a client asked for, read and checked: no default of a model or engine is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginehouse.domain.request import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What chat and completions have in common."""

    model: str
    stream: bool = False
    include_usage: bool = False
    """Send a last chunk with the usage; a whole answer always has it."""
    max_tokens: int | None = None
    """None: as many as the context has room for."""
    max_tokens_param: str = "max_tokens"
    """The field that the client used for it, to name in errors."""
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    user: str | None = None
    prompt_cache_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(_Asked):
    """A body of `/v1/chat/completions`."""

    messages: tuple[Mapping[str, Any], ...]
    """As the template takes them: no nulls, arguments of tool calls as objects, content a string or text parts."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """`add_generation_prompt` and `chat_template_kwargs`, as `Tokenizer.encode_chat` wants them."""

    @property
    def prompt_param(self) -> str:
        """The field that makes the prompt, to name in errors."""
        return "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(_Asked):
    """A body of `/v1/completions`."""

    prompt: str | tuple[int, ...]
    add_special_tokens: bool = True

    @property
    def prompt_param(self) -> str:
        """The field that makes the prompt, to name in errors."""
        return "prompt"


Request = ChatRequest | CompletionRequest
