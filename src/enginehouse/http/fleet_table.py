"""The `/engines` page as a table for a terminal: what is served, every engine, every feed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    tool, reasoning = ((page["model"] or {}).get(name) for name in ("tool_parser", "reasoning_parser"))
    if tool and reasoning:
        yield f"parsers: tool {_parser(tool)}, reasoning {_parser(reasoning)}"
    index, pools = page.get("kv_index"), page.get("pools")
    kv = ("KV",) if index else ()
    if pools:
        yield from _pools(page, pools, kv)
    else:
        yield ""
        if page["engines"]:
            yield from _engines(page["engines"], "NAME", "STATE", "ROLE", "STREAMS", "SINCE", "NEXT", *kv, "REASON")
        else:
            yield "no engines"
    if index:
        used, most = index["blocks"], index["limit_blocks"]
        memory = index["memory_bytes"] / 1e6
        yield ""
        yield f"KV index: {used} of {most} blocks, {memory:.1f} MB, {index['evicted_blocks']} evicted"
        notes = [note for engine in page["engines"] for note in kv_notes(engine)]
        if notes:
            yield ""
            yield from table(("NAME", "RANK", "KV", "WHY"), notes)
    if page["feeds"]:
        yield ""
        yield from table(("FEED", "STATE", "AGE", "LISTINGS", "NEXT", "ERROR"), map(feed_row, page["feeds"]))


def _parser(parser: Page) -> str:
    name = parser["name"] or "none"
    return f"{name} (by {parser['by']})" if parser["by"] else name


def _pools(page: Page, pools: Page, kv: Sequence[str]) -> Iterator[str]:
    """Each pool by itself: how many serve, what that means for requests, and its engines.

    Their part in pairs is told instead of their role.
    """
    most = pools["max_handovers_per_prefill"]
    yield (
        f"{pools['pairs_in_flight']} pairs in flight, {pools['handovers_under_way']} hand-overs under way and"
        f" {pools['handovers_waiting']} waiting ({f'at most {most}' if most else 'no limit'} per prefill rank)"
    )
    serving, prefill = pools["serving"]["engines"], pools["prefill"]
    heads = {
        "prefill": f"{prefill['engines']} serve"
        + (f"; {prefill['missing']}: {prefill['then']}" if prefill["missing"] else ""),
        "serving": f"{serving} serve" if serving else "no decode engine serves",
        None: "role not known yet",
    }
    group = ("GROUP",) if any(engine["group"] for engine in page["engines"]) else ()
    for pool, head in heads.items():
        engines = [engine for engine in page["engines"] if engine["pool"] == pool]
        if not engines and pool is None:
            continue
        yield ""
        yield f"{pool} pool: {head}" if pool else f"{head}:"
        if engines:
            handovers = ("HAND-OVERS",) if pool == "prefill" else ()
            yield from _engines(
                engines, "NAME", "STATE", "PAIRS", *handovers, *group, "STREAMS", "SINCE", "NEXT", *kv, "REASON"
            )


def _engines(engines: Iterable[Page], *titles: str) -> Iterator[str]:
    return table(titles, ([_CELLS[title](engine) for title in titles] for engine in engines))


def _next(engine: Page) -> str:
    """The next thing that happens by itself: a try, the end of a drain or of a respite."""
    coming = (
        ("try in ", engine["next_try_seconds"]),
        ("cut in ", engine["drain_left_seconds"]),
        ("kept for ", engine["kept_for_seconds"]),
    )
    return next((words + duration(seconds) for words, seconds in coming if seconds is not None), "-")


def kv_cell(ranks: Sequence[Page]) -> str:
    """The ranks of one engine in a few words: `synced 1200`, `approximate`, `synced 5100, 7 of 8`."""
    if not ranks:
        return "-"
    by_events = [rank for rank in ranks if rank["policy"] == "events"]
    if not by_events:
        return "approximate"
    trusts = sorted({str(rank["trust"]) for rank in by_events})
    told = f"{'/'.join(trusts)} {sum(rank['blocks'] for rank in by_events)}"
    return told if len(by_events) == len(ranks) else f"{told}, {len(by_events)} of {len(ranks)}"


_CELLS: Mapping[str, Callable[[Page], str]] = {
    "NAME": lambda engine: engine["name"],
    "STATE": lambda engine: engine["state"],
    "ROLE": lambda engine: engine["role"] or "-",
    "PAIRS": lambda engine: str(engine["pairs"]),
    "HAND-OVERS": lambda engine: str(engine["handovers"]),
    "GROUP": lambda engine: engine["group"] or "-",
    "STREAMS": lambda engine: str(engine["streams"]),
    "SINCE": lambda engine: duration(engine["state_seconds"]),
    "NEXT": _next,
    "KV": lambda engine: kv_cell(engine["kv"] or ()),
    "REASON": lambda engine: engine["reason"] or "",
}
"""What stands of an engine in each column."""


def kv_notes(engine: Page) -> Iterator[tuple[str, ...]]:
    """For each rank what is worth knowing: why its events do not count, why they may not tell all, what is odd."""
    for rank in engine["kv"] or ():
        why = []
        if rank["policy"] != "events":
            why.append(str(rank["policy_reason"]))
        elif rank["trust_reason"]:
            why.append(str(rank["trust_reason"]))
        if rank["block_sizes_disagree"]:
            why.append(f"its events come in blocks of {rank['block_size']}, which is not what it told")
        if rank["misdirected"]:
            why.append(f"{rank['misdirected']} batches name another rank: are the ports right?")
        if why:
            yield engine["name"], str(rank["rank"]), str(rank["trust"]), "; ".join(why)


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
