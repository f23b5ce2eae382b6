"""Anthropic's `/v1/messages`: a body to the one internal request, and an answer to content blocks and events."""
