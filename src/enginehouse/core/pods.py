"""Decides what one pod stands for: which engines, where, and whether they may serve.

Does not know how pods are listed or watched. Never raises: a pod that cannot be read is one engine that may not serve,
with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from enginehouse.core.pod_shape import ContainerStatus, PodShape, Reference
from enginehouse.domain.engine import InvalidTarget, ProtocolName, Role, Target, port_number
from enginehouse.domain.feed import PodRef, Wanted


@dataclass(frozen=True, slots=True)
class PodRules:
    """How pods of one selector are to be read."""

    port: int | None = None
    """The pool's gRPC port, for pods without the annotation."""
    port_annotation: str = "nvidia.com/dynamo-engine-grpc-port"
    kv_events_port_annotation: str = "enginehouse.dev/kv-events-port"
    role: Role | None = None
    """The pool's role; None: let the engine say."""
    protocol: ProtocolName | None = None
    tls: bool = False


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod as the watch remembers it."""

    owner: str
    """The pod's uid."""
    version: str
    """The object's resourceVersion (opaque); empty if it has none."""
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class _Refused:
    reason: str


@dataclass(frozen=True, slots=True)
class _Ports:
    """Where one engine of a pod listens."""

    grpc: int
    kv_events: int | None = None
    kv_replay: int | None = None


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
    ports = _ports(pod, rules)
    if isinstance(ports, _Refused):
        return meta, _refusal(meta, ports.reason)
    return meta, tuple(_engine(pod, each, rules) for each in ports)


def _engine(pod: PodShape, ports: _Ports, rules: PodRules) -> Wanted:
    meta = pod.metadata
    address, port = pod.status.address, ports.grpc
    reason = _why_not(pod)
    target: Target | None = None
    if address:
        try:
            target = Target(address, port, rules.tls, rules.role, rules.protocol, ports.kv_events, ports.kv_replay)
        except InvalidTarget as error:
            reason = f"unusable address: {error}"
    return Wanted(
        engine_id=f"{meta.uid}:{port}",
        owner=_owner(meta),
        name=f"{meta.namespace}/{meta.name}:{port}",
        target=target,
        generation=_generation(pod, ports, rules),
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


def _ports(pod: PodShape, rules: PodRules) -> tuple[_Ports, ...] | _Refused:
    ports = _grpc_ports(pod, rules)
    if isinstance(ports, _Refused):
        return ports
    kv = _kv_ports(pod, rules, len(ports))
    if isinstance(kv, _Refused):
        return kv
    return tuple(_Ports(port, *events) for port, events in zip(ports, kv, strict=True))


def _kv_ports(pod: PodShape, rules: PodRules, engines: int) -> tuple[tuple[int | None, int | None], ...] | _Refused:
    """Per engine: where it publishes its KV events, and where it is asked for past ones."""
    text = (pod.metadata.annotations or {}).get(rules.kv_events_port_annotation)
    if text is None:
        return ((None, None),) * engines
    where = f"annotation {rules.kv_events_port_annotation}={text!r}"
    words = [word.strip() for word in text.split(",")]
    if len(words) != engines:
        return _Refused(f"{where}: {len(words)} for {engines} gRPC port{'s' if engines > 1 else ''}; one for each")
    found: list[tuple[int | None, int | None]] = []
    for word in words:
        events, slash, replay = word.partition("/")
        ports = port_number(events), port_number(replay) if slash else None
        if ports[0] is None or (slash and ports[1] is None):
            return _Refused(f"{where}: {word[:20]!r} is not PORT or PORT/REPLAYPORT, each from 1 to 65535")
        found.append(ports)
    return tuple(found)


def _grpc_ports(pod: PodShape, rules: PodRules) -> tuple[int, ...] | _Refused:
    text = (pod.metadata.annotations or {}).get(rules.port_annotation)
    if text is None:
        if rules.port is None:
            return _Refused(f"no port: the pod has no annotation {rules.port_annotation} and its pool has no port")
        return (rules.port,)
    where = f"annotation {rules.port_annotation}={text!r}"
    ports: list[int] = []
    for part in text.split(","):
        word = part.strip()
        # isdecimal alone would take digits of other scripts, and int() underscores and signs.
        if not (word.isascii() and word.isdecimal()):
            return _Refused(f"{where}: {word!r} is not a port number")
        # The length first: int() refuses thousands of digits with an exception.
        port = int(word) if len(word) <= 9 else 0
        if not 1 <= port <= 65535:
            return _Refused(f"{where}: {word[:20]} is outside 1 to 65535")
        if port in ports:
            return _Refused(f"{where}: port {port} is given twice")
        ports.append(port)
    return tuple(ports)


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


def _generation(pod: PodShape, ports: _Ports, rules: PodRules) -> str:
    """Return what changes with the process or where it is reached, and with nothing else (readiness above all).

    Any container may be the engine, native sidecars included, so each one's restart counts. Plain init containers do
    not: they end before the engine starts, and when they run again every other container restarts too.
    """
    sidecars = {c.name for c in pod.spec.init_containers or () if c.restart_policy == "Always"}
    running = [c for c in pod.status.init_container_statuses or () if c.name in sidecars]
    running += pod.status.container_statuses or ()
    lives = ",".join(sorted(f"{c.name}#{c.restart_count}#{c.container_id or ''}" for c in running))
    role = rules.role or "-"
    parts = (pod.metadata.uid, pod.status.address, str(ports.grpc), role, lives)
    kv = () if ports.kv_events is None else (f"kv{ports.kv_events}:{ports.kv_replay or '-'}",)
    return "/".join((*parts, *kv))
