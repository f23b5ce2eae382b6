"""A body of `/v1/responses`, read: the request that it makes, and what its answer repeats of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginehouse.core.openai.requests import ChatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest(ChatRequest):
    """A chat request by another way in."""

    repeated: Mapping[str, Any] = field(default_factory=dict)
    """Members of the response object that say what was asked for."""
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of tools of namespaces: the name that the model has for one, to namespace and name."""
    seals: bool = False
    """Thinking comes packed too, for clients that send nothing else of it back."""

    @property
    def prompt_param(self) -> str:
        return "input"
