"""An answer of `/explain` as a table for a terminal: the rule that decided, and every engine rank, best first.

Where prefill and decode are apart: one such table for each of the two engines, or why a decode engine works alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from enginehouse.http.fleet_table import NotAPage, printable, table

Told = Mapping[str, Any]

RULES = {
    "policy": "the policy weighs no costs",
    "only-one": "there is no other to take",
    "affinity": "the request's session belongs there",
    "best": "it costs least",
    "near-tie": "at random among those that cost about the least",
    "temperature": "at random, the cheaper the likelier",
}
"""For people: what each rule means."""

ALONE = {
    "short-prompt": "its prompt is shorter than --prefill-min-tokens",
    "mostly-cached": "fewer tokens than --prefill-min-tokens are not in its cache",
    "no-prefill-engine": "no prefill engine can take it, and --prefill-missing says decode",
    "prompt-logprobs": "log probabilities of a prompt only the engine knows that has computed all of it",
}
"""Why a decode engine does the whole request."""


def render(told: Any) -> list[str]:
    """The decision in lines. Raises NotAPage for anything else."""
    try:
        return [printable(line) for line in _lines(told)]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise NotAPage(str(error)) from error


def _lines(told: Told) -> Iterator[str]:
    if "alone" in told:
        yield f"a decode engine alone: {told['alone']} ({ALONE.get(told['alone'], 'for a reason unknown here')})"
        yield from _decision(told["decode"])
    elif "prefill" in told:
        yield "prefill:"
        yield from _decision(told["prefill"])
        yield ""
        yield "decode, of those that fit it:"
        yield from _decision(told["decode"], fetches=True)
    else:
        yield from _decision(told)


def _decision(told: Told, *, fetches: bool = False) -> Iterator[str]:
    """fetches: what the engine does not hold is passed to it, not computed."""
    chosen = told["chosen"]
    where = chosen["engine"] + ("" if chosen["rank"] is None else f" rank {chosen['rank']}")
    why = RULES.get(told["rule"], told["rule"])
    yield f"{where}, by policy {told['policy']} among {told['considered']}: {told['rule']} ({why})"
    yield f"{told['prompt_tokens']} prompt tokens, {told['predicted_cached_tokens']} of them predicted in its cache"
    yield ""
    ranks = sorted(told["candidates"], key=_order)
    weighed = any(one["cost"] is not None for one in ranks)
    titles: tuple[str, ...] = ("", "ENGINE", "RANK", "REQUESTS", "TOKENS", "QUEUED", "FULL")
    if weighed:
        missing = ("TO FETCH", "FETCH COST") if fetches else ("TO PREFILL", "PREFILL COST")
        titles = (*titles, "HELD", *missing, "QUEUE COST", "DECODE COST", "WAIT COST", "COST")
    yield from table(titles, (_row(one, weighed) for one in ranks))


def _order(one: Told) -> tuple[float, int, int]:
    """Best first: by cost where the policy weighs it, else by what is in flight."""
    return (0.0 if one["cost"] is None else float(one["cost"]), one["requests"], one["tokens"])


def _row(one: Told, weighed: bool) -> list[str]:
    cells = [
        "*" if one["chosen"] else "",
        one["engine"],
        "-" if one["rank"] is None else str(one["rank"]),
        str(one["requests"]),
        str(one["tokens"]),
        str(one["queued"]),
        "yes" if one["full"] else "no",
    ]
    if weighed:
        costs = ("prefill_cost", "queue_cost", "decode_cost", "wait_cost", "cost")
        cells += [str(one["held"]), str(one["prefill"]), *(f"{one[name]:.1f}" for name in costs)]
    return cells
