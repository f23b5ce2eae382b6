"""How requests are spread: the policy, what it weighs, and what may come before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PolicyName = Literal["round-robin", "random", "least-loaded", "power-of-two", "kv"]
AffinityKey = Literal["off", "header", "user", "prompt-cache-key"]


@dataclass(frozen=True)
class RoutingSettings:
    """How requests are spread."""

    policy: PolicyName = "least-loaded"
    """How an engine is chosen: `least-loaded` takes the one with the fewest requests in flight, then the fewest prompt
    tokens, at random among equals, so that several frontends do not all choose the same; `power-of-two` the better of
    two random ones; `round-robin` and `random` as they say; `kv` the one where the request costs least, counting what
    its KV cache holds of the prompt and the work that it has."""
    max_requests_per_engine: int = 0
    """Most requests in flight on one engine rank; above it requests get 429. 0: no limit, the engines queue."""
    affinity: AffinityKey = "off"
    """Requests of one session go to one engine rank, whatever the policy, while it is not overloaded: the session is
    named by a header, by `user` or by `prompt_cache_key`."""
    affinity_load_factor: float = 1.25
    """A session's rank is overloaded when it has this many times the mean number of requests in flight, and one more:
    then the policy decides."""
    kv_prefill_weight: float = 2.5
    """Policy `kv`: cost of a token of the prompt that the engine has to compute because its cache does not hold it.
    More than one that waits in its queue: all who come later wait for it too, and where another engine has it already,
    a second copy takes the room of something else."""
    kv_queue_weight: float = 1.0
    """Policy `kv`: cost of a prompt token that the engine still has to compute for requests sent there before: the unit
    of all costs, as long as it is 1."""
    kv_decode_weight: float = 0.05
    """Policy `kv`: cost of a prompt token of any request in flight there, which slows each step of the engine."""
    kv_request_weight: float = 250.0
    """Policy `kv`: cost of any request in flight there, beside its tokens: it too slows each step. It is what spreads
    short prompts that begin alike, where prefill is so quick that none ever waits for it."""
    kv_wait_weight: float = 20000.0
    """Policy `kv`: the tokens that an engine prefills in the time that one answer takes. A rank with all the requests
    or tokens that it can work on costs this much for each time that its whole work has to end before this request."""
    kv_transfer_weight: float = 0.05
    """Policy `kv`, where prefill and decode are apart: cost of a token of the prompt that has to be passed to
    a decode engine because its cache does not hold it."""
    kv_temperature: float = 0.0
    """Policy `kv`: 0 takes the cheapest, at random among those within 1/64 of the prompt's tokens of it. Above 0 all
    may be chosen: a rank that costs this share of the prompt's tokens more is chosen 1/e times as often."""
