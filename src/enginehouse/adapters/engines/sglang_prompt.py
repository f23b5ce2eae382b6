"""A prompt's tokens as SGLang's protocol carries them, made once for the two legs of a hand-over.

Making them is most of what it costs to encode a long prompt: a hundred thousand take milliseconds, in which the loop
stands still. The two legs leave one right after the other, so that remembering the last one is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from enginehouse._proto import sglang_runtime_v1_pb2 as pb


class Prompts:
    """What the prefill leg has made, until the decode leg takes it."""

    def __init__(self) -> None:
        self._tokens: Sequence[int] | None = None
        self._field = b""

    def for_prefill(self, tokens: Sequence[int]) -> bytes:
        """`input_ids` as a part of a message; the parts of a message are put together by standing together.

        Raises as protobuf does for what is no token.
        """
        field = _field(tokens)
        self._tokens, self._field = tokens, field
        return field

    def for_decode(self, tokens: Sequence[int]) -> bytes:
        """The same, and it is forgotten."""
        field = self._field if tokens is self._tokens else _field(tokens)
        self._tokens, self._field = None, b""
        return field


def _field(tokens: Sequence[int]) -> bytes:
    message = pb.GenerateRequest()
    message.input_ids.extend(tokens)  # in place: half the time of handing them to the constructor
    return message.SerializeToString()
