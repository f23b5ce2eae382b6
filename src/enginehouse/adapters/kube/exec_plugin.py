"""Runs a kubeconfig's exec plugin and reads the ExecCredential that it prints."""

from __future__ import annotations

import asyncio
import base64
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from enginehouse.adapters.kube.access import Access, Exec

_TIME_LIMIT = 30.0
_EARLY = 60.0
"""Seconds before its expiry at which a credential is fetched anew."""


class ExecPluginError(Exception):
    """The plugin gave no credential; the text says why."""


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct):
    status: _Status


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """What the plugin gave."""

    token: str | None = field(repr=False)
    certificate: bytes | None = field(repr=False)
    key: bytes | None = field(repr=False)
    expires: datetime | None

    def usable(self) -> bool:
        """It will not expire in the next minute."""
        return self.expires is None or (self.expires - datetime.now(UTC)).total_seconds() > _EARLY


async def run_plugin(plugin: Exec, access: Access) -> ExecCredential:
    """Run the command. Raises ExecPluginError; a cancelled call leaves no process behind."""
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": _spec(plugin, access)}
    environ = {**os.environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = f" ({plugin.install_hint.strip()})" if plugin.install_hint else ""
        raise ExecPluginError(f"exec plugin {plugin.command!r} cannot be run: {error}{hint}") from error
    try:
        async with asyncio.timeout(_TIME_LIMIT):
            out, err = await process.communicate()
    except TimeoutError:
        raise ExecPluginError(f"exec plugin {plugin.command!r} did not answer within {_TIME_LIMIT:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    if process.returncode != 0:
        said = err.decode(errors="replace").strip()[-200:]
        raise ExecPluginError(f"exec plugin {plugin.command!r} ended with {process.returncode}: {said}")
    return _read(out, plugin)


def _spec(plugin: Exec, access: Access) -> dict[str, Any]:
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        cluster: dict[str, Any] = {"server": access.server}
        if access.ca is not None:
            cluster["certificate-authority-data"] = base64.b64encode(access.ca.read()).decode()
        if access.tls_server_name:
            cluster["tls-server-name"] = access.tls_server_name
        if access.insecure:
            cluster["insecure-skip-tls-verify"] = True
        spec["cluster"] = cluster
    return spec


def _read(out: bytes, plugin: Exec) -> ExecCredential:
    try:
        status = msgspec.json.decode(out, type=_ExecCredential).status
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ExecPluginError(f"exec plugin {plugin.command!r} printed no ExecCredential: {error}") from error
    certificate, key = status.client_certificate_data, status.client_key_data
    if not status.token and not (certificate and key):
        raise ExecPluginError(f"exec plugin {plugin.command!r} gave neither a token nor a certificate with its key")
    expires = status.expiration_timestamp
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return ExecCredential(
        token=status.token,
        certificate=certificate.encode() if certificate else None,
        key=key.encode() if key else None,
        expires=expires,
    )
