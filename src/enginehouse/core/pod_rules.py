"""What an operator may say of how the pods of a selector are to be read."""

from __future__ import annotations

from dataclasses import dataclass

from enginehouse.domain.engine import ProtocolName, Role


@dataclass(frozen=True, slots=True)
class PodRules:
    """How pods of one selector are to be read."""

    port: int | None = None
    """The pool's gRPC port, for pods without the annotation."""
    port_annotation: str = "nvidia.com/dynamo-engine-grpc-port"
    kv_events_port_annotation: str = "enginehouse.dev/kv-events-port"
    bootstrap_port_annotation: str = "sglang.ai/bootstrap-port"
    bootstrap_host_annotation: str = "enginehouse.dev/bootstrap-host"
    role_label: str = "enginehouse.dev/role"
    pair_by: str | None = None
    """Label whose value is the group of a pod's engines; None: they have none."""
    role: Role | None = None
    """The pool's role; None: let the pod's label say, else the engine."""
    protocol: ProtocolName | None = None
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """What cannot be read, and why, for people."""

    reason: str
