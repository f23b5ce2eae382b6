"""What an operator may say about the Kubernetes API server and the pods in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from enginehouse.core.pod_rules import PodRules
from enginehouse.core.watch import Pace
from enginehouse.domain.engine import ProtocolName, Role

_LABEL = r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
_NAMES = (
    "port_annotation",
    "kv_events_port_annotation",
    "bootstrap_port_annotation",
    "bootstrap_host_annotation",
    "role_label",
    "pair_by",
)


@dataclass(frozen=True, slots=True)
class KubeSettings:
    """Which API server, which namespace, and how closely it is followed."""

    namespace: str | None = None
    """Namespace whose pods are watched. Default: the one of the kubeconfig context or of the service account."""
    all_namespaces: bool = False
    """Watch the pods of every namespace; needs a ClusterRole. Not together with `namespace`."""
    kubeconfig: str | None = None
    """Kubeconfig file, or several with the path separator between. Default: KUBECONFIG, then in a pod its service
    account, then ~/.kube/config."""
    kube_context: str | None = None
    """Context of the kubeconfig. Default: its current-context."""
    port_annotation: str = "nvidia.com/dynamo-engine-grpc-port"
    """Annotation that holds a pod's gRPC port; a comma-separated list is several engines in one pod."""
    kv_events_port_annotation: str = "enginehouse.dev/kv-events-port"
    """Annotation that holds where a pod's engine publishes its KV events: `PORT`, or `PORT/REPLAYPORT` where past ones
    can be asked for, each of rank 0; for several engines a comma-separated list in the order of their gRPC ports. It
    comes before what the engine says and before kv-events-port."""
    bootstrap_port_annotation: str = "sglang.ai/bootstrap-port"
    """Annotation that holds the bootstrap port of SGLang's prefill pods; for several engines a comma-separated list in
    the order of their gRPC ports. It comes before what the engine says."""
    bootstrap_host_annotation: str = "enginehouse.dev/bootstrap-host"
    """Annotation that holds the host where decode engines meet a pod's prefill engine of SGLang, where that is neither
    what the engine says (`dist_init_addr`) nor the pod's address."""
    role_label: str = "enginehouse.dev/role"
    """Label that holds the role of a pod's engines: `prefill`, `decode` or `aggregated`. For engines that cannot report
    it (vLLM), or pods of both kinds under one selector. A pod whose selector or engine says otherwise is refused."""
    pair_by: str | None = None
    """Label by whose value engines are paired for prefill and decode: only those with the same value work together, as
    the pods of one group or one generation. A pod without the label is refused. None: any two may."""
    resync_interval: float = 30.0
    """Seconds between two safety listings while a watch runs. Bounds how long a watch that went deaf can hide a pod;
    each one costs the API server one list of the selected pods."""
    watch_timeout: float = 300.0
    """Seconds after which the server is asked to end a watch; the request says one to two times this, at random, so
    that frontends do not reconnect together."""
    watch_idle_limit: float = 45.0
    """Seconds. A watch that was silent for so long is replaced at the next safety listing, as if it were half open."""
    connect_timeout: float = 5.0
    """Seconds for connecting to the API server, TLS included."""
    request_timeout: float = 20.0
    """Seconds for one page of a listing, and for the server to accept a watch."""
    backoff_limit: float = 10.0
    """Seconds: the longest wait after errors of the API server. While it cannot be reached at all it is tried about
    every second, and a longer Retry-After is honoured."""
    page_size: int = 200
    """Pods on one page of a listing. Smaller pages block the event loop for less time; more pages are more requests."""
    service_account_dir: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """Where a pod finds token, ca.crt and namespace of its service account."""

    def __post_init__(self) -> None:
        if self.namespace and self.all_namespaces:
            raise ValueError("namespace and all_namespaces exclude each other")
        if self.namespace is not None and not self.namespace:
            raise ValueError("namespace is empty; leave it out for the default")
        for name in _NAMES:
            if getattr(self, name) == "":
                raise ValueError(f"{name} is empty")
        for name in ("role_label", "pair_by"):
            label = getattr(self, name)
            if label is not None and not re.fullmatch(_LABEL, label):
                raise ValueError(f"{name} {label!r} is not the name of a label; example.com/group is one")
        for name in ("resync_interval", "watch_timeout", "watch_idle_limit", "connect_timeout", "request_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0 seconds")
        if not self.backoff_limit > 0:
            raise ValueError("backoff_limit must be more than 0 seconds")
        if self.page_size < 1:
            raise ValueError("page_size must be at least 1")

    def pace(self) -> Pace:
        """Return the times of the watch machine."""
        return Pace(
            resync_interval=self.resync_interval,
            watch_timeout=self.watch_timeout,
            idle_limit=self.watch_idle_limit,
            backoff_limit=self.backoff_limit,
        )

    def rules(
        self,
        *,
        port: int | None,
        role: Role | None = None,
        protocol: ProtocolName | None = None,
        tls: bool = False,
    ) -> PodRules:
        """Return how pods of one pool are read: its port and hints, with the annotations and labels named here."""
        if port is not None and not 1 <= port <= 65535:
            raise ValueError(f"pod port {port} is outside 1 to 65535")
        return PodRules(
            port=port,
            port_annotation=self.port_annotation,
            kv_events_port_annotation=self.kv_events_port_annotation,
            bootstrap_port_annotation=self.bootstrap_port_annotation,
            bootstrap_host_annotation=self.bootstrap_host_annotation,
            role_label=self.role_label,
            pair_by=self.pair_by,
            role=role,
            protocol=protocol,
            tls=tls,
        )
