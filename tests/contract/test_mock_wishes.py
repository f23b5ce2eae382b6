"""What the mock engine's fronts make of wishes, message by message, as the real servers were seen to do."""

from __future__ import annotations

import json
from typing import Any

import grpc
import grpc.aio
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as a

from enginehouse._proto import sglang_runtime_v1_pb2 as s
from enginehouse._proto import vllm_native_pb2 as n
from enginehouse.domain.engine import ProtocolName
from tests.contract.test_mock import ALL, INFERENCE, PROMPT, A, Peer, S, against

VLLM, SGLANG, NATIVE = ALL
SCHEMA = '{"type": "array"}'


def tokens_of(peer: Peer, length: int) -> list[int]:
    return peer.engine.answer(PROMPT, length)


def pairs(top: Any) -> list[tuple[int, float]]:
    return list(zip(top.token_ids, top.values, strict=True))


def test_vllm_repeats_the_last_lists_and_puts_an_unlikely_token_before_the_best() -> None:
    async def test(peer: Peer) -> None:
        *chunks, last = await peer.generate(max_tokens=6, logprobs=2, prompt_logprobs=1)
        ids = tokens_of(peer, 6)
        lists = [message.chunk.output_logprobs for message in chunks]
        assert [token for one in lists for token in one.token_ids] == ids
        assert last.complete.output_logprobs == lists[-1]
        for token, logprob, top in zip(
            ids,
            [value for one in lists for value in one.token_logprobs],
            [top for one in lists for top in one.top_logprobs],
            strict=True,
        ):
            rank = token % 4 + 1
            assert logprob == -rank / 4
            found = pairs(top)
            assert len(found) == 2
            assert found[0] == (token, logprob) if rank > 2 else found[rank - 1] == (token, logprob)
        assert [message.chunk.HasField("input_logprobs") for message in chunks] == [True, *[False] * (len(chunks) - 1)]
        assert not last.complete.HasField("input_logprobs")
        prompt = chunks[0].chunk.input_logprobs
        assert list(prompt.token_ids) == PROMPT
        assert [one.HasField("value") for one in prompt.token_logprobs] == [False, *[True] * (len(PROMPT) - 1)]
        assert pairs(prompt.top_logprobs[0]) == []

    against(VLLM)(test)


@pytest.mark.parametrize("incremental", [False, True])
def test_sglangs_lists_grow_with_its_ids_and_the_prompts_are_in_each_message(incremental: bool) -> None:
    async def test(peer: Peer) -> None:
        request = s.GenerateRequest(
            input_ids=PROMPT,
            sampling_params=s.SamplingParams(max_new_tokens=4),
            stream=True,
            rid="r",
            return_logprob=True,
            top_logprobs_num=1,
            logprob_start_len=0,
        )
        sent = await peer.all(S + "Generate", request, s.GenerateResponse)
        for message in sent:
            meta = {name: json.loads(value) for name, value in message.meta_info.items()}
            assert [token for _, token, _ in meta["output_token_logprobs"]] == list(message.output_ids)
            assert len(meta["output_top_logprobs"]) == len(message.output_ids)
            assert meta["output_token_logprobs_length"] == meta["completion_tokens"]
            assert [token for _, token, _ in meta["input_token_logprobs"]] == PROMPT
            assert meta["input_token_logprobs"][0][0] is None
            assert meta["input_top_logprobs"][0] is None
        assert (len(sent[-1].output_ids) < 4) is incremental

    against(SGLANG, incremental=incremental)(test)


def test_the_native_prompt_comes_first_and_candidates_with_each_token() -> None:
    async def test(peer: Peer) -> None:
        request = n.GenerateRequest(
            token_ids=n.TokenIds(ids=PROMPT),
            stopping=n.Stopping(max_new_tokens=4),
            response=n.ResponseOptions(
                output_token_ids=True,
                output_logprobs=True,
                output_candidates=n.CandidateTokens(top_n=2),
                prompt_logprobs=True,
            ),
        )
        first, *rest = await peer.all(INFERENCE + "GenerateStream", request, n.GenerateResponse)
        info = first.prompt_info
        assert len(info.logprobs) == len(info.ranks) == len(info.candidate_tokens) == len(PROMPT)
        assert (info.logprobs[0], info.ranks[0]) == (0.0, 0)
        assert not any(one.tokens for one in info.candidate_tokens)
        for message in rest:
            output = message.output
            assert len(output.logprobs) == len(output.ranks) == len(output.candidate_tokens) == len(output.token_ids)
            for token, rank, found in zip(output.token_ids, output.ranks, output.candidate_tokens, strict=True):
                assert [one.rank for one in found.tokens] == [1, 2]
                assert (token in [one.id for one in found.tokens]) is (rank <= 2)

    against(NATIVE)(test)


@pytest.mark.parametrize("protocol", ALL)
def test_nothing_is_told_unasked(protocol: ProtocolName) -> None:
    async def test(peer: Peer) -> None:
        for message in await peer.generate():
            text = str(message)
            assert "logprob" not in text
            assert "candidate" not in text

    against(protocol)(test)


@pytest.mark.parametrize("protocol", ALL)
def test_it_says_what_it_was_told_and_ends(protocol: ProtocolName) -> None:
    async def test(peer: Peer) -> None:
        peer.engine.set_faults(say="so be it")
        messages = await peer.generate(max_tokens=50)
        if protocol is VLLM:
            ids = [token for message in messages for token in message.chunk.token_ids]
        elif protocol is SGLANG:
            ids = list(messages[-1].output_ids)
        else:
            ids = [token for message in messages for token in message.output.token_ids]
        vocabulary = peer.engine.engine.vocabulary
        assert ids == [*peer.engine.engine.said([300], None), vocabulary.eos]

    against(protocol)(test)


def test_too_many_of_the_most_likely_are_refused_by_vllm() -> None:
    async def test(peer: Peer) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await peer.generate(logprobs=21)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    against(VLLM)(test)


@pytest.mark.parametrize(
    "params",
    [
        s.SamplingParams(guided_decoding=s.GuidedDecoding()),
        s.SamplingParams(guided_decoding=s.GuidedDecoding(json_schema=SCHEMA), regex="a"),
    ],
)
def test_sglang_refuses_guided_decoding_that_is_empty_or_said_twice(params: s.SamplingParams) -> None:
    async def test(peer: Peer) -> None:
        request = s.GenerateRequest(input_ids=PROMPT, sampling_params=params, stream=True, rid="r")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await peer.all(S + "Generate", request, s.GenerateResponse)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    against(SGLANG)(test)


def test_an_embedding_says_its_size() -> None:
    async def test(peer: Peer) -> None:
        request = a.EmbedRequest(request_id="r", tokenized=a.TokenizedInput(input_ids=PROMPT))
        answer = await peer.unary(A + "Embed", request, a.EmbedResponse)
        assert list(answer.embedding) == peer.engine.embedding(PROMPT)
        assert (answer.embedding_dim, answer.prompt_tokens) == (16, len(PROMPT))

    against(VLLM, embeds=True)(test)
