"""A client of the demo's own frontend, from outside: HTTP on a socket, as anybody would."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = {"content-type": "application/json"}


@dataclass
class Answer:
    """What came of one streamed chat request."""

    text: str = ""
    finish: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """As the engine reports them."""
    decision: dict[str, Any] = field(default_factory=dict)
    """What the frontend tells of its choice, where it was asked."""


@dataclass(frozen=True)
class Client:
    """Where the frontend listens."""

    host: str
    port: int

    def chat(
        self,
        body: Mapping[str, Any],
        say: Callable[[str], None] = lambda text: None,
        headers: Mapping[str, str] = JSON,
    ) -> Answer:
        """Stream one answer. Raises RuntimeError for anything but success."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        found = Answer()
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), dict(headers))
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"HTTP {answer.status}: {answer.read().decode()}")
            found.decision = json.loads(answer.getheader("x-enginehouse-decision", "{}"))
            for line in answer:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    _take(json.loads(line.removeprefix(b"data: ")), found, say)
            return found
        finally:
            connection.close()

    def page(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON at a path; with a body it is posted."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), JSON)
            return json.load(connection.getresponse())
        finally:
            connection.close()


def _take(event: dict[str, Any], found: Answer, say: Callable[[str], None]) -> None:
    if "error" in event:
        raise RuntimeError(event["error"]["message"])
    if usage := event.get("usage"):
        found.prompt_tokens = usage["prompt_tokens"]
        found.completion_tokens = usage["completion_tokens"]
        found.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    for choice in event["choices"]:
        found.finish = choice["finish_reason"] or found.finish
        if text := choice["delta"].get("content"):
            found.text += text
            say(text)
