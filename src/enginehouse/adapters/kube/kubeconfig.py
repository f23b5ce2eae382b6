"""Reads kubeconfig files: merging, contexts, users. Decides nothing about when credentials are read again."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from enginehouse.adapters.kube.access import (
    Access,
    Basic,
    ClientCertificate,
    Exec,
    InFile,
    Inline,
    KubeConfigError,
    Login,
    Material,
    Token,
    TokenFile,
)

_T = TypeVar("_T", bound=msgspec.Struct)


class _Context(msgspec.Struct):
    cluster: str
    user: str = ""
    namespace: str = ""


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _Variable(msgspec.Struct):
    name: str
    value: str = ""


class _ExecPlugin(msgspec.Struct, rename="camel"):
    command: str
    api_version: str
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool = False
    interactive_mode: Literal["Never", "IfAvailable", "Always"] = "IfAvailable"


class _User(msgspec.Struct, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    exec: _ExecPlugin | None = None
    auth_provider: dict[str, Any] | None = None


class _Entry(msgspec.Struct):
    name: str
    context: dict[str, Any] | None = None
    cluster: dict[str, Any] | None = None
    user: dict[str, Any] | None = None


class _File(msgspec.Struct, rename="kebab"):
    current_context: str | None = None
    contexts: list[_Entry] | None = None
    clusters: list[_Entry] | None = None
    users: list[_Entry] | None = None


_Sources = list[tuple[Path, _File]]


def read_kubeconfig(paths: Sequence[Path], context: str | None, namespace: str | None) -> Access:
    """Read and merge the files that exist, first wins, and return the access of one context."""
    try:
        present = [path for path in paths if path.exists()]
    except OSError as error:
        raise KubeConfigError(f"cannot read kubeconfig: {error}") from error
    files: _Sources = [(path, _load(path)) for path in present]
    listed = ", ".join(map(str, paths))
    if not files:
        raise KubeConfigError(f"no kubeconfig file at {listed}")
    wanted = context or next((file.current_context for _, file in files if file.current_context), None)
    if not wanted:
        raise KubeConfigError(f"{listed}: no current-context is set; name one with --kube-context")
    _, chosen = _find(files, "contexts", wanted, _Context)
    cluster_path, cluster = _find(files, "clusters", chosen.cluster, _Cluster)
    where = f"context {wanted!r} of {listed}"
    if cluster.proxy_url:
        raise KubeConfigError(f"{where}: cluster {chosen.cluster!r} has a proxy-url, which is not supported")
    if not cluster.server:
        raise KubeConfigError(f"{where}: cluster {chosen.cluster!r} has no server")
    login: Login | None = None
    certificate: ClientCertificate | None = None
    if chosen.user:
        user_path, user = _find(files, "users", chosen.user, _User)
        login = _login(user, user_path, f"{where}: user {chosen.user!r}")
        certificate = _certificate(user, user_path, f"{where}: user {chosen.user!r}")
    return Access(
        source=where,
        server=cluster.server,
        namespace=namespace or chosen.namespace or "default",
        ca=_material(
            cluster.certificate_authority_data,
            cluster.certificate_authority,
            cluster_path,
            f"{where}: certificate-authority",
        ),
        insecure=cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name or None,
        login=login,
        client_certificate=certificate,
    )


def _load(path: Path) -> _File:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise KubeConfigError(f"cannot read kubeconfig {path}: {error}") from error
    except yaml.YAMLError as error:
        raise KubeConfigError(f"kubeconfig {path} is not YAML: {_place(error)}") from error
    except (ValueError, OverflowError, RecursionError):  # such as a date with a 13th month
        raise KubeConfigError(f"kubeconfig {path} is not YAML: a value in it cannot be") from None
    try:
        return msgspec.convert(content or {}, _File)
    except msgspec.ValidationError as error:
        raise KubeConfigError(f"kubeconfig {path}: {error}") from error


def _place(error: yaml.YAMLError) -> str:
    # Never the text of the error itself: it quotes the line, which may hold a token.
    mark = getattr(error, "problem_mark", None)
    return f"{getattr(error, 'problem', 'bad syntax')} at line {mark.line + 1}" if mark else "bad syntax"


def _find(files: _Sources, kind: str, name: str, shape: type[_T]) -> tuple[Path, _T]:
    singular = kind[:-1]
    for path, file in files:
        entries: list[_Entry] | None = getattr(file, kind)
        for entry in entries or ():
            if entry.name == name:
                try:
                    return path, msgspec.convert(getattr(entry, singular) or {}, shape)
                except msgspec.ValidationError as error:
                    raise KubeConfigError(f"kubeconfig {path}: {singular} {name!r}: {error}") from error
    known = ", ".join(sorted({e.name for _, file in files for e in getattr(file, kind) or ()})) or "none"
    raise KubeConfigError(f"{', '.join(str(p) for p, _ in files)}: no {singular} {name!r}; there are: {known}")


def _beside(path: Path, name: str) -> Path:
    return path.parent / Path(name).expanduser()


def _material(data: str, name: str, path: Path, what: str) -> Material | None:
    if data:
        try:
            return Inline(base64.b64decode(data, validate=True))
        except binascii.Error as error:
            raise KubeConfigError(f"{what}-data is not base64: {error}") from error
    return InFile(_beside(path, name)) if name else None


def _certificate(user: _User, path: Path, what: str) -> ClientCertificate | None:
    certificate = _material(user.client_certificate_data, user.client_certificate, path, f"{what}: client-certificate")
    key = _material(user.client_key_data, user.client_key, path, f"{what}: client-key")
    if (certificate is None) != (key is None):
        raise KubeConfigError(f"{what}: client-certificate and client-key are only useful together")
    return ClientCertificate(certificate, key) if certificate and key else None


def _login(user: _User, path: Path, what: str) -> Login | None:
    if user.token_file:
        return TokenFile(_beside(path, user.token_file))
    if user.token:
        return Token(user.token)
    if user.username:
        return Basic(user.username, user.password)
    if user.exec:
        plugin = user.exec
        if plugin.interactive_mode == "Always":
            raise KubeConfigError(f"{what}: exec plugin {plugin.command!r} insists on a terminal")
        if plugin.api_version not in ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"):
            raise KubeConfigError(f"{what}: exec apiVersion {plugin.api_version!r} is neither …/v1 nor …/v1beta1")
        # A command with a slash is meant from the kubeconfig's folder; a bare one is looked up on PATH.
        command = str(_beside(path, plugin.command)) if os.sep in plugin.command else plugin.command
        return Exec(
            command,
            tuple(plugin.args or ()),
            tuple((variable.name, variable.value) for variable in plugin.env or ()),
            plugin.api_version,
            plugin.provide_cluster_info,
            plugin.install_hint or "",
        )
    if user.auth_provider:
        raise KubeConfigError(f"{what}: auth-provider was removed from Kubernetes; use an exec plugin")
    return None
