"""Owns the credentials in use: what the next request sends, read anew for each request wherever it may rotate."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

from enginehouse.adapters.kube.access import Access, Basic, Exec, KubeConfigError, Token, TokenFile
from enginehouse.adapters.kube.exec_plugin import ExecCredential, ExecPluginError, run_plugin


class CredentialsError(Exception):
    """No credentials now; the text says why. It may pass."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What one request needs."""

    authorization: str | None = field(repr=False)
    tls: ssl.SSLContext | None
    """None: plain HTTP."""


_Pem = tuple[bytes | None, bytes | None, bytes | None]


class Credentials:
    """Credentials of one API server."""

    def __init__(self, access: Access, find: Callable[[], Access] | None = None) -> None:
        """find: looks for the access anew, as what stands in a kubeconfig itself changes only with that file."""
        self._access = access
        self._find = find
        self._outdated = False
        self._secure = access.server.startswith("https:")
        self._plugin: ExecCredential | None = None
        self._tls: tuple[_Pem, ssl.SSLContext] | None = None

    def reload(self) -> None:
        """Forget what was cached or read from a kubeconfig: the server did not accept it."""
        self._outdated = self._find is not None
        self._plugin = None
        self._tls = None

    async def prepare(self) -> Prepared:
        """Return what the next request shall use. Raises CredentialsError."""
        self._find_again()
        login = self._access.login
        plugin: ExecCredential | None = None
        if isinstance(login, Exec):
            plugin = await self._from_plugin(login)
        try:
            authorization = _authorization(login, plugin)
            tls = self._context(plugin) if self._secure else None
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError, UnicodeError a ValueError
            raise CredentialsError(f"credentials of {self._access.source}: {error}") from error
        return Prepared(authorization, tls)

    def _find_again(self) -> None:
        if not self._outdated or self._find is None:
            return
        try:
            access = self._find()
        except KubeConfigError as error:  # perhaps caught while it is written
            raise CredentialsError(str(error)) from error
        if access.server != self._access.server:
            # Credentials of one server are not another's business, and its pods may be other pods.
            raise CredentialsError(
                f"{access.source} names another API server now, {access.server}; restart to follow it"
            )
        self._access = access
        self._outdated = False

    async def _from_plugin(self, login: Exec) -> ExecCredential:
        if self._plugin is None or not self._plugin.usable():
            try:
                self._plugin = await run_plugin(login, self._access)
            except (ExecPluginError, OSError, ValueError) as error:  # ValueError: a null byte in an argument
                raise CredentialsError(str(error)) from error
        return self._plugin

    def _context(self, plugin: ExecCredential | None) -> ssl.SSLContext:
        access, pair = self._access, self._access.client_certificate
        certificate = plugin.certificate if plugin and plugin.certificate else pair.certificate.read() if pair else None
        key = plugin.key if plugin and plugin.key else pair.key.read() if pair else None
        pem = (access.ca.read() if access.ca else None, certificate, key)
        if self._tls is None or self._tls[0] != pem:
            self._tls = (pem, _build(pem, insecure=access.insecure))
        return self._tls[1]


def _authorization(login: object, plugin: ExecCredential | None) -> str | None:
    match login:
        case Token(token):
            return f"Bearer {_one_line(token)}"
        case TokenFile(path):
            # Small and local; a pod's is in memory. Read for each request, as it rotates.
            token = path.read_text(encoding="utf-8").strip()
            if not token:
                raise CredentialsError(f"token file {path} is empty")
            return f"Bearer {_one_line(token)}"
        case Basic(username, password):
            return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()
        case Exec():
            return f"Bearer {_one_line(plugin.token)}" if plugin and plugin.token else None
        case _:
            return None


def _one_line(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise CredentialsError("the token contains white space or characters that a header cannot carry")
    return token


def _build(pem: _Pem, *, insecure: bool) -> ssl.SSLContext:
    ca, certificate, key = pem
    context = ssl.create_default_context(cadata=ca.decode("ascii", "ignore") if ca else None)
    # Since Python 3.13 the default also refuses authorities that older Kubernetes set-ups sign with.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate and key:
        # The ssl module takes a certificate only from a file; this one is ours alone and gone at once.
        handle, name = tempfile.mkstemp(prefix="enginehouse-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(certificate + b"\n" + key)
            # Without a password function an encrypted key would ask the terminal.
            context.load_cert_chain(name, password=lambda: "")
        finally:
            os.unlink(name)
    return context
