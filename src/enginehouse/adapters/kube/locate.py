"""Finds the API server: the kubeconfig that was named, KUBECONFIG, the pod's service account, ~/.kube/config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from enginehouse.adapters.kube.access import Access, InFile, KubeConfigError, TokenFile
from enginehouse.adapters.kube.kubeconfig import read_kubeconfig
from enginehouse.adapters.kube.settings import KubeSettings


def find_access(settings: KubeSettings, environ: Mapping[str, str]) -> Access:
    """Return the access that the settings and the environment lead to. Raises KubeConfigError."""
    named = settings.kubeconfig or environ.get("KUBECONFIG")
    if named:
        paths = [Path(part).expanduser() for part in named.split(os.pathsep) if part]
        return read_kubeconfig(paths, settings.kube_context, settings.namespace)
    if settings.kube_context is None and environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(Path(settings.service_account_dir), environ, settings.namespace)
    home = Path("~/.kube/config").expanduser()
    if not home.exists():
        raise KubeConfigError(
            "no way to a Kubernetes API server: --kubeconfig and KUBECONFIG are not set, this is not a pod "
            f"(no KUBERNETES_SERVICE_HOST), and there is no {home}"
        )
    return read_kubeconfig([home], settings.kube_context, settings.namespace)


def in_cluster(folder: Path, environ: Mapping[str, str], namespace: str | None) -> Access:
    """Return the access of the pod that we run in."""
    host = environ["KUBERNETES_SERVICE_HOST"]
    port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443"
    try:
        missing = [name for name in ("token", "ca.crt") if not (folder / name).exists()]
    except OSError as error:
        raise KubeConfigError(f"cannot read the service account: {error}") from error
    if missing:
        raise KubeConfigError(
            f"in a pod, but {folder} lacks {' and '.join(missing)}: is automountServiceAccountToken false, or does the "
            "pod have no service account?"
        )
    if namespace is None:
        try:
            namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise KubeConfigError(f"cannot read the pod's namespace; set --namespace: {error}") from error
    return Access(
        source=f"service account in {folder}",
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=namespace or "default",
        ca=InFile(folder / "ca.crt"),
        login=TokenFile(folder / "token"),
    )
