"""The part of a pod's JSON that decides anything, as types. Everything else is skipped while decoding.

Kubernetes writes null for an empty list in places, hence the `| None` on every collection.
"""

from __future__ import annotations

import msgspec


class Reference(msgspec.Struct, frozen=True, rename="camel"):
    """Who a pod is."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Metadata(Reference, frozen=True, rename="camel"):
    """metadata."""

    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class Container(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of spec.initContainers; with restartPolicy Always it is a native sidecar."""

    name: str
    restart_policy: str | None = None


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    """spec."""

    init_containers: list[Container] | None = None


class Waiting(msgspec.Struct, frozen=True, rename="camel"):
    """state.waiting of a container."""

    reason: str | None = None


class ContainerState(msgspec.Struct, frozen=True, rename="camel"):
    """state of a container."""

    waiting: Waiting | None = None


class ContainerStatus(
    msgspec.Struct, frozen=True, rename={"container_id": "containerID", "restart_count": "restartCount"}
):
    """An entry of status.containerStatuses or status.initContainerStatuses."""

    name: str
    restart_count: int = 0
    container_id: str | None = None
    state: ContainerState | None = None


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of status.conditions."""

    type: str
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PodAddress(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of status.podIPs."""

    ip: str = ""


class Status(
    msgspec.Struct,
    frozen=True,
    rename={
        "pod_ip": "podIP",
        "pod_ips": "podIPs",
        "container_statuses": "containerStatuses",
        "init_container_statuses": "initContainerStatuses",
    },
):
    """status."""

    phase: str | None = None
    reason: str | None = None
    pod_ip: str | None = None
    pod_ips: list[PodAddress] | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None

    @property
    def address(self) -> str:
        """The pod's first address: on dual-stack clusters the cluster's preferred family. IPv6 has no brackets."""
        return self.pod_ip or next((entry.ip for entry in self.pod_ips or () if entry.ip), "")


class PodShape(msgspec.Struct, frozen=True):
    """A pod."""

    metadata: Metadata
    spec: Spec = Spec()
    status: Status = Status()
