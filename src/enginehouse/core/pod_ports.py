"""Decides where the engines of one pod listen, from its annotations and its pool's port."""

from __future__ import annotations

from dataclasses import dataclass

from enginehouse.core.pod_rules import PodRules, Refused
from enginehouse.core.pod_shape import PodShape
from enginehouse.domain.engine import is_host, port_number


@dataclass(frozen=True, slots=True)
class Ports:
    """Where one engine of a pod listens."""

    grpc: int
    kv_events: int | None = None
    kv_replay: int | None = None
    bootstrap: int | None = None
    bootstrap_host: str | None = None


def read_ports(pod: PodShape, rules: PodRules) -> tuple[Ports, ...] | Refused:
    """Return where each engine of a pod listens, or why nobody knows."""
    grpc = _grpc_ports(pod, rules)
    if isinstance(grpc, Refused):
        return grpc
    kv = _kv_ports(pod, rules, len(grpc))
    if isinstance(kv, Refused):
        return kv
    bootstrap = _bootstrap_ports(pod, rules, len(grpc))
    if isinstance(bootstrap, Refused):
        return bootstrap
    host = (pod.metadata.annotations or {}).get(rules.bootstrap_host_annotation)
    if host is not None and not is_host(host):
        return Refused(f"annotation {rules.bootstrap_host_annotation}={host!r} is not a host name or address")
    return tuple(
        Ports(port, *events, bootstrap=met, bootstrap_host=host)
        for port, events, met in zip(grpc, kv, bootstrap, strict=True)
    )


def _bootstrap_ports(pod: PodShape, rules: PodRules, engines: int) -> tuple[int | None, ...] | Refused:
    """Per engine: where decode engines meet it, should it prefill."""
    text = (pod.metadata.annotations or {}).get(rules.bootstrap_port_annotation)
    if text is None:
        return (None,) * engines
    where = f"annotation {rules.bootstrap_port_annotation}={text!r}"
    words = _words(text, engines, where)
    if isinstance(words, Refused):
        return words
    ports = tuple(port_number(word) for word in words)
    return ports if None not in ports else Refused(f"{where}: not a port from 1 to 65535")


def _words(text: str, engines: int, where: str) -> list[str] | Refused:
    """The words of a list with one for each engine."""
    words = [word.strip() for word in text.split(",")]
    if len(words) == engines:
        return words
    return Refused(f"{where}: {len(words)} for {engines} gRPC port{'s' if engines > 1 else ''}; one for each")


def _kv_ports(pod: PodShape, rules: PodRules, engines: int) -> tuple[tuple[int | None, int | None], ...] | Refused:
    """Per engine: where it publishes its KV events, and where it is asked for past ones."""
    text = (pod.metadata.annotations or {}).get(rules.kv_events_port_annotation)
    if text is None:
        return ((None, None),) * engines
    where = f"annotation {rules.kv_events_port_annotation}={text!r}"
    words = _words(text, engines, where)
    if isinstance(words, Refused):
        return words
    found: list[tuple[int | None, int | None]] = []
    for word in words:
        events, slash, replay = word.partition("/")
        ports = port_number(events), port_number(replay) if slash else None
        if ports[0] is None or (slash and ports[1] is None):
            return Refused(f"{where}: {word[:20]!r} is not PORT or PORT/REPLAYPORT, each from 1 to 65535")
        found.append(ports)
    return tuple(found)


def _grpc_ports(pod: PodShape, rules: PodRules) -> tuple[int, ...] | Refused:
    text = (pod.metadata.annotations or {}).get(rules.port_annotation)
    if text is None:
        if rules.port is None:
            return Refused(f"no port: the pod has no annotation {rules.port_annotation} and its pool has no port")
        return (rules.port,)
    where = f"annotation {rules.port_annotation}={text!r}"
    ports: list[int] = []
    for part in text.split(","):
        word = part.strip()
        port = port_number(word)
        if port is None:
            return Refused(f"{where}: {word[:20]!r} is not a number from 1 to 65535")
        if port in ports:
            return Refused(f"{where}: port {port} is given twice")
        ports.append(port)
    return tuple(ports)
