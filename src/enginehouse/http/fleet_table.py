"""The `/engines` page as a table for a terminal: what is served, every engine, every feed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Page = Mapping[str, Any]


class NotAPage(ValueError):
    """This is something else than an `/engines` page."""


def render(page: Any) -> list[str]:
    """The page in lines: what is served, the engines, the feeds. Raises NotAPage."""
    try:
        return [printable(line) for line in _lines(page)]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NotAPage(str(error)) from error


def printable(text: str) -> str:
    """The text with what a terminal would obey, or could not show, written as an escape: engines name themselves."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _lines(page: Page) -> Iterator[str]:
    model = page["model"]["model"] if page["model"] else "no model yet"
    state = "ready" if page["ready"] else "not ready: " + "; ".join(page["reasons"])
    yield f"{model}, {page['topology']['name']}, {page['policy']}, {page['requests_in_flight']} in flight, {state}"
    yield ""
    if page["engines"]:
        titles = ("NAME", "STATE", "ROLE", "STREAMS", "SINCE", "NEXT", "REASON")
        yield from table(titles, (engine_row(engine) for engine in page["engines"]))
    else:
        yield "no engines"
    if page["feeds"]:
        yield ""
        yield from table(("FEED", "STATE", "AGE", "LISTINGS", "NEXT", "ERROR"), map(feed_row, page["feeds"]))


def engine_row(engine: Page) -> tuple[str, ...]:
    """One engine in cells. NEXT is the next thing that happens by itself: a try, the end of a drain or of a respite."""
    coming = (
        ("try in ", engine["next_try_seconds"]),
        ("cut in ", engine["drain_left_seconds"]),
        ("kept for ", engine["kept_for_seconds"]),
    )
    return (
        engine["name"],
        engine["state"],
        engine["role"] or "-",
        str(engine["streams"]),
        duration(engine["state_seconds"]),
        next((words + duration(seconds) for words, seconds in coming if seconds is not None), "-"),
        engine["reason"] or "",
    )


def feed_row(feed: Page) -> tuple[str, ...]:
    """One feed in cells."""
    return (
        feed["name"],
        feed["state"] or ("synced" if feed["synced"] else "not synced"),
        duration(feed["age_seconds"]) if feed["age_seconds"] is not None else "never",
        str(feed["listings"]),
        f"in {duration(feed['next_try_seconds'])}" if feed["next_try_seconds"] is not None else "-",
        feed["error"] or "",
    )


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Aligned columns; the last one may be as long as it likes."""
    lines = [titles, *([printable(" ".join(cell.split())) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def duration(seconds: float) -> str:
    """A duration that is read at a glance: 0.4s, 12s, 3m05s, 2h07m, 4d06h."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
