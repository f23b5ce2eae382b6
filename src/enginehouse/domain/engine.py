"""What an engine is: where it listens, what it says of itself, what the frontend calls it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

_E = TypeVar("_E", bound=StrEnum)


class Role(StrEnum):
    """What work an engine takes."""

    AGGREGATED = "aggregated"
    PREFILL = "prefill"
    DECODE = "decode"


class ProtocolName(StrEnum):
    """The gRPC contracts that the frontend speaks."""

    SGLANG = "sglang"
    """`sglang.runtime.v1.SglangService` (SGLang's own gRPC server, `--grpc-port`)."""
    VLLM = "vllm"
    """`vllm.grpc.engine.VllmEngine` (`vllm serve --grpc`)."""
    VLLM_NATIVE = "vllm-native"
    """`vllm.Inference` and `vllm.Control` (vLLM's Rust frontend, `--grpc-port`)."""


class Ability(StrEnum):
    """What a request may need of an engine that not every protocol, release or model offers."""

    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    LOGIT_BIAS = "logit_bias"
    PRIORITY = "priority"
    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICE = "choice"
    STRUCTURAL_TAG = "structural_tag"
    EMBED = "embed"
    GENERATE = "generate"


class InvalidTarget(ValueError):
    """An engine address that cannot be used; the text says why and what would be right."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where an engine listens, and what the operator said of it.

    `host` carries no brackets, also for IPv6; `url` adds them.
    """

    host: str
    port: int
    tls: bool = False
    role: Role | None = None
    """Operator's hint; None: let the engine say."""
    protocol: ProtocolName | None = None
    """Forced protocol; None: find out by probing."""
    kv_events_port: int | None = None
    """Port where rank 0 publishes its KV events, each further rank on the next; None: let the engine say."""
    kv_replay_port: int | None = None
    """Port where rank 0 is asked for past events, counted likewise."""
    bootstrap_host: str | None = None
    """Where decode engines meet this prefill engine of SGLang; None: let the engine say, else where we dial it."""
    bootstrap_port: int | None = None
    """None: let the engine say."""
    group: str | None = None
    """Engines of different groups are never paired; None: it pairs with anybody who has none either."""

    def __post_init__(self) -> None:
        for what, host in (("host", self.host), ("bootstrap-host", self.bootstrap_host)):
            if host is not None and not is_host(host):
                raise InvalidTarget(f"{what} {host!r} is not a host name or address")
        for name, port in (
            ("port", self.port),
            ("kv-events-port", self.kv_events_port),
            ("kv-replay-port", self.kv_replay_port),
            ("bootstrap-port", self.bootstrap_port),
        ):
            if port is not None and not 1 <= port <= 65535:
                raise InvalidTarget(f"{name} {port} is outside 1 to 65535")
        if self.kv_replay_port is not None and self.kv_events_port is None:
            raise InvalidTarget("kv-replay-port needs kv-events-port")
        if self.group is not None and not (self.group and self.group.isprintable()):
            raise InvalidTarget(f"group {self.group!r} is empty or cannot be printed")

    @property
    def authority(self) -> str:
        """`host:port`, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """`grpc://host:port`, or `grpcs://` for TLS: the normal form, without hints."""
        return f"{'grpcs' if self.tls else 'grpc'}://{self.authority}"

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read `grpc://HOST:PORT[?OPTION=…&OPTION=…]` (`grpcs://` for TLS); the options are those of OPTIONS.

        Raises InvalidTarget with a text that says what is wrong and what would be right.
        """
        right = "expected grpc://HOST:PORT[?role=prefill&protocol=vllm]"
        parts = urlsplit(text)
        if parts.scheme not in ("grpc", "grpcs"):
            raise InvalidTarget(f"{text!r}: scheme {parts.scheme!r} is not grpc or grpcs; {right}")
        if parts.path not in ("", "/") or parts.fragment or parts.username is not None:
            raise InvalidTarget(f"{text!r}: only a host, a port and options may be given; {right}")
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidTarget(f"{text!r}: port is not a number from 1 to 65535; {right}") from error
        if not parts.hostname or port is None:
            raise InvalidTarget(f"{text!r}: host and port are both needed; {right}")
        told: dict[str, str] = {}
        for key, value in parse_qsl(parts.query, keep_blank_values=True):
            if key not in OPTIONS:
                known = f"{', '.join(OPTIONS[:-1])} and {OPTIONS[-1]}"
                raise InvalidTarget(f"{text!r}: unknown option {key!r}; known are {known}")
            told[key] = value
        try:
            return cls(parts.hostname, port, parts.scheme == "grpcs").told(told)
        except InvalidTarget as error:
            raise InvalidTarget(f"{text!r}: {error}") from error

    def told(self, options: Mapping[str, str]) -> Target:
        """The same engine with what options (those of OPTIONS) say of it besides. Raises InvalidTarget."""
        ports = {name: _port(name, options[name]) for name in _PORTS if name in options}
        return replace(
            self,
            role=_choice(Role, "role", options["role"]) if "role" in options else self.role,
            protocol=_choice(ProtocolName, "protocol", options["protocol"]) if "protocol" in options else self.protocol,
            kv_events_port=ports.get("kv-events-port", self.kv_events_port),
            kv_replay_port=ports.get("kv-replay-port", self.kv_replay_port),
            bootstrap_host=options.get("bootstrap-host", self.bootstrap_host),
            bootstrap_port=ports.get("bootstrap-port", self.bootstrap_port),
            group=options.get("group", self.group),
        )


_PORTS = ("kv-events-port", "kv-replay-port", "bootstrap-port")
OPTIONS = ("role", "protocol", *_PORTS, "bootstrap-host", "group")
"""What may be said of an engine besides where it listens, by the names of its fields."""


def _choice(kind: type[_E], name: str, value: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise InvalidTarget(f"{name} {value!r} is not one of {known}") from None


def _port(name: str, value: str) -> int:
    port = port_number(value)
    if port is None:
        raise InvalidTarget(f"{name} {value[:20]!r} is not a number from 1 to 65535")
    return port


def is_host(word: str) -> bool:
    """A host name or address as it may stand here: without brackets, port or anything of a URL."""
    return bool(word) and re.search(r"[\s/@?#\[\]]", word) is None


def port_number(word: str) -> int | None:
    """A TCP port in plain decimal digits; None for anything else."""
    # isdecimal alone would take digits of other scripts, and int() underscores, signs, and thousands of digits not.
    if not (word.isascii() and word.isdecimal() and len(word) <= 9):
        return None
    port = int(word)
    return port if 1 <= port <= 65535 else None


LINK = "link"
"""Endpoint of a KvEventSource whose events come over the engine's own link (`SubscribeKvEvents`), all ranks in one."""


@dataclass(frozen=True, slots=True)
class KvEventSource:
    """Where one rank of an engine publishes its KV-cache events."""

    rank: int
    endpoint: str
    """ZMQ endpoint (`tcp://host:port`), or LINK for the gRPC stream on the engine's own link."""
    topic: str = ""
    replay_endpoint: str | None = None
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine said of itself when it was probed; None where it does not say."""

    protocol: ProtocolName
    model: str
    """Served model name."""
    aliases: tuple[str, ...] = ()
    model_path: str | None = None
    tokenizer_path: str | None = None
    tokenizer_digest: str | None = None
    """sha256 (hex) of the tokenizer that the engine hands out; None where it hands out none."""
    context_length: int | None = None
    """Tokens of prompt and answer together."""
    max_prompt_tokens: int | None = None
    """Longest accepted prompt, where it is less than the context."""
    vocab_size: int | None = None
    block_size: int | None = None
    """Tokens in one block of the KV cache."""
    kv_capacity_tokens: int | None = None
    """Tokens that the KV cache of one rank holds."""
    max_running: int | None = None
    role: Role | None = None
    """As the engine reports it; None: it cannot (vLLM)."""
    ranks: int = 1
    """Data-parallel ranks that can be addressed."""
    first_rank: int = 0
    instance_id: str | None = None
    """Changes with each engine process; None where the protocol has nothing of the kind."""
    version: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    default_sampling: dict[str, object] = field(default_factory=dict)
    """The model's own generation defaults, for engines that leave applying them to us."""
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    abilities: frozenset[Ability] = frozenset(Ability)
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    """Where decode engines meet a prefill engine of SGLang."""
    transfer_backend: str | None = None
    """What carries KV caches between engines (`mooncake`, `nixl`, a vLLM connector's name)."""
    kv_dtype: str | None = None
    """Element type of the KV cache."""
    kv_event_sources: tuple[KvEventSource, ...] = ()
    loras: tuple[str, ...] = ()
    """Names of the adapters that it has loaded now."""
