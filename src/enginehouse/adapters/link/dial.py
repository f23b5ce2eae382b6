"""Open the transport of a connection and wait for the peer's SETTINGS, with one reason for every way to fail."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from enginehouse.adapters.link.connection import LinkConnection
from enginehouse.adapters.link.settings import LinkSettings
from enginehouse.domain.engine import Target
from enginehouse.domain.link import LinkError, LinkErrorKind

_CLOSE_NOTIFY = 0.2
"""Seconds for the peer's TLS close_notify, which gRPC servers never send; GOAWAY has said all there is to say."""
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")


async def dial(target: Target, settings: LinkSettings, connection: LinkConnection) -> None:
    """Return when `connection` takes calls. Raises LinkError, never processed."""
    loop = asyncio.get_running_loop()
    step = "TCP connection"
    try:
        async with asyncio.timeout(settings.connect_timeout):
            options: dict[str, Any] = {}
            if target.tls:
                # Anew each time: certificates are renewed under a running program.
                options["ssl"] = await loop.run_in_executor(None, settings.tls_context)
                options["server_hostname"] = settings.server_name or target.host
                options["ssl_shutdown_timeout"] = _CLOSE_NOTIFY
                step = "TCP connection and TLS handshake"
            transport, _ = await loop.create_connection(lambda: connection, target.host, target.port, **options)
            tls = transport.get_extra_info("ssl_object")
            if tls is not None and tls.selected_alpn_protocol() != "h2":
                raise LinkError(
                    LinkErrorKind.PROTOCOL,
                    f"{target.url}: the TLS server does not offer HTTP/2 (ALPN h2), so it is no gRPC port",
                    may_have_been_processed=False,
                )
            step = "HTTP/2 SETTINGS of the peer"
            await connection.greeted
    except TimeoutError:
        raise _connect(target, f"no {step} within {settings.connect_timeout:g} s") from None
    except LinkError as error:
        raise _of_the_peer(target, error, certified=settings.cert is not None) from error
    except (OSError, ValueError) as error:  # ValueError: a host name that cannot be encoded
        raise _connect(target, _reason(error, target)) from error


def _connect(target: Target, text: str) -> LinkError:
    return LinkError(LinkErrorKind.CONNECT, f"{target.url}: {text}", may_have_been_processed=False)


def _of_the_peer(target: Target, error: LinkError, *, certified: bool) -> LinkError:
    """The connection stood, and ended before the peer's SETTINGS."""
    if error.kind is LinkErrorKind.LOST:
        cause = error.text
        if "CERTIFICATE_REQUIRED" in cause:
            cause = "the peer asks for a client certificate (cert and key)"
        elif not target.tls:
            cause += " before it spoke HTTP/2; if the port speaks TLS, use grpcs://"
        elif not certified:
            cause += " before it spoke HTTP/2; it may ask for a client certificate (cert and key)"
        else:
            cause += " before it spoke HTTP/2"
        return _connect(target, cause)
    if error.text.startswith(target.url):
        return error
    return LinkError(error.kind, f"{target.url}: {error.text}", may_have_been_processed=False)


def _reason(error: Exception, target: Target) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason in _NOT_TLS:
            return "the port does not speak TLS; use grpc://"
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionError) and target.tls:
        return f"closed during the TLS handshake ({error}); if the port does not speak TLS, use grpc://"
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot read {error.filename}: {error.strerror}"
    return f"cannot connect: {error}"
