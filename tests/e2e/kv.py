"""Conversations, and what a frontend believes that each engine holds of them."""

from __future__ import annotations

from typing import Any

from tests.e2e.support import WITHIN, Answer, Engine, Front, ask
from tests.support import until

Page = dict[str, Any]


class Talk:
    """A conversation that grows turn by turn. Different topics share no block."""

    def __init__(self, topic: str, words: int = 60) -> None:
        text = " ".join(f"{topic} {number}" for number in range(words))
        self.messages: list[dict[str, str]] = [{"role": "user", "content": text}]

    def body(self, **more: Any) -> dict[str, Any]:
        """The next request."""
        return {
            "model": "mock",
            "messages": list(self.messages),
            "max_tokens": 8,
            "ignore_eos": True,
            **more,
        }

    def turn(self, front: Front, **more: Any) -> Answer:
        """Ask, and go on from the answer."""
        answer = ask(front, self.body(**more))
        assert answer.status == 200, f"{answer}\n{front.child.output[-3000:]}"
        assert answer.error is None
        self.messages.append({"role": "assistant", "content": answer.text})
        self.messages.append({"role": "user", "content": "go on"})
        return answer


def cached(answer: Answer) -> int:
    """Tokens of the prompt that the engine says it had."""
    return int(answer.body["usage"]["prompt_tokens_details"]["cached_tokens"])


def explained(front: Front, talk: Talk) -> Page:
    answer = ask(front, talk.body(), path="/explain")
    assert answer.status == 200, answer
    page = answer.body
    assert isinstance(page, dict)
    return page


def held(front: Front, talk: Talk) -> dict[str, int]:
    """Tokens of its next prompt that each engine is believed to hold, by the address of those that may get it."""
    urls = {row["id"]: row["url"] for row in front.page()["engines"]}
    found: dict[str, int] = {}
    for part in explained(front, talk)["candidates"]:
        url = urls[part["engine_id"]]
        found[url] = max(found.get(url, 0), part["held"])
    return found


def ranks(front: Front, engine: Engine) -> list[Page]:
    """What is known of the caches of an engine's newest incarnation."""
    row = front.engine(engine)
    return [] if row is None else row["kv"] or []


def wait_kv(front: Front, *engines: Engine, **wanted: Any) -> Page:
    """Wait until each rank of these engines shows this; returns the last of them."""

    def as_wanted() -> bool:
        pages = [ranks(front, engine) for engine in engines]
        return all(pages) and all(
            rank[name] == value for page in pages for rank in page for name, value in wanted.items()
        )

    try:
        until(as_wanted, within=WITHIN)
    except AssertionError as error:
        seen = "\n".join(str(rank) for engine in engines for rank in ranks(front, engine))
        raise AssertionError(f"not {wanted} within {WITHIN} s\n{seen}\n{front.child.output[-3000:]}") from error
    return ranks(front, engines[-1])[-1]


def wait_held(front: Front, engine: Engine, talk: Talk, least: int = 1) -> int:
    """Wait until an engine is believed to hold so many tokens of a conversation's next prompt."""
    until(
        lambda: held(front, talk).get(engine.url, 0) >= least, within=WITHIN, saying=f"{held(front, talk)} {engine.url}"
    )
    return held(front, talk)[engine.url]


def heard(front: Front, engine: Engine) -> int:
    """Batches of events that were taken in from all its ranks."""
    return sum(rank["batches"] for rank in ranks(front, engine))
