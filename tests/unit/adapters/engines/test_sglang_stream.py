"""SGLang's messages into news: cumulative and delta, and every trap of the stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginehouse._proto.sglang_runtime_v1_pb2 import GenerateResponse
from enginehouse.adapters.engines.sglang_stream import SglangDecoder
from enginehouse.domain.errors import EngineBroken, EngineFailed, EngineOverloaded, EngineRejected
from enginehouse.domain.stream import Delta, Finish
from tests.unit.adapters.engines.doubles import golden, messages

GOLDEN = golden("sglang-0.5.23")
STOP = {"type": "stop", "matched": 2}


def message(
    ids: list[int], count: int | None, reason: Any = None, *, finished: bool | None = None, **meta: Any
) -> bytes:
    known: dict[str, Any] = {"finish_reason": reason, "id": "r", "prompt_tokens": 9, "cached_tokens": 4, **meta}
    if count is not None:
        known["completion_tokens"] = count
    return GenerateResponse(
        output_ids=ids,
        meta_info={key: json.dumps(value) for key, value in known.items()},
        finished=reason is not None if finished is None else finished,
    ).SerializeToString()


def run(decoder: SglangDecoder, *sent: bytes) -> tuple[list[int], Finish | None]:
    deltas = [delta for delta in map(decoder.decode, sent) if delta is not None]
    return [token for delta in deltas for token in delta.token_ids], deltas[-1].finish if deltas else None


CUMULATIVE = (message([7], 1), message([7, 8], 2), message([7, 8, 8], 3), message([7, 8, 8, 2], 4, STOP))
INCREMENTAL = (message([7], 1), message([8], 2), message([8], 3), message([2], 4, STOP))


@pytest.mark.parametrize("sent", [CUMULATIVE, INCREMENTAL], ids=["cumulative", "incremental"])
@pytest.mark.parametrize("told", [True, False], ids=["flag told", "flag unknown"])
def test_g1_cumulative_and_delta_give_the_same_answer(sent: tuple[bytes, ...], told: bool) -> None:
    decoder = SglangDecoder((sent is INCREMENTAL) if told else None)
    assert run(decoder, *sent) == ([7, 8, 8, 2], Finish.STOP)


def test_g1_a_shrinking_array_does_not_crash_and_repeats_nothing() -> None:
    decoder = SglangDecoder(False)
    assert run(decoder, message([7, 8, 9], 3), message([7], 3), message([7, 8, 9, 10], 4)) == ([7, 8, 9, 10], None)


def test_g1_unknown_flag_is_decided_once_and_kept() -> None:
    decoder = SglangDecoder(None)
    # The second message decides for delta; the third alone would look cumulative (3 ids, count 3 + 3 - 3).
    assert run(decoder, message([7], 1), message([8], 2), message([1, 2, 3], 5)) == ([7, 8, 1, 2, 3], None)
    decoder = SglangDecoder(None)
    assert run(decoder, message([7], 1), message([7, 8], 2), message([7, 8, 9], 4)) == ([7, 8, 9], None)


def test_g1_coalesced_messages_in_both_ways() -> None:
    assert run(SglangDecoder(False), message([7], 1), message([7, 8, 9, 10], 4))[0] == [7, 8, 9, 10]
    assert run(SglangDecoder(True), message([7], 1), message([8, 9, 10], 4))[0] == [7, 8, 9, 10]
    assert run(SglangDecoder(None), message([7, 8], 2), message([9, 10], 4))[0] == [7, 8, 9, 10]


def test_the_list_may_run_ahead_of_the_count_until_the_end() -> None:
    ahead = (message([7], 1), message([7, 8, 9], 2), message([7, 8, 9], 3))
    assert run(SglangDecoder(False), *ahead)[0] == [7, 8, 9]


def test_ids_beyond_the_count_of_the_last_message_are_dropped() -> None:
    last = message([7, 8, 9, 1, 1], 3, {"type": "length", "length": 3})
    assert run(SglangDecoder(False), message([7], 1), last) == ([7, 8, 9], Finish.LENGTH)
    last = message([8, 9], 2, {"type": "length", "length": 2})
    assert run(SglangDecoder(True), message([7], 1), last)[0] == [7, 9]


def test_g6_tokens_in_the_last_message_are_kept() -> None:
    for flag in (True, False, None):
        assert run(SglangDecoder(flag), message([7, 8, 9, 2], 4, STOP)) == ([7, 8, 9, 2], Finish.STOP)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ({"type": "stop", "matched": 7}, Finish.STOP),
        ({"type": "stop", "matched": [7, 8]}, Finish.STOP),
        ({"type": "eos"}, Finish.STOP),
        ({"type": "length", "length": 1}, Finish.LENGTH),
        ("stop", Finish.STOP),
    ],
)
def test_finish_reasons(reason: Any, finish: Finish) -> None:
    assert run(SglangDecoder(False), message([7], 1, reason)) == ([7], finish)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, EngineRejected),
        (429, EngineOverloaded),
        (503, EngineOverloaded),
        (500, EngineFailed),
        (None, EngineFailed),
        (418, EngineFailed),
    ],
)
def test_g4_scheduler_aborts_are_errors_by_their_status(code: int | None, kind: type[Exception]) -> None:
    reason = {"type": "abort", "message": "The request queue is full.", "status_code": code, "err_type": None}
    with pytest.raises(kind):
        SglangDecoder(False).decode(message([], 0, reason))


@pytest.mark.parametrize("kind", ["error", "content_filter", "cancelled"])
def test_other_ends_are_failures(kind: str) -> None:
    with pytest.raises(EngineFailed):
        SglangDecoder(False).decode(message([7], 1, {"type": kind}))


def test_the_abort_message_that_repeats_a_token_adds_none() -> None:
    decoder = SglangDecoder(True)
    seen = [decoder.decode(message([7], 1)), decoder.decode(message([8], 2))]
    with pytest.raises(EngineFailed):
        decoder.decode(message([8], 2, {"type": "abort", "message": "Aborted", "status_code": None}))
    assert [list(delta.token_ids) for delta in seen if delta is not None] == [[7], [8]]


def test_g5_finished_without_a_reason_is_broken() -> None:
    for last in (
        GenerateResponse(finished=True).SerializeToString(),
        message([7, 8], 2, None, finished=True),
        message([7, 8], 2, {"no": "type"}),
    ):
        decoder = SglangDecoder(False)
        decoder.decode(message([7], 1))
        with pytest.raises(EngineBroken):
            decoder.decode(last)


def test_prompt_and_cached_tokens_come_with_the_first_and_the_last_news() -> None:
    decoder = SglangDecoder(False)
    assert decoder.decode(message([7], 1)) == Delta([7], None, 9, 4)
    assert decoder.decode(message([7, 8], 2)) == Delta([8])
    assert decoder.decode(message([7, 8, 2], 3, STOP)) == Delta([2], Finish.STOP, 9, 4)


def test_messages_without_news_are_silent() -> None:
    decoder = SglangDecoder(True)
    assert decoder.decode(message([], 0)) is None
    assert decoder.decode(message([7], 1)) is not None
    assert decoder.decode(message([7], 1)) is None  # a repetition: the count says that nothing is new


@pytest.mark.parametrize("case", ["stream", "stop token", "duplicate id, the first", "prompt logprobs"])
@pytest.mark.parametrize("flag", [False, None])
def test_recorded_answers(case: str, flag: bool | None) -> None:
    sent = messages(GOLDEN[case])
    want = list(GenerateResponse.FromString(sent[-1]).output_ids)
    ids, finish = run(SglangDecoder(flag), *sent)
    assert ids == want
    assert finish is (Finish.STOP if case == "stop token" else Finish.LENGTH)
