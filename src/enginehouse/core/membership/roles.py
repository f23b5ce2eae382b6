"""Decides a fleet's topology, once, and the role that an engine has in it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from enginehouse.domain.engine import Role


class Topology(StrEnum):
    """What kinds of engines work together. AUTO is a wish only; a decided fleet is one of the others."""

    AUTO = "auto"
    AGGREGATED = "aggregated"
    DISAGGREGATED = "disaggregated"


class RoleRefused(ValueError):
    """An engine has no place in this topology; the text says why."""


def decide_topology(reported: Role | None, hints: Iterable[Role | None]) -> tuple[Topology, str]:
    """The topology for `auto`, decided when the first engine may join; and why.

    reported: what that engine says or was said of it; hints: the operator's words on every engine known by then. The
    operator's word on any engine outweighs which engine happened to answer first.
    """
    for hint in hints:
        if hint in (Role.PREFILL, Role.DECODE):
            return Topology.DISAGGREGATED, f"an engine was given the role {hint}"
    if reported in (Role.PREFILL, Role.DECODE):
        return Topology.DISAGGREGATED, f"the first engine is a {reported} engine"
    if reported is Role.AGGREGATED:
        return Topology.AGGREGATED, "the first engine is an aggregated engine"
    return Topology.AGGREGATED, "no engine was given or reports another role"


def settle_role(hint: Role | None, reported: Role | None, topology: Topology) -> Role:
    """The engine's role in a decided topology. Raises RoleRefused."""
    if hint is not None and reported is not None and hint != reported:
        raise RoleRefused(f"role {hint} was asked for, but the engine reports {reported}")
    role = reported or hint
    if topology is Topology.DISAGGREGATED:
        if role is Role.AGGREGATED:
            raise RoleRefused("an aggregated engine has no place in a disaggregated fleet (topology is fixed at start)")
        return role or Role.DECODE
    if role in (Role.PREFILL, Role.DECODE):
        raise RoleRefused(f"a {role} engine has no place in an aggregated fleet (topology is fixed at start)")
    return Role.AGGREGATED
