"""What one engine protocol has to provide; everything that they share is in engine.py and connect.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from enginehouse.domain.engine import EngineInfo, ProtocolName, Target
from enginehouse.domain.errors import EngineError
from enginehouse.domain.link import LinkError
from enginehouse.domain.request import EngineRequest
from enginehouse.domain.stream import Delta, Embedding
from enginehouse.ports import EngineLoad, Link


@dataclass(frozen=True)
class ProbeSettings:
    """How long an engine may take to say what it is."""

    call_timeout: float = 10.0
    """Seconds for each question while probing and checking. An engine that is starting may accept connections and
    stay silent; it answers as soon as it can, so a longer wait admits it sooner, not later."""
    optional_call_timeout: float = 1.0
    """Seconds for each question whose answer only refines the others (load, state, KV event sources, adapters). Without
    it what was last known stands; no engine is refused or taken out for it."""
    tokenizer_check_timeout: float = 3.0
    """Seconds for fetching the tokenizer while probing, to compare it with that of the others. An engine that takes
    longer joins without the comparison."""
    tokenizer_timeout: float = 60.0
    """Seconds for fetching the tokenizer from an engine that hands it out: tens of megabytes."""
    tokenizer_limit: int = 256 * 1024 * 1024
    """Bytes of such a tokenizer, packed and unpacked alike; more is refused."""


@dataclass(slots=True)
class Load:
    """Load of one rank as its engine reports it."""

    running: int
    waiting: int
    used_tokens: int | None = None
    total_tokens: int | None = None


class Decoder(Protocol):
    """Turns the messages of one answer into news. Runs in the socket's read callback: synchronous and lean."""

    def decode(self, message: bytes) -> Delta | None:
        """News, or None for a message without any. Raises EngineError for an end that is not a finish."""


class EngineProtocol(Protocol):
    """One engine, spoken to in one protocol. Made anew for every probe: it remembers what that engine said."""

    name: ClassVar[ProtocolName]
    service: ClassVar[str]
    """The gRPC service that stands for the protocol, for people."""
    generate_path: ClassVar[str]
    generate_canary: ClassVar[bytes]
    """A request without a prompt: every engine that can generate refuses it, so it shows whether the method exists."""
    kv_events_path: ClassVar[str | None]
    """SubscribeKvEvents, where the protocol has it."""

    def __init__(self, link: Link, target: Target, settings: ProbeSettings) -> None: ...

    async def recognise(self) -> bool:
        """Is this protocol spoken here?

        Raises LinkError when nobody can tell, ProbeFailed when it is spoken but by nobody who takes requests.
        """

    async def health(self) -> None:
        """Raises ProbeFailed when the engine cannot serve now."""

    async def describe(self) -> EngineInfo: ...

    def encode(self, request: EngineRequest) -> bytes: ...

    def metadata(self, request: EngineRequest) -> Sequence[tuple[str, str]]: ...

    def decoder(self, request: EngineRequest) -> Decoder:
        """For the answer to this request: where it asks for no log probabilities, nothing is paid for them."""

    async def embed(self, request_id: str, token_ids: Sequence[int], timeout: float) -> Embedding:
        """Raises LinkError, EngineError, and as `encode` does for what is no token."""

    def failure(self, error: LinkError) -> EngineError: ...

    async def abort(self, request_id: str) -> None: ...

    async def load(self) -> Mapping[int, EngineLoad]: ...

    async def tokenizer_files(self) -> Mapping[str, bytes]: ...
