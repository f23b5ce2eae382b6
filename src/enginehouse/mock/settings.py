"""What one mock engine is and how it misbehaves: every option of `enginehouse mock`."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from enginehouse.domain.engine import ProtocolName, Role
from enginehouse.domain.link import GrpcStatus
from enginehouse.mock.handover.settings import HandoverFaults, HandoverOptions


@dataclass(frozen=True, kw_only=True)
class Faults(HandoverFaults):
    """How the engine misbehaves now. The control file changes these while it runs; 0, false and empty: well-behaved."""

    healthy: bool = True
    """What health calls and the state stream say. Requests are still taken, as from an engine that lies."""
    never_answer: bool = False
    """Take requests and say nothing: they wait in the queue for ever, other calls go on working."""
    refuse: str = ""
    """Name of the gRPC status (UNAVAILABLE, RESOURCE_EXHAUSTED, INTERNAL, …) that every new request ends with."""
    reject_status: int = 0
    """HTTP-like code (400, 429, 503, …) of the engine's own admission refusal, in the protocol's own shape."""
    stall_after_tokens: int = 0
    """Go silent on a request once it has this many tokens; its stream stays open."""
    error_after_tokens: int = 0
    """Fail a request with an internal error once it has this many tokens."""
    fail_constrained: bool = False
    """Fail what is to be held to a constraint with an internal error before its first token, as engines do whose
    grammar library leaves no token. Other requests are served."""
    vanish_after_tokens: int = 0
    """End a request's stream with status OK and no terminal message once it has this many tokens."""
    die_after_tokens: int = 0
    """Die like a killed process once this many tokens were made over all requests since the fault was set."""
    say: str = ""
    """What it says instead of its words, whatever it is asked; then it ends. Special tokens are written as they are."""
    say_to: str = ""
    """JSON object of such texts by a part of the prompt's text. The first whose part the prompt holds counts, before
    `say`."""
    loras: str = ""
    """Names of the adapters that it has loaded, with commas between them. Not for vLLM's servicer, which has none."""
    prefill_hold: bool = False
    """Prefills that have begun do not end: a request stays open, admitted and without a first token."""
    kv_lies: bool = False
    """Requests hit nothing in the prefix cache, whatever it and its events say."""
    kv_silent: bool = False
    """KV events are lost: they get no number, neither subscribers nor a replay learn of them."""
    kv_drop_batches: int = 0
    """So many batches of KV events from now on, per rank, have a number and are not sent. A replay has them."""
    kv_drop_for_ever: bool = False
    """What `kv_drop_batches` drops is missing from replays too."""
    kv_garbage_batches: int = 0
    """So many batches of KV events from now on, per rank, cannot be decoded."""
    kv_malformed: bool = False
    """Each batch of KV events begins with one that makes no sense."""
    kv_restarts: int = 0
    """Each change of this number restarts the publishers of KV events: from number 0, with nothing to replay."""
    kv_restart_forgets: bool = False
    """Such a restart also empties the prefix caches, without a word."""
    kv_buffer_batches: int = 10_000
    """Batches of KV events that a replay can go back, per rank; fewer than there are cuts the oldest."""
    kv_replay_mute: bool = False
    """Requests for a replay get no answer."""
    kv_replay_endless: bool = False
    """Replays come without their end marker."""

    def __post_init__(self) -> None:
        if self.kv_buffer_batches < 0:
            raise ValueError("kv_buffer_batches must not be negative")
        if self.say_to and not _texts(self.say_to):
            raise ValueError("say_to must be a JSON object of texts")
        if self.loras and not all(self.adapters):
            raise ValueError("loras must be names with commas between them")
        if self.refuse and self.refuse not in GrpcStatus.__members__:
            raise ValueError(f"refuse: {self.refuse!r} is not the name of a gRPC status")

    @property
    def adapters(self) -> tuple[str, ...]:
        """Those that are loaded."""
        return tuple(self.loras.split(",")) if self.loras else ()


@dataclass(frozen=True, kw_only=True)
class MockSettings(Faults, HandoverOptions):
    """One mock engine."""

    protocol: ProtocolName = ProtocolName.VLLM
    """Which gRPC contract it serves."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 0
    """Port to listen on; 0 takes a free one, told in the line that says it is listening."""
    model: str = "mock"
    """Served model name."""
    model_path: str = ""
    """Folder with tokenizer.json and its companions; empty: the small tokenizer that comes with the program."""
    role: Role = Role.AGGREGATED
    """Prefill or decode is reported where the protocol can (SGLang), and an engine of SGLang works only so."""
    tokens_per_second: float = 40.0
    """Decode speed of each stream. All streams advance in one step, as in a real engine. 0: as fast as it is read."""
    prefill_tokens_per_second: float = 0.0
    """Uncached prompt tokens that one rank computes in a second; 0: prefill takes no time."""
    block_size: int = 16
    """Tokens in one block of the prefix cache."""
    kv_blocks: int = 10_000
    """Blocks that the prefix cache of one rank holds; the least recently used go first."""
    hash_seed: str = ""
    """Engines of different seeds know the same blocks by different hashes."""
    info_block_size: int = 0
    """Block size that the engine tells of itself, whatever its KV events say. 0: the true one."""
    kv_events_port: int | None = None
    """ZMQ port on which rank 0 publishes KV events, rank n on the n-th after it; 0 takes free ones. Not given: none."""
    kv_replay_port: int | None = None
    """Port on which rank 0 replays them, rank n on the n-th after it; 0 takes free ones. Not given: none."""
    kv_topic: str = ""
    """Topic of the events."""
    kv_events_old: bool = False
    """Events as engines encoded them before tagged maps, replays of three frames, SGLang told by its options alone."""
    kv_unreachable: bool = False
    """Events are announced, and nobody listens on their ports."""
    ranks: int = 1
    """Data-parallel ranks, each with its own queue and cache."""
    max_running: int = 256
    """Requests that one rank works on at once; more wait in its queue."""
    max_waiting: int = 0
    """Length of that queue; beyond it a request is refused as overload. 0: no limit."""
    context_length: int = 32_768
    """Tokens of prompt and answer together."""
    embeds: bool = False
    """It serves a model that makes embeddings, and generates nothing. Not for the native vLLM, which has no call."""
    embedding_size: int = 16
    """Numbers in an embedding."""
    old_release: bool = False
    """SGLang: as 0.5.16 was, without what came later: guided_decoding, priorities, the state stream."""
    grammar_backend: str = "xgrammar"
    """SGLang: what it says of this option; `none`: it cannot hold answers to anything."""
    priority_scheduling: bool = False
    """SGLang: it says that it heeds priorities."""
    incremental: bool = False
    """SGLang: stream deltas (its --incremental-streaming-output) instead of everything so far in each message."""
    eos_after: int = 0
    """Make EOS the n-th token of an answer, unless the request ignores it. 0: answers end by length or stop token."""
    listen_delay: float = 0.0
    """Seconds until the port opens."""
    mute: float = 0.0
    """Seconds after that in which connections are accepted and nothing is answered."""
    warmup: float = 0.0
    """Seconds after that in which health says no."""
    shutdown_grace: float = 0.0
    """Seconds that running streams get after SIGTERM before they are cut."""
    control: str = ""
    """JSON file of faults (names as here), read again whenever it changes."""
    log: str = ""
    """File for one JSON line per event as the engine saw it: request, abort, end; faults when it has read its file; and
    of hand-overs leg, knock, met, passed, leg_failed, lease, lease_released, lease_expired."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embeds and self.protocol is ProtocolName.VLLM_NATIVE:
            raise ValueError("embeds: vllm-native has no call for embeddings")
        if self.loras and self.protocol is ProtocolName.VLLM:
            raise ValueError("loras: vllm has no field for adapters")
        for name in ("ranks", "max_running", "block_size", "context_length", "embedding_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.kv_events_port is None and self.kv_replay_port is not None:
            raise ValueError("kv_replay_port needs kv_events_port")
        for name in (
            "tokens_per_second",
            "prefill_tokens_per_second",
            "transfer_tokens_per_second",
            "kv_blocks",
            "info_block_size",
            "lease",
            "bootstrap_timeout",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    @property
    def told_block_size(self) -> int:
        """What the engine's information says."""
        return self.info_block_size or self.block_size

    def faults(self) -> Faults:
        """The faults that the engine starts with."""
        return Faults(**{field.name: getattr(self, field.name) for field in fields(Faults)})


def _texts(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and all(isinstance(value, str) for value in found.values())


_FAULT_TYPES = get_type_hints(Faults)


def read_faults(values: dict[str, Any], base: Faults) -> Faults:
    """`base` with what a control file sets. Raises ValueError for a name or a type that is not a fault's."""
    known = {field.name: getattr(base, field.name) for field in fields(Faults)}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{name!r} is not a fault; known are {', '.join(known)}")
        if type(value) is not _FAULT_TYPES[name]:
            raise ValueError(f"{name} must be of type {_FAULT_TYPES[name].__name__}, not {value!r}")
        known[name] = value
    return Faults(**known)
