"""Nouns of access to an API server: where it is, and who we are to it. Secrets have no repr."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


class KubeConfigError(ValueError):
    """There is no usable way to the API server; the text says what was looked at and what would help."""


@dataclass(frozen=True, slots=True)
class Inline:
    """Content that stands in the kubeconfig itself."""

    content: bytes = field(repr=False)

    def read(self) -> bytes:
        """Return the content."""
        return self.content


@dataclass(frozen=True, slots=True)
class InFile:
    """Content that stands in a file, and may change there."""

    path: Path

    def read(self) -> bytes:
        """Return what the file holds now; raises OSError."""
        return self.path.read_bytes()


Material = Inline | InFile


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token for good."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A bearer token that rotates in a file."""

    path: Path


@dataclass(frozen=True, slots=True)
class Basic:
    """User name and password."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Exec:
    """A command that prints an ExecCredential."""

    command: str
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = field(repr=False)
    api_version: str
    provide_cluster_info: bool
    install_hint: str = ""


Login = Token | TokenFile | Basic | Exec


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate with its key, both PEM."""

    certificate: Material
    key: Material


@dataclass(frozen=True, slots=True)
class Access:
    """One API server and who we are to it."""

    source: str
    """For people: where this was found."""
    server: str
    """URL, perhaps with a path."""
    namespace: str
    ca: Material | None = None
    """None: the system's authorities."""
    insecure: bool = False
    tls_server_name: str | None = None
    login: Login | None = None
    client_certificate: ClientCertificate | None = None
