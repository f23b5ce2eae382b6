"""What a client asked for, read and checked: no default of a model or engine is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from enginehouse.core.output.pieces import Tool
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
    n: int = 1
    """Answers to each prompt."""
    keep_stop: bool = False
    """A stop string that ends the answer stays in it."""
    return_token_ids: bool = False
    constraint_param: str = "response_format"
    """The field that `sampling.constraint` comes of, to name in errors."""


class ToolChoiceMode(StrEnum):
    """What a client says of calling tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may call tools, must, or must call a certain one."""

    mode: ToolChoiceMode
    name: str | None = None
    """With NAMED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(_Asked):
    """A body of `/v1/chat/completions`."""

    messages: tuple[Mapping[str, Any], ...]
    """As the template takes them: no nulls, arguments of tool calls as objects, content a string or text parts."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """As `Tokenizer.encode_chat` wants them: `add_generation_prompt` always; `continue_final_message`, `tools`,
    `documents` and `chat_template_kwargs` where they were given."""
    tools: tuple[Tool, ...] = ()
    """What the model was offered and may call; none with tool_choice `none`."""
    tool_choice: ToolChoice = ToolChoice(ToolChoiceMode.AUTO)
    """With REQUIRED and NAMED the sampling is constrained, and core/openai/forced.py reads the answer."""
    parallel_tool_calls: bool = True
    separate_reasoning: bool = True
    """Thinking goes into a field of its own; else it stays in the content as the model wrote it."""

    @property
    def begun(self) -> str | None:
        """The text of the answer that is to go on; None: there is none, and a new one begins."""
        if not self.template_options.get("continue_final_message"):
            return None
        content = self.messages[-1]["content"]
        text = content if isinstance(content, str) else "".join([part["text"] for part in content])
        return text or None

    @property
    def prompt_param(self) -> str:
        """The field that makes the prompt, to name in errors."""
        return "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(_Asked):
    """A body of `/v1/completions`."""

    prompt: str | tuple[int, ...]
    """The first one."""
    more_prompts: tuple[str | tuple[int, ...], ...] = ()
    """Those after it: each is answered `n` times."""
    add_special_tokens: bool = True
    echo: bool = False
    """The prompt comes before each answer."""

    @property
    def prompt_param(self) -> str:
        """The field that makes the prompt, to name in errors."""
        return "prompt"


Request = ChatRequest | CompletionRequest
