"""Messages of vLLM's servicer into news, against what the real engine sent."""

from __future__ import annotations

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from enginehouse.adapters.engines.vllm_stream import VllmDecoder
from enginehouse.domain.errors import EngineBroken, EngineFailed
from enginehouse.domain.stream import Delta, Finish
from tests.unit.adapters.engines.doubles import golden, messages

GOLDEN = golden("vllm-0.32.0")


def chunk(*ids: int) -> bytes:
    made = pb.GenerateStreamChunk(token_ids=ids, prompt_tokens=5, completion_tokens=len(ids), cached_tokens=3)
    return pb.GenerateResponse(chunk=made).SerializeToString()


def complete(*ids: int, reason: str = "stop") -> bytes:
    made = pb.GenerateComplete(
        output_ids=ids, finish_reason=reason, prompt_tokens=5, completion_tokens=len(ids), cached_tokens=3
    )
    return pb.GenerateResponse(complete=made).SerializeToString()


def run(*sent: bytes) -> tuple[list[int], Finish | None]:
    decoder = VllmDecoder()
    deltas = [delta for delta in map(decoder.decode, sent) if delta is not None]
    return [token for delta in deltas for token in delta.token_ids], deltas[-1].finish if deltas else None


def test_the_last_delta_that_comes_again_with_the_end_is_taken_once() -> None:
    assert run(chunk(7), chunk(8), chunk(9), complete(9)) == ([7, 8, 9], Finish.STOP)
    assert run(chunk(7), chunk(7), complete(7)) == ([7, 7], Finish.STOP)
    assert run(chunk(7), complete(7, reason="length")) == ([7], Finish.LENGTH)
    assert run(chunk(7), chunk(8, 9), complete(8, 9)) == ([7, 8, 9], Finish.STOP)


def test_g6_ids_that_come_only_with_the_end_are_kept() -> None:
    assert run(complete(7, 8, 9, 2)) == ([7, 8, 9, 2], Finish.STOP)
    assert run(chunk(7), complete(7, 8, 9)) == ([7, 8, 9], Finish.STOP)  # the whole answer
    assert run(chunk(7), chunk(8), complete(9)) == ([7, 8, 9], Finish.STOP)


def test_g6_the_count_in_a_chunk_is_of_the_delta_and_plays_no_part() -> None:
    decoder = VllmDecoder()
    assert decoder.decode(chunk(7, 8)) == Delta([7, 8], None, 5, 3)
    assert decoder.decode(chunk(9)) == Delta([9])
    assert decoder.decode(complete(9)) == Delta((), Finish.STOP, 5, 3)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_abort_that_we_did_not_ask_for_is_a_failure(reason: str) -> None:
    decoder = VllmDecoder()
    decoder.decode(chunk(7))
    assert decoder.decode(chunk()) is None
    with pytest.raises(EngineFailed):
        decoder.decode(complete(reason=reason))


@pytest.mark.parametrize("reason", ["", "rainbow"])
def test_g5_an_end_without_a_known_reason_is_broken(reason: str) -> None:
    with pytest.raises(EngineBroken):
        VllmDecoder().decode(complete(7, reason=reason))


def test_a_message_of_neither_kind_is_silent() -> None:
    assert VllmDecoder().decode(b"") is None


STREAMED = [
    name
    for name, case in GOLDEN.items()
    if case["rpc"] == "Generate" and len(case["responses_hex"]) > 1 and not name.startswith(("n 2", "abort", "client"))
]


@pytest.mark.parametrize("name", STREAMED)
def test_recorded_answers(name: str) -> None:
    sent = messages(GOLDEN[name])
    parsed = [pb.GenerateResponse.FromString(message) for message in sent]
    ids, finish = run(*sent)
    assert ids == [token for message in parsed for token in message.chunk.token_ids]
    assert finish is Finish(parsed[-1].complete.finish_reason)


def test_the_recorded_abort_ends_in_a_failure() -> None:
    *begun, _, last = messages(GOLDEN["abort while streaming"])
    decoder = VllmDecoder()
    assert all(decoder.decode(message) for message in begun)
    with pytest.raises(EngineFailed):
        decoder.decode(last)
