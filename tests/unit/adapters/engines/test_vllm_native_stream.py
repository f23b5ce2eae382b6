"""Messages of vLLM's native frontend into news, against what the real binary sent."""

from __future__ import annotations

import pytest

from enginehouse._proto import vllm_native_pb2 as pb
from enginehouse.adapters.engines.vllm_native_stream import VllmNativeDecoder
from enginehouse.domain.errors import EngineBroken, EngineFailed
from enginehouse.domain.stream import Delta, Finish
from tests.unit.adapters.engines.doubles import golden, messages

GOLDEN = golden("vllm-native-0.33.0")
PROMPT = pb.GenerateResponse(prompt_info=pb.PromptInfo(num_prompt_tokens=5)).SerializeToString()


def output(*ids: int, reason: int | None = None, cached: int = 3) -> bytes:
    made = pb.Output(token_ids=ids, num_tokens=len(ids))
    if reason is not None:
        made.finish_info.finish_reason = reason  # type: ignore[assignment]
        made.finish_info.cached_tokens = cached
    return pb.GenerateResponse(output=made).SerializeToString()


def test_the_first_message_tells_of_the_prompt_only() -> None:
    decoder = VllmNativeDecoder()
    assert decoder.decode(PROMPT) is None
    assert decoder.decode(output(7)) == Delta([7], None, 5)
    assert decoder.decode(output(8)) == Delta([8])


def test_g6_tokens_in_the_last_message_are_kept() -> None:
    decoder = VllmNativeDecoder()
    decoder.decode(PROMPT)
    assert decoder.decode(output(7, 8, 9, 2, reason=pb.STOP)) == Delta([7, 8, 9, 2], Finish.STOP, 5, 3)


def test_no_cached_tokens_is_a_number_and_unsaid_is_none() -> None:
    assert VllmNativeDecoder().decode(output(7, reason=pb.LENGTH, cached=0)) == Delta([7], Finish.LENGTH, None, 0)
    made = pb.Output(token_ids=[7], num_tokens=1, finish_info=pb.FinishInfo(finish_reason=pb.LENGTH))
    unsaid = pb.GenerateResponse(output=made).SerializeToString()
    assert VllmNativeDecoder().decode(unsaid) == Delta([7], Finish.LENGTH)


def test_an_abort_that_we_did_not_ask_for_is_a_failure() -> None:
    with pytest.raises(EngineFailed):
        VllmNativeDecoder().decode(output(reason=pb.ABORTED))


def test_g5_an_end_of_an_unknown_kind_is_broken_and_an_unfinished_one_no_end() -> None:
    with pytest.raises(EngineBroken):
        VllmNativeDecoder().decode(output(7, reason=9))
    assert VllmNativeDecoder().decode(output(7, reason=pb.NOT_FINISHED)) == Delta([7])


def test_tokens_without_their_ids_are_broken() -> None:
    made = pb.GenerateResponse(output=pb.Output(text="so", num_tokens=1)).SerializeToString()
    with pytest.raises(EngineBroken):
        VllmNativeDecoder().decode(made)


STREAMED = [
    name
    for name, case in GOLDEN.items()
    if case["rpc"] == "GenerateStream"
    and len(case["responses_hex"]) > 1
    and name not in ("defaults", "client cancel", "Abort while streaming")
]


@pytest.mark.parametrize("name", STREAMED)
def test_recorded_answers(name: str) -> None:
    sent = messages(GOLDEN[name])
    parsed = [pb.GenerateResponse.FromString(message) for message in sent]
    decoder = VllmNativeDecoder()
    deltas = [delta for delta in map(decoder.decode, sent) if delta is not None]
    ids = [token for delta in deltas for token in delta.token_ids]
    assert ids == [token for message in parsed for token in message.output.token_ids]
    assert len(ids) == parsed[-1].output.finish_info.num_output_tokens
    assert deltas[0].prompt_tokens == parsed[0].prompt_info.num_prompt_tokens
    assert deltas[-1].finish is (Finish.STOP if name.startswith("stop") and "never" not in name else Finish.LENGTH)


def test_the_recorded_abort_ends_in_a_failure() -> None:
    *begun, last = messages(GOLDEN["Abort while streaming"])
    decoder = VllmNativeDecoder()
    for message in begun:
        decoder.decode(message)
    with pytest.raises(EngineFailed):
        decoder.decode(last)


def test_an_answer_without_ids_is_not_taken_for_an_empty_one() -> None:
    decoder = VllmNativeDecoder()
    prompt, text, *_ = messages(GOLDEN["defaults"])  # text was asked for, and no ids
    assert decoder.decode(prompt) is None
    with pytest.raises(EngineBroken):
        decoder.decode(text)
