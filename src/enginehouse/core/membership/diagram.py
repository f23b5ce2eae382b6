"""Decides how the table of moves is drawn for people: a Mermaid state diagram and a Markdown table."""

from __future__ import annotations

from enginehouse.core.membership.states import TABLE, Cause, State


def mermaid() -> str:
    """The diagram, one arrow for each pair of states with every cause that leads along it."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.WAITING}"]
    for state, row in TABLE.items():
        along: dict[State, list[Cause]] = {}
        for cause, targets in row.items():
            for to in targets:
                along.setdefault(to, []).append(cause)
        for to in State:
            if to is State.GONE and state is not State.DRAINING:
                continue  # these all mean: forgotten at once; the table has them
            if to in along and to is not state:
                lines.append(f"    {state} --> {to}: {', '.join(along[to])}")
    lines.append(f"    {State.GONE} --> [*]")
    return "\n".join(lines)


def table() -> str:
    """Each state, what may happen in it, and where that leads."""
    lines = ["| In state | when | goes to |", "|---|---|---|"]
    for state, row in TABLE.items():
        for cause, targets in row.items():
            to = " or ".join(str(target) for target in State if target in targets)
            lines.append(f"| {state} | {cause} | {to} |")
    return "\n".join(lines)


def fill(page: str) -> str:
    """The page with both parts between their markers brought up to date."""
    for name, text in (("diagram", f"```mermaid\n{mermaid()}\n```"), ("table", table())):
        begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page lacks the markers {begin} and {end}")
        page = f"{head}{begin}\n{text}\n{end}{tail}"
    return page
