"""How requests are spread over two pools: when both are used, and how long one waits for the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PrefillMissing = Literal["wait", "decode", "fail"]

ENGINES_GIVE_UP = 300.0
"""Seconds that an engine of a pair waits for the other one, by the engines' own defaults."""


@dataclass(frozen=True)
class HandoverSettings:
    """Prefill and decode apart."""

    prefill_missing: PrefillMissing = "wait"
    """What becomes of a request when no prefill engine can take it: it may `wait` for one (prefill-wait), then 503; run
    on a `decode` engine alone; or `fail` with 503 at once. SGLang's decode engines cannot prefill: with only such
    engines `decode` is `fail`."""
    prefill_wait: float = 10.0
    """Seconds that a request waits for a prefill engine when there is none."""
    prefill_min_tokens: int = 0
    """Prompts of which some decode engine would have to compute fewer tokens than this run there alone: they are short,
    or its cache holds nearly all of them. 0: none do. Not for SGLang, whose decode engines cannot prefill."""
    max_handovers_per_prefill: int = 256
    """Most hand-overs under way from one prefill engine rank, caches that it keeps included; above it requests wait for
    one to end, at most as long as for a first token. 0: no limit."""
    handover_timeout: float = 120.0
    """Seconds from the dispatch to the decode engine, and on SGLang to both at once, to its first token. Above it both
    are told to stop and the request is tried on others. Below the 300 s after which engines give each other up."""
