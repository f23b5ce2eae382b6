"""Pods as the API server would show them, for tests that need no API server."""

from __future__ import annotations

from typing import Any


def pod(
    name: str = "w1",
    *,
    uid: str | None = None,
    ip: str | None = "10.1.0.1",
    ready: bool = True,
    phase: str = "Running",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    terminating: bool = False,
    restarts: int = 0,
    container_id: str | None = "containerd://a",
    version: str = "1",
    namespace: str = "default",
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{name}",
        "resourceVersion": version,
        "labels": labels or {},
        "annotations": annotations or {},
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:podIP": {}}}}],
    }
    if terminating:
        metadata["deletionTimestamp"] = "2026-11-30T12:00:00Z"
        metadata["deletionGracePeriodSeconds"] = 30
    container: dict[str, Any] = {"name": "engine", "ready": ready, "restartCount": restarts, "state": {"running": {}}}
    if container_id is not None:
        container["containerID"] = container_id
    status: dict[str, Any] = {
        "phase": phase,
        "conditions": [
            {"type": "Initialized", "status": "True"},
            {
                "type": "Ready",
                "status": "True" if ready else "False",
                "reason": None if ready else "ContainersNotReady",
            },
        ],
        "containerStatuses": [container],
    }
    if ip is not None:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    return {"metadata": metadata, "spec": {"containers": [{"name": "engine"}]}, "status": status}
