"""Log probabilities out of each protocol's messages: one for each new token, whatever is repeated, merged or late."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginehouse._proto import sglang_runtime_v1_pb2 as sglang
from enginehouse._proto import vllm_native_pb2 as native
from enginehouse.adapters.engines.likely import FLOOR, sound
from enginehouse.adapters.engines.protocol import Decoder
from enginehouse.adapters.engines.sglang_logprobs import SglangLogprobDecoder
from enginehouse.adapters.engines.vllm_logprobs import VllmLogprobDecoder, to_ask
from enginehouse.adapters.engines.vllm_native_logprobs import VllmNativeLogprobDecoder
from enginehouse.domain.errors import EngineBroken
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Delta, Finish, TokenLogprob
from tests.unit.adapters.engines.doubles import golden, messages

PROMPT = [300, 337, 374]


def asked(own: int | None = None, prompt: int | None = None, tokens: Sequence[int] = PROMPT) -> EngineRequest:
    return EngineRequest("0" * 32, tokens, 9, Sampling(logprobs=own, prompt_logprobs=prompt))


def run(decoder: Decoder, *sent: bytes) -> list[Delta]:
    deltas = [delta for delta in map(decoder.decode, sent) if delta is not None]
    for delta in deltas:
        if delta.logprobs is not None:
            assert [one.token_id for one in delta.logprobs] == list(delta.token_ids)
    return deltas


def told(deltas: Sequence[Delta]) -> list[TokenLogprob]:
    return [one for delta in deltas for one in delta.logprobs or ()]


def near(token: int, logprob: float, *top: tuple[int, float]) -> TokenLogprob:
    """Numbers as float32 carries them."""
    return TokenLogprob(token, _single(logprob), tuple((other, _single(its)) for other, its in top))


def _single(value: float) -> float:
    return native.CandidateToken(logprob=value).logprob


# What real servers sent.


def test_o10_vllms_own_tokens_and_the_most_likely_ones_without_the_repeated_end() -> None:
    sent = messages(golden("vllm-0.32.0")["logprobs 3"])
    assert told(run(VllmLogprobDecoder(asked(2)), *sent)) == [
        near(4324, -6.8151288, (4324, -6.8151288), (4867, -7.2057538)),
        near(4444, -6.85646, (4444, -6.85646), (5713, -7.16114759)),
        near(6252, -6.75013113, (6252, -6.75013113), (5895, -7.10950613)),
    ]
    assert [len(one.top) for one in told(run(VllmLogprobDecoder(asked(3)), *sent))] == [3, 3, 3]


def test_o10_a_token_drawn_though_unlikely_is_not_among_the_most_likely() -> None:
    sent = messages(golden("vllm-0.32.0")["logprobs 3, sampled token not among them"])
    assert told(run(VllmLogprobDecoder(asked(2)), *sent)) == [
        near(3723, -9.19037247, (4324, -6.8151288), (4867, -7.2057538)),
        near(6085, -9.93281078, (2154, -6.78437328), (6208, -6.97187328)),
    ]


def test_o10_vllm_zero_is_the_tokens_own_only() -> None:
    deltas = run(VllmLogprobDecoder(asked(0)), *messages(golden("vllm-0.32.0")["logprobs 0"]))
    assert told(deltas) == [near(4324, -6.8151288), near(4444, -6.85646)]
    assert (deltas[-1].finish, deltas[-1].logprobs) == (Finish.LENGTH, [])


def test_o10_vllms_prompt() -> None:
    sent = messages(golden("vllm-0.32.0")["prompt_logprobs 3 stream false"])
    (delta,) = run(VllmLogprobDecoder(asked(None, 2)), *sent)
    assert delta.logprobs is None
    assert delta.prompt_logprobs == [
        None,
        near(337, -9.00620461, (6344, -6.84604788), (681, -6.87729788)),
        near(374, -8.91784477, (6344, -6.62878227), (455, -6.83190727)),
    ]


def test_o10_sglang_accumulates_its_lists_too() -> None:
    sent = messages(golden("sglang-0.5.23")["logprobs"])
    for flag in (False, None):
        assert told(run(SglangLogprobDecoder(flag, asked(2)), *sent)) == [
            TokenLogprob(7451, -2.53125, ((7451, -2.53125), (7452, -3.53125))),
            TokenLogprob(7670, -0.28125, ((7670, -0.28125), (7671, -1.28125))),
        ]
    assert [one.top for one in told(run(SglangLogprobDecoder(False, asked(1)), *sent))] == [
        ((7451, -2.53125),),
        ((7670, -0.28125),),
    ]
    assert [one.top for one in told(run(SglangLogprobDecoder(False, asked(0)), *sent))] == [(), ()]


def test_o10_sglangs_prompt() -> None:
    sent = messages(golden("sglang-0.5.23")["prompt logprobs"])
    (delta,) = run(SglangLogprobDecoder(False, asked(None, 1)), *sent)
    assert delta.logprobs is None
    assert delta.prompt_logprobs == [
        None,
        TokenLogprob(337, -1.5, ((337, -1.5),)),
        TokenLogprob(374, -2.65625, ((374, -2.65625),)),
    ]
    (delta,) = run(SglangLogprobDecoder(False, asked(0, 0)), *sent)
    assert delta.prompt_logprobs == [None, TokenLogprob(337, -1.5), TokenLogprob(374, -2.65625)]
    assert delta.logprobs == [TokenLogprob(7097, -0.5625)]


def test_o10_the_native_engines_candidates() -> None:
    sent = messages(golden("vllm-native-0.33.0")["candidates 2"])
    assert told(run(VllmNativeLogprobDecoder(asked(2)), *sent)) == [
        TokenLogprob(7451, -2.53125, ((7451, -2.53125), (7452, -3.53125))),
        TokenLogprob(7670, -0.28125, ((7670, -0.28125), (7671, -1.28125))),
    ]
    sent = messages(golden("vllm-native-0.33.0")["logprobs only"])
    assert told(run(VllmNativeLogprobDecoder(asked(0)), *sent)) == [
        TokenLogprob(7451, -2.53125),
        TokenLogprob(7670, -0.28125),
    ]


# However an answer is cut into messages.

IDS = st.lists(st.integers(0, 50), min_size=1, max_size=12)
CUTS = st.lists(st.integers(1, 4), max_size=12)


def probability(token: int, at: int) -> float:
    return -(token + at) / 32 - 0.0625


def expected(ids: Sequence[int], most: int) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            token,
            probability(token, at),
            tuple((token + n, probability(token, at) - n) for n in range(most)),
        )
        for at, token in enumerate(ids)
    ]


def ends(length: int, cuts: Sequence[int]) -> list[int]:
    """Where the messages of an answer end."""
    found, at = [], 0
    for cut in cuts:
        at += cut
        if at < length:
            found.append(at)
    return [*found, length]


def sglang_message(ids: Sequence[int], first: int, end: int, seen: int, *, last: bool, ahead: int = 0) -> bytes:
    """ahead: so many ids more than there are entries in the lists."""
    entries = [[probability(ids[at], at), ids[at], None] for at in range(first, end)]
    tops = [[[probability(ids[at], at) - n, ids[at] + n, None] for n in range(3)] for at in range(first, end)]
    meta: dict[str, Any] = {
        "finish_reason": {"type": "stop", "matched": 2} if last else None,
        "completion_tokens": seen,
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "output_token_logprobs": entries,
        "output_top_logprobs": tops,
        "input_token_logprobs": [[None, 300, None], [-1.0, 337, None], [-2.0, 374, None]],
        "input_top_logprobs": [None, [[-0.5, 9, None], [-1.0, 337, None]], [[-2.0, 374, None], [-3.0, 8, None]]],
    }
    return sglang.GenerateResponse(
        output_ids=ids[first : end + ahead],
        meta_info={key: json.dumps(value) for key, value in meta.items()},
        finished=last,
    ).SerializeToString()


SGLANGS_PROMPT = [
    None,
    TokenLogprob(337, -1.0, ((9, -0.5), (337, -1.0))),
    TokenLogprob(374, -2.0, ((374, -2.0), (8, -3.0))),
]


def check(deltas: Sequence[Delta], ids: Sequence[int], most: int, prompt: object) -> None:
    assert [token for delta in deltas for token in delta.token_ids] == list(ids)
    assert told(deltas) == expected(ids, most)
    assert [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None] == [prompt]
    assert deltas[-1].finish is Finish.STOP


@given(IDS, CUTS, st.booleans(), st.booleans(), st.integers(0, 3), st.integers(0, 2))
def test_o10_sglang_cut_anyhow(
    ids: list[int], cuts: list[int], incremental: bool, flag_told: bool, most: int, ahead: int
) -> None:
    marks, sent, before = ends(len(ids), cuts), [], 0
    for end in marks:
        last = end == len(ids)
        first = before if incremental else 0
        extra = ahead if flag_told and not incremental and not last else 0
        sent.append(sglang_message(ids, first, end, end, last=last, ahead=extra))
        before = end
    decoder = SglangLogprobDecoder(incremental if flag_told else None, asked(most, 2))
    check(run(decoder, *sent), ids, most, SGLANGS_PROMPT)


def test_f2_of_lists_that_are_repeated_only_what_is_new_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them with each token would stop every other stream of the process for a tenth of a second."""
    ids = list(range(100, 400))
    sent = [sglang_message(ids, 0, end, end, last=end == len(ids)) for end in range(1, len(ids) + 1)]
    read = 0
    loads = json.loads

    def counted(text: str) -> Any:
        nonlocal read
        read += len(text)
        return loads(text)

    monkeypatch.setattr("enginehouse.adapters.engines.sglang_logprobs.json.loads", counted)
    deltas = run(SglangLogprobDecoder(False, asked(2)), *sent)
    assert told(deltas) == expected(ids, 2)
    assert read < 2 * len(sent[-1])


def test_o10_sglangs_repeated_last_token_has_no_second_probability() -> None:
    ids = [7, 8]
    first = sglang_message(ids, 0, 2, 2, last=False)
    again = sglang.GenerateResponse(
        output_ids=[8],
        meta_info={
            "finish_reason": '{"type": "length", "length": 2}',
            "completion_tokens": "2",
            "output_token_logprobs": json.dumps([[probability(8, 1), 8, None]]),
        },
        finished=True,
    ).SerializeToString()
    deltas = run(SglangLogprobDecoder(True, asked(0)), first, again)
    assert [list(delta.token_ids) for delta in deltas] == [[7, 8], []]
    assert told(deltas) == expected(ids, 0)


def test_o10_older_sglang_leaves_the_prompts_first_token_out() -> None:
    meta = {
        "finish_reason": "null",
        "completion_tokens": "1",
        "input_token_logprobs": "[[-1.0, 337, null], [-2.0, 374, null]]",
        "input_top_logprobs": "[[[-0.5, 9, null]], null]",
    }
    sent = sglang.GenerateResponse(output_ids=[7], meta_info=meta).SerializeToString()
    (delta,) = run(SglangLogprobDecoder(False, asked(None, 1)), sent)
    assert delta.prompt_logprobs == [None, TokenLogprob(337, -1.0, ((9, -0.5),)), TokenLogprob(374, -2.0)]


def test_o10_sglang_tells_of_what_cannot_be() -> None:
    meta = {
        "finish_reason": '{"type": "length", "length": 3}',
        "completion_tokens": "3",
        "output_token_logprobs": "[[-Infinity, 7, null], [null, 8, null], [NaN, 9, null]]",
        "output_top_logprobs": "[[[-0.5, 1, null], [-Infinity, 2, null]], null, [[NaN, 3, null]]]",
    }
    sent = sglang.GenerateResponse(output_ids=[7, 8, 9], meta_info=meta, finished=True).SerializeToString()
    assert told(run(SglangLogprobDecoder(False, asked(2)), sent)) == [
        TokenLogprob(7, FLOOR, ((1, -0.5), (2, FLOOR))),
        TokenLogprob(8, FLOOR),
        TokenLogprob(9, FLOOR, ((3, FLOOR),)),
    ]


def lists(ids: Sequence[int], first: int, end: int) -> Any:
    return vllm.OutputLogProbs(
        token_logprobs=[probability(ids[at], at) for at in range(first, end)],
        token_ids=ids[first:end],
        top_logprobs=[
            vllm.TopLogProbs(
                values=[probability(ids[at], at) - n for n in range(4)], token_ids=[ids[at] + n for n in range(4)]
            )
            for at in range(first, end)
        ],
    )


def prompt_lists() -> Any:
    value = vllm.InputTokenLogProb
    return vllm.InputLogProbs(
        token_logprobs=[value(), value(value=-1.0), value(value=-2.0)],
        token_ids=PROMPT,
        top_logprobs=[
            vllm.TopLogProbs(),
            vllm.TopLogProbs(values=[-1.0, -0.5, -0.75], token_ids=[337, 9, 8]),
            vllm.TopLogProbs(values=[-2.0, -2.5, -3.0], token_ids=[374, 7, 6]),
        ],
    )


@given(IDS, CUTS, st.integers(0, 3), st.sampled_from(["with the first", "alone", "with the end"]))
def test_o10_vllm_cut_anyhow(ids: list[int], cuts: list[int], most: int, when: str) -> None:
    marks, sent, before = ends(len(ids), cuts), [], 0
    if when == "with the end":
        marks = []
    if when == "alone":
        sent.append(vllm.GenerateStreamChunk(prompt_tokens=3, input_logprobs=prompt_lists()))
    for end in marks:
        chunk = vllm.GenerateStreamChunk(token_ids=ids[before:end], output_logprobs=lists(ids, before, end))
        if when == "with the first" and not before:
            chunk.input_logprobs.CopyFrom(prompt_lists())
        sent.append(chunk)
        before, repeated = end, before
    start = repeated if marks else 0  # the end repeats the last delta; without one it has everything
    complete = vllm.GenerateComplete(
        output_ids=ids[start:],
        finish_reason="stop",
        output_logprobs=lists(ids, start, len(ids)),
        input_logprobs=prompt_lists() if when == "with the end" else None,
    )
    wire = [vllm.GenerateResponse(chunk=chunk).SerializeToString() for chunk in sent]
    wire.append(vllm.GenerateResponse(complete=complete).SerializeToString())
    prompt = [
        None,
        TokenLogprob(337, -1.0, ((9, -0.5), (8, -0.75))),
        TokenLogprob(374, -2.0, ((374, -2.0), (7, -2.5))),
    ]
    check(run(VllmLogprobDecoder(asked(most, 2)), *wire), ids, most, prompt)


def candidates(token: int, logprob: float, most: int) -> native.CandidateTokenInfo:
    return native.CandidateTokenInfo(
        tokens=[native.CandidateToken(id=token + n, logprob=logprob - n, rank=n + 1) for n in range(most)]
    )


@given(IDS, CUTS, st.integers(0, 3))
def test_o10_the_native_engine_cut_anyhow(ids: list[int], cuts: list[int], most: int) -> None:
    info = native.PromptInfo(
        num_prompt_tokens=3,
        logprobs=[0.0, -1.0, -2.0],
        ranks=[0, 1, 1],
        candidate_tokens=[native.CandidateTokenInfo(), candidates(337, -1.0, 2), candidates(374, -2.0, 2)],
    )
    sent, before = [native.GenerateResponse(prompt_info=info)], 0
    for end in ends(len(ids), cuts):
        output = native.Output(
            num_tokens=end - before,
            token_ids=ids[before:end],
            logprobs=[probability(ids[at], at) for at in range(before, end)],
            candidate_tokens=[candidates(ids[at], probability(ids[at], at), most) for at in range(before, end)],
        )
        if end == len(ids):
            output.finish_info.finish_reason = native.STOP
        sent.append(native.GenerateResponse(output=output))
        before = end
    prompt = [
        None,
        TokenLogprob(337, -1.0, ((337, -1.0), (338, -2.0))),
        TokenLogprob(374, -2.0, ((374, -2.0), (375, -3.0))),
    ]
    check(run(VllmNativeLogprobDecoder(asked(most, 2)), *(one.SerializeToString() for one in sent)), ids, most, prompt)


# What is asked for and does not come.


@pytest.mark.parametrize("want", [asked(0), asked(None, 0)], ids=["own", "prompt"])
def test_an_engine_that_leaves_them_out_is_broken(want: EngineRequest) -> None:
    whole = sglang.GenerateResponse(
        output_ids=[7], meta_info={"finish_reason": '"stop"', "completion_tokens": "1"}, finished=True
    ).SerializeToString()
    chunk = vllm.GenerateResponse(chunk=vllm.GenerateStreamChunk(token_ids=[7])).SerializeToString()
    output = native.GenerateResponse(output=native.Output(num_tokens=1, token_ids=[7])).SerializeToString()
    decoders: list[tuple[Decoder, bytes]] = [
        (SglangLogprobDecoder(False, want), whole),
        (SglangLogprobDecoder(True, want), whole),
        (VllmLogprobDecoder(want), chunk),
        (VllmNativeLogprobDecoder(want), output),
    ]
    for decoder, sent in decoders:
        with pytest.raises(EngineBroken, match="left out"):
            decoder.decode(sent)


def test_probabilities_of_other_tokens_are_not_taken_for_ours() -> None:
    meta = {"finish_reason": "null", "completion_tokens": "1", "output_token_logprobs": "[[-1.0, 8, null]]"}
    with pytest.raises(EngineBroken):
        SglangLogprobDecoder(True, asked(0)).decode(
            sglang.GenerateResponse(output_ids=[7], meta_info=meta).SerializeToString()
        )
    chunk = vllm.GenerateStreamChunk(
        token_ids=[7], output_logprobs=vllm.OutputLogProbs(token_logprobs=[-1.0], token_ids=[8])
    )
    with pytest.raises(EngineBroken):
        VllmLogprobDecoder(asked(0)).decode(vllm.GenerateResponse(chunk=chunk).SerializeToString())


@pytest.mark.parametrize(
    ("given_", "found"),
    [(-1.5, -1.5), (0.0, 0.0), (FLOOR, FLOOR), (-1e30, FLOOR), (-math.inf, FLOOR), (math.nan, FLOOR), (None, FLOOR)],
)
def test_the_floor(given_: float | None, found: float) -> None:
    assert sound(given_) == found


def test_one_more_is_asked_for_within_the_limit() -> None:
    assert [to_ask(most) for most in (0, 1, 5, 19, 20, 21)] == [0, 2, 6, 20, 20, 21]
