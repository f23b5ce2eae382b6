"""The scene for policy kv: a chat whose second turn goes to the engine that holds the first."""

from __future__ import annotations

import asyncio
from typing import Any

from enginehouse.demo.client import JSON, Answer, Client
from enginehouse.http.decision_table import render

RULES = "You tell what engines do. " + " ".join(
    f"Rule {number}: an engine that {what} is named by its address, and what it holds is counted in blocks."
    for number, what in enumerate(("joins", "serves", "drains", "leaves", "fails", "returns"), 1)
)
TURNS = ("Which rule speaks of an engine that drains?", "And which of one that returns?")
ASK = {**JSON, "x-enginehouse-debug": "explain"}


async def chat_scene(client: Client, model: str) -> None:
    """Both turns, and between them what each engine would cost."""
    first = _body(model, [{"role": "system", "content": RULES}, {"role": "user", "content": TURNS[0]}])
    answer = await asyncio.to_thread(client.chat, first, headers=ASK)
    chosen = _prefills(answer.decision)
    print(
        f"\nA chat begins: {answer.prompt_tokens} prompt tokens go to {chosen['engine']}, "
        f"which had {answer.cached_tokens} of them."
    )
    messages = [*first["messages"], {"role": "assistant", "content": answer.text}]
    second = _body(model, [*messages, {"role": "user", "content": TURNS[1]}])
    told = await _heard(client, second)
    print("Its second turn, as enginehouse explain tells it:\n")
    print("\n".join(f"    {line}".rstrip() for line in render(told)))
    _conclude(await asyncio.to_thread(client.chat, second, headers=ASK), answer)


def _conclude(answer: Answer, before: Answer) -> None:
    chosen = _prefills(answer.decision)
    where = "the same engine" if chosen["engine"] == _prefills(before.decision)["engine"] else "another engine"
    print(
        f"\nIt goes to {chosen['engine']}, {where}: {chosen['predicted_cached_tokens']} of {answer.prompt_tokens} "
        f"tokens predicted in its cache, {answer.cached_tokens} reported by it."
    )


async def _heard(client: Client, body: dict[str, Any]) -> Any:
    """What is explained of a request once the events of the turn before it have come: when it changes no more."""
    before = -1
    while True:
        told = await asyncio.to_thread(client.page, "/explain", body)
        now = _prefills(told)["predicted_cached_tokens"]
        if now == before and now > 0:
            return told
        before = now
        await asyncio.sleep(0.25)


def _prefills(told: dict[str, Any]) -> dict[str, Any]:
    """The choice of the engine that computes the prompt."""
    return told.get("prefill", told)  # type: ignore[no-any-return]


def _body(model: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "model": model,
        "messages": messages,
        "max_tokens": 24,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
