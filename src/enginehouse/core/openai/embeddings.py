"""`/v1/embeddings`: a body to inputs, and vectors to a body."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from enginehouse.core.api.body import Body, inputs
from enginehouse.domain.errors import ContextLengthExceeded, EngineBroken, InvalidRequest


class EmbeddingFields(Struct, kw_only=True, frozen=True):
    """`POST /v1/embeddings`."""

    model: Annotated[str, Meta(min_length=1)]
    input: Any  # `inputs` checks it
    encoding_format: Literal["float", "base64"] | None = None
    add_special_tokens: bool | None = None
    user: str | None = None


EMBEDDINGS: Final = Body(
    EmbeddingFields,
    harmless={"dimensions": (), "priority": (0,), "truncate_prompt_tokens": ()},
    large=frozenset({"input"}),
    ids=frozenset({"input"}),
    reasons={"dimensions": "engines do not say whether a model's vectors can be cut short"},
)


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A body of `/v1/embeddings`."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    as_base64: bool = False
    add_special_tokens: bool = True


def parse_embedding(body: bytes) -> EmbeddingRequest:
    """Raises InvalidRequest."""
    fields = EMBEDDINGS.read(body)
    return EmbeddingRequest(
        fields.model,
        inputs(fields.input, "input"),
        fields.encoding_format == "base64",
        fields.add_special_tokens is not False,
    )


def check_input(token_ids: Sequence[int], longest: int | None, vocab_size: int) -> None:
    """Whether a model takes this. longest: tokens of an input, where an engine says it. Raises InvalidRequest."""
    if not token_ids:
        raise InvalidRequest("an input has no tokens; each must have at least one", param="input")
    if longest is not None and len(token_ids) > longest:
        raise ContextLengthExceeded(
            f"an input has {len(token_ids)} tokens; this model takes at most {longest}", param="input"
        )
    if max(token_ids) >= vocab_size:
        raise InvalidRequest(
            f"an input has the token id {max(token_ids)}; this model's token ids end at {vocab_size - 1}",
            param="input",
        )


def embedding_answer(model: str, vectors: Sequence[Sequence[float]], prompt_tokens: int, as_base64: bool) -> bytes:
    """The body. Raises EngineBroken for a vector with a number in it that is none."""
    for vector in vectors:
        if not all(map(isfinite, vector)):
            raise EngineBroken("the engine gave an embedding with values that are no numbers")
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if as_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})


def _base64(vector: Sequence[float]) -> str:
    """As little-endian float32, which is what engines compute with."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
