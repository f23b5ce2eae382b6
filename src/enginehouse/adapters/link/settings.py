"""What an operator may set about links, and the TLS context made from it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from enginehouse.wire.h2_client import ConnectionLimits
from enginehouse.wire.h2_frames import DEFAULT_WINDOW, LARGEST_WINDOW


@dataclass(frozen=True)
class LinkSettings:
    """HTTP/2 connections to engines."""

    connect_timeout: float = 5.0
    """Seconds for TCP, TLS and the engine's first HTTP/2 SETTINGS together. An engine that needs longer is not well."""
    connections: int = 4
    """Connections over which the calls to one engine are spread; each is opened when those before it are full, so that
    tokens of many calls arrive in few reads."""
    streams_per_connection: int = 100
    """Calls on one connection before the next is opened. The losses of one broken connection stay bounded by it."""
    max_connections: int = 32
    """Connections to one engine at most, when it allows fewer concurrent streams than are needed; then calls queue."""
    stream_window: int = 16 * 1024
    """Bytes that one call may receive ahead of what was granted, some hundred tokens. It bounds what a client that
    reads slowly costs, and the tokens of running answers that a new request's first token waits behind when this
    frontend is the bottleneck: with 64 KiB that wait was ten times longer, and throughput lower."""
    connection_window: int = 16 * 1024 * 1024
    """Bytes that one connection may receive ahead of what was granted: never the limit, with this many calls."""
    receive_limit: int = 256 * 1024 * 1024
    """Largest message accepted from an engine, in bytes. The 4 MiB common elsewhere is too little for log probabilities
    and tokenizer files."""
    send_limit: int = 256 * 1024 * 1024
    """Largest message sent to an engine, in bytes. Engines have limits of their own."""
    ca: str | None = None
    """PEM file of the authorities that sign engine certificates; None: those of the system."""
    cert: str | None = None
    """PEM file of our own certificate, for engines that ask for one (mutual TLS)."""
    key: str | None = None
    """PEM file of the key to `cert`; None: it is in the same file."""
    server_name: str | None = None
    """Name to look for in engine certificates; None: the host of the engine's URL. Pods are addressed by IP, and
    certificates rarely name one."""
    token_file: str | None = None
    """File with a bearer token for engines behind a proxy that asks for one, sent with every call and read again every
    ten seconds. Use it with `grpcs://`: over `grpc://` it travels in the clear."""
    silence_limit: float = 30.0
    """Seconds after which the kernel gives a connection up whose peer acknowledges nothing (TCP_USER_TIMEOUT and TCP
    keepalive; HTTP/2 pings are never sent, because servers punish them)."""
    gather: float = 0.002
    """Seconds between two reads of a busy connection (64 calls or more, tokens close together; not under TLS), so that
    tokens come in groups: 12 to 7 µs per token with 256 calls, little gain with 64. It delays a token by so much at
    most. 0 switches it off."""
    calm_down: float = 1.0
    """Seconds without a new connection after an engine told us to calm down; doubled each time, up to 30."""
    close_timeout: float = 2.0
    """Seconds for the last bytes when a link is closed."""

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "silence_limit", "close_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0 seconds")
        for name in ("gather", "calm_down"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("connections", "streams_per_connection", "receive_limit", "send_limit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.max_connections < self.connections:
            raise ValueError("max_connections must not be less than connections")
        if not 1 <= self.stream_window <= LARGEST_WINDOW:
            raise ValueError(f"stream_window must be from 1 to {LARGEST_WINDOW}")
        if not DEFAULT_WINDOW <= self.connection_window <= LARGEST_WINDOW:
            raise ValueError(f"connection_window must be from {DEFAULT_WINDOW} to {LARGEST_WINDOW}: HTTP/2 has no less")

    def limits(self) -> ConnectionLimits:
        """The part of it that the wire needs."""
        return ConnectionLimits(
            stream_window=self.stream_window,
            connection_window=self.connection_window,
            receive_limit=self.receive_limit,
        )

    def tls_context(self) -> ssl.SSLContext:
        """Read the files and make the context. Raises OSError or ssl.SSLError; it blocks on the disk."""
        for file in (self.ca, self.cert, self.key):
            if file is not None:
                Path(file).read_bytes()  # unlike the ssl module, this names the file that is not there
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        return context
