"""Both legs of a hand-over as our adapters send them, between real servers and between our mock's, in both roles."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from enginehouse.adapters.engines.engine import Engine
from enginehouse.core.handover import meeting_point
from enginehouse.domain.constraint import JsonSchema
from enginehouse.domain.engine import Role, Target
from enginehouse.domain.errors import EngineRejected, HandoverFailed
from enginehouse.domain.handover import Fetch, Handover, Keep, Rendezvous
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Finish
from tests.contract.engine_peers import (
    MOCK_NATIVE,
    MOCK_SGLANG,
    MOCK_VLLM,
    RANKS,
    SGLANG,
    SGLANG_INCREMENTAL,
    SGLANG_OLD,
    VLLM_CPU,
    VLLM_NATIVE,
    Kind,
    Server,
    serve,
)
from tests.contract.test_engines import Heard, connector, whole
from tests.support import free_port

ASKED = Sampling(
    temperature=0.5, top_p=0.75, seed=7, ignore_eos=True, min_tokens=3, stop_token_ids=(7998, 7999), top_k=40
)


VLLM = (MOCK_VLLM, MOCK_NATIVE, VLLM_NATIVE)


@dataclass(frozen=True)
class Pair:
    """Two servers that work together."""

    prefill: Server
    decode: Server
    meeting: int


class Legs:
    """Their engines."""

    def __init__(self, pair: Pair, prefill: Engine, decode: Engine) -> None:
        self.pair, self.prefill, self.decode = pair, prefill, decode

    def send(self, engine: Engine, handover: Handover, length: int = 12, **fields: Any) -> tuple[Heard, str]:
        heard, name = Heard(), uuid.uuid4().hex
        prompt = fields.pop("prompt", self.pair.decode.prompt)
        sampling = fields.pop("sampling", ASKED)
        engine.generate(
            EngineRequest(name, prompt, length, sampling, handover=handover, **fields),
            heard,
        )
        return heard, name


def too_long(engine: Engine) -> list[int]:
    assert engine.info.context_length is not None
    return [300] * (engine.info.context_length + 1)


def with_pair(pair: Pair, test: Callable[[Legs], Awaitable[None]]) -> None:
    async def run() -> None:
        prefill = await connector().probe(Target("127.0.0.1", pair.prefill.port))
        decode = await connector().probe(Target("127.0.0.1", pair.decode.port))
        try:
            await test(Legs(pair, prefill, decode))
        finally:
            await prefill.close()
            await decode.close()

    asyncio.run(run())


def speed(kind: Kind) -> dict[str, Any]:
    return {"tokens_per_second" if kind.mock else "tok_s": 200}


def sglang_pair(kind: Kind, folder: Path, **options: Any) -> Iterator[Pair]:
    port, common = free_port(), {"ranks" if kind.mock else "dp_size": RANKS, **speed(kind), **options}
    with (
        serve(kind, folder / "prefill", role="prefill", bootstrap_port=port, **common) as prefill,
        serve(kind, folder / "decode", role="decode", **common) as decode,
    ):
        yield Pair(prefill, decode, port)


def vllm_pair(kind: Kind, folder: Path, **options: Any) -> Iterator[Pair]:
    port, common = free_port(), {**speed(kind), **options}
    with (
        serve(kind, folder / "prefill", role="prefill", side_channel_port=port, **common) as prefill,
        serve(kind, folder / "decode", role="decode", **common) as decode,
    ):
        yield Pair(prefill, decode, port)


@pytest.fixture(scope="module", params=[kind.param() for kind in (MOCK_SGLANG, SGLANG, SGLANG_INCREMENTAL, SGLANG_OLD)])
def sglang(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from sglang_pair(request.param, tmp_path_factory.mktemp("sglang"))


@pytest.fixture(scope="module", params=[kind.param() for kind in (MOCK_SGLANG, SGLANG)])
def hasty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Engines that give up soon when their peer does not come."""
    yield from sglang_pair(request.param, tmp_path_factory.mktemp("hasty"), bootstrap_timeout=0.5)


@pytest.fixture(scope="module", params=[kind.param() for kind in VLLM])
def vllm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield from vllm_pair(request.param, tmp_path_factory.mktemp("vllm"))


def test_sglang_says_its_role_and_where_it_is_met(sglang: Pair) -> None:
    async def test(legs: Legs) -> None:
        assert legs.prefill.info.role is Role.PREFILL
        assert legs.decode.info.role is Role.DECODE
        assert meeting_point(legs.prefill.target, legs.prefill.info) == ("127.0.0.1", sglang.meeting)
        assert legs.decode.info.bootstrap_port is None
        assert legs.prefill.info.transfer_backend == legs.decode.info.transfer_backend == "mooncake"

    with_pair(sglang, test)


@pytest.mark.parametrize("room", [2**63 - 25, 2**63 - 2, 1, 1_000_000_007])
def test_p3_sglang_both_legs_meet_under_every_room_on_the_rank_it_names(sglang: Pair, room: int) -> None:
    async def test(legs: Legs) -> None:
        meeting = Rendezvous("127.0.0.1", sglang.meeting, room)
        prefill, first = legs.send(legs.prefill, meeting, prefill_only=True, rank=(room + 1) % RANKS)
        decode, second = legs.send(legs.decode, meeting, rank=1)
        assert await whole(decode) is None
        assert await whole(prefill) is None
        assert (decode.ids, decode.finish) == (sglang.decode.answer(12), Finish.LENGTH)
        assert (len(prefill.ids), prefill.finish) == (1, Finish.LENGTH)

        if sglang.prefill.kind.mock:
            return
        met = {"bootstrap_host": "127.0.0.1", "bootstrap_port": sglang.meeting, "bootstrap_room": room}
        asked, answered = sglang.prefill.wait_event(first, "request"), sglang.decode.wait_event(second, "request")
        assert {**asked, **met} == asked
        assert {**answered, **met} == answered
        assert asked.get("routed_dp_rank") is None
        assert answered["routed_dp_rank"] == 1
        sampling = asked["sampling_params"]
        assert sampling["max_new_tokens"] == 1
        assert not {"min_new_tokens", "stop_token_ids", "ignore_eos"} & {
            key for key, value in sampling.items() if value
        }
        assert answered["sampling_params"]["max_new_tokens"] == 12
        assert answered["sampling_params"]["min_new_tokens"] == 3
        drawn = ("temperature", "top_p", "top_k")
        assert [sampling[name] for name in drawn] == [answered["sampling_params"][name] for name in drawn]

    with_pair(sglang, test)


def test_p2_sglang_a_client_error_of_the_prefill_leg_is_the_clients(sglang: Pair) -> None:
    async def test(legs: Legs) -> None:
        heard, _ = legs.send(
            legs.prefill,
            Rendezvous("127.0.0.1", sglang.meeting, 3),
            prefill_only=True,
            prompt=too_long(legs.prefill),
        )
        assert isinstance(await whole(heard), EngineRejected)

    with_pair(sglang, test)


def test_p7_sglang_a_leg_whose_peer_does_not_come_fails_and_is_no_answer(hasty: Pair) -> None:
    async def test(legs: Legs) -> None:
        prefill, _ = legs.send(legs.prefill, Rendezvous("127.0.0.1", hasty.meeting, 8), prefill_only=True)
        decode, _ = legs.send(legs.decode, Rendezvous("127.0.0.1", hasty.meeting, 9))
        nobody, _ = legs.send(legs.decode, Rendezvous("127.0.0.1", free_port(), 10))
        for heard in (prefill, decode, nobody):
            error = await whole(heard)
            assert isinstance(error, HandoverFailed)
            assert error.retryable
            assert not error.suspect
            assert "bootstrap" not in error.message
            assert heard.ids == []

    with_pair(hasty, test)


def test_sglang_a_request_without_a_meeting_is_not_the_clients_fault(hasty: Pair) -> None:
    async def test(legs: Legs) -> None:
        for engine in (legs.prefill, legs.decode):
            heard = Heard()
            engine.generate(EngineRequest(uuid.uuid4().hex, hasty.decode.prompt, 3), heard)
            assert isinstance(await whole(heard), HandoverFailed)

    with_pair(hasty, test)


async def kept_by(legs: Legs) -> tuple[bytes, str]:
    prefill, name = legs.send(legs.prefill, Keep(), prefill_only=True, rank=0)
    assert await whole(prefill) is None
    assert (len(prefill.ids), prefill.finish) == (1, Finish.LENGTH)
    kept = prefill.deltas[-1].kept
    assert kept
    return kept, name


def test_vllm_what_prefill_kept_is_fetched_by_decode_unchanged(vllm: Pair) -> None:
    async def test(legs: Legs) -> None:
        kept, first = await kept_by(legs)
        decode, second = legs.send(legs.decode, Fetch(kept))
        assert await whole(decode) is None
        assert (decode.ids, decode.finish) == (vllm.decode.answer(12), Finish.LENGTH)

        if vllm.prefill.kind.mock:
            return
        asked, answered = vllm.prefill.wait_event(first, "request"), vllm.decode.wait_event(second, "request")
        params = asked["params"]
        assert (params["max_tokens"], params["min_tokens"]) == (1, 1)
        assert not params.get("stop_token_ids")
        assert params["extra_args"]["kv_transfer_params"] == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
        fetched = answered["params"]["extra_args"]["kv_transfer_params"]
        assert fetched["do_remote_prefill"] is True
        assert fetched["remote_request_id"].startswith(first)
        assert fetched["remote_block_ids"] == [list(range(1, 8))]
        for number in ("remote_port", "remote_num_tokens", "tp_size"):
            assert type(fetched[number]) is int
        assert fetched["remote_port"] == vllm.meeting
        assert type(fetched["remote_blocks_expiry_time"]) is float
        assert (answered["params"]["max_tokens"], answered["params"]["min_tokens"]) == (12, 3)

    with_pair(vllm, test)


def test_p7_vllm_blocks_that_are_gone_are_a_failed_handover(vllm: Pair) -> None:
    async def test(legs: Legs) -> None:
        kept, _ = await kept_by(legs)
        first, _ = legs.send(legs.decode, Fetch(kept))
        assert await whole(first) is None
        again, _ = legs.send(legs.decode, Fetch(kept))
        error = await whole(again)
        assert isinstance(error, HandoverFailed)
        assert error.retryable
        assert again.ids == []

    with_pair(vllm, test)


def test_vllm_a_kept_cache_can_be_taken_for_a_single_token_whatever_the_minimum(vllm: Pair) -> None:
    async def test(legs: Legs) -> None:
        kept, _ = await kept_by(legs)
        taken, _ = legs.send(legs.decode, Fetch(kept), length=1)
        assert await whole(taken) is None
        assert taken.ids == vllm.decode.answer(1)

    with_pair(vllm, test)


@pytest.mark.parametrize("kind", [kind.param() for kind in VLLM])
def test_p7_vllm_a_lease_that_is_over_is_a_failed_handover(kind: Kind, tmp_path: Path) -> None:
    async def test(legs: Legs) -> None:
        kept, _ = await kept_by(legs)
        late, _ = legs.send(legs.decode, Fetch(kept))
        assert isinstance(await whole(late), HandoverFailed)

    lease = {"handover_expired": True} if kind.mock else {"lease_s": 0}
    for pair in vllm_pair(kind, tmp_path, **lease):
        with_pair(pair, test)


def test_p2_vllm_a_client_error_of_the_prefill_leg_is_the_clients(vllm: Pair) -> None:
    async def test(legs: Legs) -> None:
        heard, _ = legs.send(legs.prefill, Keep(), prefill_only=True, prompt=too_long(legs.prefill))
        assert isinstance(await whole(heard), EngineRejected)

    with_pair(vllm, test)


def test_o10_sglangs_first_token_is_drawn_with_all_that_the_answer_wants(sglang: Pair) -> None:
    async def test(legs: Legs) -> None:
        wishes = replace(ASKED, logprobs=2, constraint=JsonSchema('{"type": "array"}'))
        place = Rendezvous("127.0.0.1", sglang.meeting, 4711)
        kept, first = legs.send(legs.prefill, place, prefill_only=True, sampling=wishes)
        heard, second = legs.send(legs.decode, place, sampling=wishes)
        assert await whole(heard) is None
        assert await whole(kept) is None
        told = [one for delta in heard.deltas for one in delta.logprobs or ()]
        assert told == [sglang.decode.likely(token, 2) for token in heard.ids]
        for server, name in ((sglang.prefill, first), (sglang.decode, second)):
            event = await asyncio.to_thread(server.wait_event, name, "request")
            if server.kind.mock:
                assert (event["logprobs"], event["constraint"]["schema"]) == (2, '{"type": "array"}')
            else:
                assert (event["return_logprob"], event["top_logprobs_num"]) == (True, 2)
                assert event["sampling_params"]["json_schema"] == '{"type": "array"}'

    with_pair(sglang, test)


def test_o10_vllms_prefill_engine_is_spared_what_only_the_answer_wants(vllm: Pair) -> None:
    async def test(legs: Legs) -> None:
        wishes = replace(ASKED, logprobs=2, constraint=JsonSchema('{"type": "array"}'), logit_bias=((299, 1.0),))
        kept, first = legs.send(legs.prefill, Keep(), prefill_only=True, sampling=wishes)
        assert await whole(kept) is None
        params = kept.deltas[-1].kept
        assert params is not None
        heard, second = legs.send(legs.decode, Fetch(params), sampling=wishes)
        assert await whole(heard) is None
        told = [one for delta in heard.deltas for one in delta.logprobs or ()]
        assert told == [vllm.decode.likely(token, 2) for token in heard.ids]
        for server, name, spared in ((vllm.prefill, first, True), (vllm.decode, second, False)):
            event = await asyncio.to_thread(server.wait_event, name, "request")
            seen = event if server.kind.mock else event["params"]
            names = ("logprobs", "logit_bias", "constraint" if server.kind.mock else "structured_outputs")
            assert [name not in seen for name in names] == [spared] * 3

    with_pair(vllm, test)


@pytest.fixture(scope="module", params=[VLLM_CPU.param()])
def lonely(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A real engine without a KV connector, as both halves."""
    with serve(request.param, tmp_path_factory.mktemp("vllm-cpu")) as server:
        yield Pair(server, server, 0)


def test_a_real_engine_without_a_connector_takes_both_legs_and_keeps_nothing(lonely: Pair) -> None:
    async def test(legs: Legs) -> None:
        kept, _ = legs.send(legs.prefill, Keep(), prefill_only=True)
        assert isinstance(await whole(kept), HandoverFailed)
        params = b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_port":5600}'
        fetched, _ = legs.send(legs.decode, Fetch(params))
        assert await whole(fetched) is None
        assert len(fetched.ids) == 12
        bad, _ = legs.send(legs.decode, Fetch(b"{no json"))
        assert isinstance(await whole(bad), EngineRejected)

    with_pair(lonely, test)
