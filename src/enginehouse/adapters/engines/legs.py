"""The two requests of a hand-over, in the terms that engines take."""

from __future__ import annotations

import json
from dataclasses import replace

from google.protobuf.struct_pb2 import Struct

from enginehouse.domain.handover import Fetch, Keep, Rendezvous
from enginehouse.domain.request import EngineRequest, Sampling

KEEP_JSON = (
    '{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    '"remote_host":null,"remote_port":null}'
)
"""vLLM's `kv_transfer_params` for the prefill engine."""


def _keep_struct() -> bytes:
    made = Struct()
    made.update(json.loads(KEEP_JSON))
    return made.SerializeToString(deterministic=True)


KEEP_STRUCT = _keep_struct()
"""The same as the native protocol carries it."""


def as_sent(request: EngineRequest) -> EngineRequest:
    """The request itself, or for a prefill engine one that generates a single token, however the rest spells length.

    The user's sampling stays: SGLang's decode engine takes over the token that was drawn here, with how likely it was
    and as far as it goes into what the answer is constrained to; and vLLM finds fault with it before anything was
    computed. vLLM's decode engine draws all tokens itself, so that its prefill engine is spared what is only of use to
    the answer; the minimum of one keeps an end-of-sequence token away, so that the token ends for its length, without
    which some releases keep nothing.
    """
    if not request.prefill_only:
        least, most = request.sampling.min_tokens, request.max_tokens
        if least > most and isinstance(request.handover, Fetch):  # sent for its first token only, to free what was kept
            return replace(request, sampling=replace(request.sampling, min_tokens=most))
        return request
    sampling, least = request.sampling, 1 if isinstance(request.handover, Keep) else 0
    if sampling.stop_token_ids or sampling.ignore_eos or sampling.min_tokens != least:  # seldom; a copy takes its time
        sampling = replace(sampling, stop_token_ids=(), ignore_eos=False, min_tokens=least)
    if isinstance(request.handover, Keep) and _is_special(sampling):
        sampling = replace(sampling, logit_bias=(), constraint=None, logprobs=None, prompt_logprobs=None)
    rank = None if isinstance(request.handover, Rendezvous) else request.rank  # another than the room's breaks it
    return replace(request, max_tokens=1, sampling=sampling, rank=rank)


def _is_special(sampling: Sampling) -> bool:
    return bool(sampling.logit_bias) or any(
        value is not None for value in (sampling.constraint, sampling.logprobs, sampling.prompt_logprobs)
    )


def bracketed(host: str) -> str:
    """A host as it stands before a port. SGLang's releases put the two together with or without adding brackets to an
    IPv6 address, and none adds them twice."""
    return f"[{host}]" if ":" in host else host
