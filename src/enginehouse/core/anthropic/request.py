"""A body of `/v1/messages`, read: the request that it makes, and how its answer is told."""

from __future__ import annotations

from dataclasses import dataclass

from enginehouse.core.openai.requests import ChatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequest(ChatRequest):
    """A chat request by another way in."""

    omits_thinking: bool = False
    """Blocks of thinking come without its text, which their signature holds packed."""
