"""The seams between use cases and the outside: what service needs of adapters, and adapters of each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from enginehouse.domain.engine import EngineInfo, KvEventSource, Target
from enginehouse.domain.errors import EngineError
from enginehouse.domain.feed import FeedEvent, FeedStatus
from enginehouse.domain.kv import KvBatch
from enginehouse.domain.link import LinkError
from enginehouse.domain.request import EngineRequest
from enginehouse.domain.stream import Delta, Embedding

# The link: HTTP/2 and gRPC, no engine knowledge.


class Call(Protocol):
    """One open call. All methods are synchronous and harmless after the end."""

    def pause(self) -> None:
        """Grant no more window on this stream: the engine feels it. What is buffered already may still arrive."""

    def resume(self) -> None:
        """Grant window again."""

    def cancel(self) -> None:
        """Reset the stream (the engine aborts the request). The sink hears nothing any more."""


class MessageSink(Protocol):
    """Where a server-streaming call delivers, from inside the loop's read callback: never block, never raise."""

    def on_message(self, message: bytes) -> None: ...

    def on_end(self, error: LinkError | None) -> None:
        """Exactly once, unless cancelled. None: status OK."""


class Link(Protocol):
    """HTTP/2 to one engine: some connections, opened when needed."""

    def stream(
        self,
        path: str,
        message: bytes,
        sink: MessageSink,
        *,
        metadata: Sequence[tuple[str, str]] = (),
        timeout: float | None = None,
        on_answered: Callable[[], None] | None = None,
    ) -> Call:
        """Start a server-streaming call, e.g. on `/vllm.Inference/GenerateStream`. Returns at once.

        Failures reach the sink, never before this method has returned.

        timeout: seconds, sent as grpc-timeout and held here; None: no deadline.
        on_answered: called once when the peer takes the call on, before any message: its header fields have come,
        and are no refusal.
        """

    async def unary(
        self, path: str, message: bytes, *, timeout: float, metadata: Sequence[tuple[str, str]] = ()
    ) -> bytes:
        """One message in, one out. Raises LinkError."""

    def on_lost(self, callback: Callable[[LinkError], None]) -> None:
        """Call back whenever a connection of this link breaks or cannot be made.

        Not when an idle connection ends in good order (GOAWAY NO_ERROR), not on close().
        """

    async def close(self) -> None:
        """End every connection; open calls end with CLOSED."""


# The engine: tokens in, tokens out, whatever the protocol.


class DeltaSink(Protocol):
    """Where an engine's answer is delivered, from inside the loop's read callback: never block, never raise."""

    def on_delta(self, delta: Delta) -> None: ...

    def on_end(self, error: EngineError | None) -> None:
        """Exactly once, unless cancelled. None only after a Delta with a finish."""


class Engine(Protocol):
    """An engine that was probed, with its link."""

    target: Target
    info: EngineInfo
    heard: int
    """Messages of answers that have come from it so far: while that grows it is alive, however late it is elsewhere."""

    def generate(self, request: EngineRequest, sink: DeltaSink) -> Call:
        """Start an answer. Returns at once; nothing reaches the sink before it has returned.

        Cancelling the Call aborts the request at the engine, once, and only while it is open.
        """

    async def embed(self, request_id: str, token_ids: Sequence[int], *, timeout: float) -> Embedding:
        """What an embedding model makes of a prompt. Cancelling it aborts the request at the engine.

        timeout: seconds. Raises EngineError. The engine chooses the rank: no protocol has a field for it.
        """

    async def check(self) -> EngineInfo:
        """Ask for health and read the information again. Raises ProbeFailed when it cannot serve now."""

    async def load(self) -> Mapping[int, EngineLoad]:
        """What the engine itself counts, per rank. Raises EngineError."""

    async def tokenizer_files(self) -> Mapping[str, bytes]:
        """File name to content where the engine hands its tokenizer out; else empty. Raises EngineError."""

    def kv_events(self, sink: KvSink) -> KvSubscription | None:
        """Follow the KV events of all its ranks over its own link; None where the protocol has nothing of the kind."""

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Call back with a reason whenever a connection to the engine breaks or cannot be made."""

    async def close(self) -> None: ...


class EngineLoad(Protocol):
    """Load of one rank as its engine reports it."""

    running: int
    waiting: int
    used_tokens: int | None
    total_tokens: int | None


class Engines(Protocol):
    """Opens engines."""

    async def probe(self, target: Target) -> Engine:
        """Connect, find the protocol (or use the forced one), wait for health, read the information.

        Raises ProbeFailed with a reason that an operator can act on. Cancelling closes what was opened.
        """


# KV-cache events: what engines hold.


class KvSink(Protocol):
    """Where one subscription delivers, from inside the loop's read callback: never block, never raise.

    `rank` is the data-parallel rank that the batch is of. Payloads are decoded later, by `KvSubscription.decode`.
    """

    def on_batch(self, rank: int, seq: int, payload: bytes) -> None:
        """A live batch, in the order of arrival: what was lost on the way shows only in the numbers."""

    def on_replayed(self, rank: int, seq: int, payload: bytes) -> None:
        """A batch that `replay` asked for, ascending, perhaps with holes."""

    def on_replay_end(self, rank: int, *, complete: bool) -> None:
        """The replay is over. complete: the engine said so itself; else it fell silent."""

    def on_connected(self) -> None:
        """Live batches can come from here on (also after each reconnection)."""

    def on_lost(self, reason: str, *, permanent: bool = False) -> None:
        """The connection broke: batches may be missed until `on_connected`. permanent: it is not expected back."""


class KvSubscription(Protocol):
    """One open source of events. All methods are synchronous and harmless after `close`."""

    can_replay: bool

    def decode(self, payload: bytes) -> KvBatch:
        """Raises ValueError for a payload of which nothing can be read."""

    def replay(self, rank: int, start: int) -> None:
        """Ask once for the batches from number `start` on; one replay at a time for each rank."""

    def close(self) -> None:
        """The sink hears nothing any more."""


class KvEvents(Protocol):
    """Opens subscriptions over ZMQ."""

    def subscribe(self, source: KvEventSource, sink: KvSink) -> KvSubscription:
        """Returns at once; nothing reaches the sink before it has returned."""


# Feeds: who should be in the fleet.


class Feed(Protocol):
    """One source of membership."""

    name: str

    async def run(self, post: Callable[[FeedEvent], None]) -> None:
        """Speak until cancelled; a feed that never changes posts once and returns."""

    def status(self) -> FeedStatus: ...


# Text.


class TextDecoder(Protocol):
    """Ids to text for one answer, incrementally and exactly: the joined pieces equal decoding all ids at once."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that is certain now; an unfinished character is held back."""

    def flush(self) -> str:
        """What is still held, at the end."""


class EncodedChat(NamedTuple):
    """A conversation as the model gets it."""

    token_ids: Sequence[int]
    tail: str
    """The end of its text, some hundred characters: whether the answer starts in the middle of something."""


class Tokenizer(Protocol):
    """One model's tokenizer and chat template."""

    digest: str
    """sha256 over the content that decides ids and text (not over paths)."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    async def encode(self, text: str, *, add_special_tokens: bool, at_most: int | None = None) -> Sequence[int]:
        """Token ids. Long texts are encoded off the loop.

        at_most: tokens that fit; what is far above may be refused with ContextLengthExceeded before it is encoded.
        """

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], at_most: int | None = None
    ) -> EncodedChat:
        """Render the chat template and encode it; `at_most` as for encode.

        options: `chat_template_kwargs` and the like. Special tokens only as the template writes them. Raises
        InvalidRequest when the template refuses the messages or there is none.
        """

    def decoder(
        self, *, skip_special_tokens: bool = True, shown: frozenset[str] = frozenset(), continues: bool = False
    ) -> TextDecoder:
        """shown: special tokens that come through as text all the same, because something is written with them.

        continues: the text goes on with another one: a space that it begins with is a space, also where the model's
        decoder drops the one before the first word.
        """

    def token_text(self, token_id: int) -> str:
        """One token alone, special tokens too; what is no whole character becomes U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of text that a token stands for."""

    @property
    def chat_template(self) -> str | None:
        """Its source, where there is one."""


# What is measured.


LegName = Literal["queue", "prefill", "handover", "decode"]
"""The parts of a request that two engines share. `queue` comes before both are chosen; `handover` lies between the two
legs, and may fail by the fault of either."""


class RequestMeter(Protocol):
    """What one client request did. Cheap enough for the hot path; after `end` every method is harmless."""

    def tokens(self, count: int) -> None:
        """This many ids of the answer arrived together."""

    def prompt(self, tokens: int, cached: int = 0) -> None:
        """An engine took the prompt up; `cached` of its tokens came from the engine's cache.

        May be called again when the engine tells later what was cached.
        """

    def decided(self, rule: str, predicted: int) -> None:
        """An engine was chosen, by this rule, and is predicted to have so many tokens of the prompt in its cache."""

    def retried(self, code: str, leg: LegName | None = None) -> None:
        """An attempt failed with nothing sent, and another engine is tried. leg: where, if it had two engines."""

    def leg(self, leg: LegName, seconds: float) -> None:
        """A part ended well: the queue when both engines were chosen, the prefill leg from its dispatch, the hand-over
        from that leg's end to the first token of the answer, the decode leg from there to the end."""

    def leg_failed(self, leg: LegName, code: str) -> None:
        """An attempt on two engines failed in this part, whether or not others are tried."""

    def end(self, status: int, code: str | None = None, *, cut: bool = False) -> None:
        """The first call counts.

        status: HTTP status, 499 when the client went away; code: the error's code; cut: it had part of the answer.
        """


class Meters(Protocol):
    """Where requests are measured."""

    def begin(self, endpoint: str) -> RequestMeter:
        """A request arrived on this path; unknown paths share one name."""
