"""Decides what others get to see of a fleet: pure functions of its state."""

from __future__ import annotations

from dataclasses import dataclass

from enginehouse.core.membership.fleet import Entry, Fleet
from enginehouse.core.membership.roles import Topology
from enginehouse.core.membership.states import KEPT, State
from enginehouse.domain.engine import KvEventSource, Role


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """What routing and KV subscriptions need of one engine whose knowledge is kept (also while it may not serve)."""

    engine_id: str
    incarnation: int
    role: Role
    ranks: int
    first_rank: int
    block_size: int | None
    capacity_tokens: int | None
    """Tokens that the KV cache of one rank holds."""
    max_running: int | None
    kv_event_sources: tuple[KvEventSource, ...]
    returns: int = 0
    """Grows when it was out of reach and may be another process now, by all that it says of itself."""
    loras: tuple[str, ...] = ()
    """Adapters that it had loaded when it was last asked."""


def routable(fleet: Fleet) -> tuple[tuple[str, Entry], ...]:
    """Engine id and entry of every engine that may get new work, in the order of joining (of their numbers)."""
    found = [
        (engine_id, slot.current)
        for engine_id, slot in fleet.slots.items()
        if slot.current is not None and slot.current.state is State.SERVING
    ]
    found.sort(key=lambda item: item[1].incarnation)
    return tuple(found)


def runtime_configs(fleet: Fleet) -> tuple[RuntimeConfig, ...]:
    """Configuration of every engine that is a member, routable or not, in the order of their numbers."""
    configs = [
        RuntimeConfig(
            engine_id=engine_id,
            incarnation=entry.incarnation,
            role=entry.role,
            ranks=info.ranks,
            first_rank=info.first_rank,
            block_size=info.block_size,
            capacity_tokens=info.kv_capacity_tokens,
            max_running=info.max_running,
            kv_event_sources=info.kv_event_sources,
            returns=entry.returns,
            loras=info.loras,
        )
        for engine_id, slot in fleet.slots.items()
        if (entry := slot.current) is not None
        and entry.state in KEPT
        and (info := entry.info) is not None
        and entry.role is not None
    ]
    configs.sort(key=lambda config: config.incarnation)
    return tuple(configs)


def missing(fleet: Fleet, feeds: tuple[str, ...]) -> tuple[str, ...]:
    """What is still to come before the fleet can serve, for people; empty when nothing is."""
    lacks = [f"feed {name} has not said yet what there is" for name in feeds if name not in fleet.listed]
    roles = {entry.role for _, entry in routable(fleet)}
    if roles.isdisjoint({Role.AGGREGATED, Role.DECODE}):
        lacks.append(f"no {'decode' if fleet.topology is Topology.DISAGGREGATED else 'serving'} engine has joined")
    if fleet.topology is Topology.DISAGGREGATED and Role.PREFILL not in roles:
        lacks.append("no prefill engine has joined")
    return tuple(lacks)
