"""The two pools of a fleet as `/engines` shows them, and each engine's part in pairs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from enginehouse.core.membership.states import State
from enginehouse.domain.engine import Role
from enginehouse.http.loads import Loads
from enginehouse.service.membership import EngineView
from enginehouse.service.pools_view import PoolsView


def of_pools(view: PoolsView, engines: Iterable[EngineView], loads: Loads) -> dict[str, Any]:
    """Who serves in each pool, what the prefill pool lacks, and how many requests are where between the two."""
    serving = [engine for engine in engines if engine.state is State.SERVING]
    prefill = [engine for engine in serving if engine.role is Role.PREFILL]
    return {
        "serving": {"engines": len(serving) - len(prefill)},
        "prefill": {"engines": len(prefill), "missing": view.missing, "then": view.then},
        "pairs_in_flight": sum(view.counts.in_flight.values()) // 2,
        "handovers_under_way": handovers(engines, loads),
        "handovers_waiting": view.counts.waiting,
        "max_handovers_per_prefill": view.settings.max_handovers_per_prefill,
    }


def of_engine(view: PoolsView, engine: EngineView, loads: Loads) -> dict[str, Any]:
    """Which pool it belongs to, as far as that is known, and how many pairs it is in."""
    prefills = engine.role is Role.PREFILL
    return {
        "pool": None if engine.role is None else "prefill" if prefills else "serving",
        "pairs": view.counts.in_flight.get((engine.engine_id, engine.incarnation), 0),
        "handovers": handovers((engine,), loads) if prefills else None,
    }


def handovers(engines: Iterable[EngineView], loads: Loads) -> int:
    """Prompts that prefill engines have at work or keep: a place is free again once the cache has passed.

    SGLang's has when its prefill leg ends, vLLM's when the decode engine's first token comes.
    """
    keys = {(engine.engine_id, engine.incarnation) for engine in engines if engine.role is Role.PREFILL}
    return sum(load.requests for key in keys for _, load in loads.get(key, ()))
