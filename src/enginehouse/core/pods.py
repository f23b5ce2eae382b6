"""Decides what one pod stands for: which engines, where, and whether they may serve.

Does not know how pods are listed or watched. Never raises: a pod that cannot be read is one engine that may not serve,
with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from enginehouse.core.pod_ports import Ports, read_ports
from enginehouse.core.pod_rules import PodRules, Refused
from enginehouse.core.pod_shape import ContainerStatus, PodShape, Reference
from enginehouse.domain.engine import InvalidTarget, Role, Target
from enginehouse.domain.feed import PodRef, Wanted


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod as the watch remembers it."""

    owner: str
    """The pod's uid."""
    version: str
    """The object's resourceVersion (opaque); empty if it has none."""
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """What a pod's engines are to others, as its labels and its selector say."""

    role: Role | None
    group: str | None = None


class _Named(msgspec.Struct):
    metadata: Reference = Reference()


def read_record(raw: bytes | msgspec.Raw, rules: PodRules) -> PodRecord:
    """Read a pod's JSON into what the watch remembers of it."""
    meta, wanted = _read(raw, rules)
    return PodRecord(_owner(meta), meta.resource_version, wanted)


def read_pod(raw: bytes | msgspec.Raw, rules: PodRules) -> tuple[Wanted, ...]:
    """Return the engines in a pod, given its JSON: at least one, so that every matched pod can be shown."""
    return _read(raw, rules)[1]


def _read(raw: bytes | msgspec.Raw, rules: PodRules) -> tuple[Reference, tuple[Wanted, ...]]:
    try:
        pod = msgspec.json.decode(raw, type=PodShape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        meta = _reference(raw)
        return meta, _refusal(meta, f"unreadable pod: {error}")
    meta = pod.metadata
    if not meta.uid or not meta.name:
        return meta, _refusal(meta, "unreadable pod: no uid or no name")
    ports, place = read_ports(pod, rules), _place(pod, rules)
    for found in (ports, place):
        if isinstance(found, Refused):
            return meta, _refusal(meta, found.reason)
    assert not isinstance(ports, Refused)
    assert not isinstance(place, Refused)
    return meta, tuple(_engine(pod, each, place, rules) for each in ports)


def _place(pod: PodShape, rules: PodRules) -> _Place | Refused:
    labels = pod.metadata.labels or {}
    role, label = rules.role, labels.get(rules.role_label)
    if label is not None:
        where = f"label {rules.role_label}={label!r}"
        if label not in list(Role):
            return Refused(f"{where}: not one of {', '.join(Role)}")
        if role not in (None, label):
            return Refused(f"{where}: but the pods of this selector are {role} engines")
        role = Role(label)
    if rules.pair_by is None:
        return _Place(role)
    group = labels.get(rules.pair_by)
    return _Place(role, group) if group else Refused(f"no label {rules.pair_by}, by which engines are to be paired")


def _engine(pod: PodShape, ports: Ports, place: _Place, rules: PodRules) -> Wanted:
    meta = pod.metadata
    address, port = pod.status.address, ports.grpc
    reason = _why_not(pod)
    target: Target | None = None
    if address:
        try:
            target = Target(
                address,
                port,
                rules.tls,
                place.role,
                rules.protocol,
                ports.kv_events,
                ports.kv_replay,
                ports.bootstrap_host,
                ports.bootstrap,
                place.group,
            )
        except InvalidTarget as error:
            reason = f"unusable address: {error}"
    return Wanted(
        engine_id=f"{meta.uid}:{port}",
        owner=_owner(meta),
        name=f"{meta.namespace}/{meta.name}:{port}",
        target=target,
        generation=_generation(pod, ports, place),
        eligible=not reason,
        reason=reason,
        pod=PodRef(meta.namespace, meta.name, meta.uid),
    )


def _refusal(meta: Reference, reason: str) -> tuple[Wanted, ...]:
    name = f"{meta.namespace}/{meta.name or '(no name)'}"
    owner = _owner(meta)
    return (
        Wanted(
            engine_id=owner,
            owner=owner,
            name=name,
            target=None,
            generation=owner,
            eligible=False,
            reason=reason,
            pod=PodRef(meta.namespace, meta.name, meta.uid),
        ),
    )


def _owner(meta: Reference) -> str:
    return meta.uid or f"{meta.namespace}/{meta.name}"


def _reference(raw: bytes | msgspec.Raw) -> Reference:
    """Return who the pod is, also where the rest of it is malformed."""
    try:
        return msgspec.json.decode(raw, type=_Named).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Reference()


def _why_not(pod: PodShape) -> str:
    """Return why the pod's engines may not serve; empty when they may."""
    status = pod.status
    if pod.metadata.deletion_timestamp:
        return "terminating"
    if status.phase != "Running":
        detail = status.reason or _waiting(pod)
        return f"phase {status.phase or 'not known yet'}" + (f" ({detail})" if detail else "")
    if not status.address:
        return "no IP yet"
    ready = next((c for c in status.conditions or () if c.type == "Ready"), None)
    if ready is None:
        return "not ready: no Ready condition yet"
    if ready.status != "True":
        detail = _waiting(pod) or ready.message or ready.reason or f"Ready is {ready.status}"
        return f"not ready: {detail}"
    return ""


def _waiting(pod: PodShape) -> str:
    """Return the first container that waits, and for what (CrashLoopBackOff, ImagePullBackOff, ...)."""
    for container in _all_statuses(pod):
        if container.state and container.state.waiting and container.state.waiting.reason:
            return f"{container.name}: {container.state.waiting.reason}"
    return ""


def _all_statuses(pod: PodShape) -> tuple[ContainerStatus, ...]:
    return (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))


def _generation(pod: PodShape, ports: Ports, place: _Place) -> str:
    """Return what changes with the process or where it is reached, and with nothing else (readiness above all).

    Any container may be the engine, native sidecars included, so each one's restart counts. Plain init containers do
    not: they end before the engine starts, and when they run again every other container restarts too.
    """
    sidecars = {c.name for c in pod.spec.init_containers or () if c.restart_policy == "Always"}
    running = [c for c in pod.status.init_container_statuses or () if c.name in sidecars]
    running += pod.status.container_statuses or ()
    lives = ",".join(sorted(f"{c.name}#{c.restart_count}#{c.container_id or ''}" for c in running))
    parts = [pod.metadata.uid, pod.status.address, str(ports.grpc), place.role or "-", lives]
    if ports.kv_events is not None:
        parts.append(f"kv{ports.kv_events}:{ports.kv_replay or '-'}")
    if ports.bootstrap is not None or ports.bootstrap_host is not None:
        parts.append(f"met{ports.bootstrap_host or '-'}:{ports.bootstrap or '-'}")
    if place.group is not None:
        parts.append(f"group {place.group}")
    return "/".join(parts)
