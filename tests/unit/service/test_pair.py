"""Two engines answer one request, in virtual time: what each is asked, who ends whom, what is retried where."""

import asyncio

import pytest

from enginehouse.domain.handover import Fetch, Keep, Rendezvous
from enginehouse.domain.stream import Finish
from tests.unit.service.pair_world import REQUEST, SGLANG, VLLM, Sink, World, play

BOTH = pytest.mark.parametrize("protocol", [SGLANG, VLLM])


def test_sglang_legs_leave_together_and_meet_under_one_number() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = world.ask(sink)
        await asyncio.sleep(0)
        (prefill,), (decode,) = world.calls("p"), world.calls("a")
        place = prefill.request.handover
        assert isinstance(place, Rendezvous)
        assert (place.host, place.port) == ("10.0.0.16", 8998)
        assert 1 <= place.room < 2**63
        assert decode.request.handover == place
        assert (prefill.request.prefill_only, prefill.request.max_tokens) == (True, 1)
        assert (decode.request.prefill_only, decode.request.max_tokens) == (False, 4)
        assert prefill.request.token_ids == decode.request.token_ids == REQUEST.token_ids
        assert decode.request.sampling == REQUEST.sampling
        assert prefill.request.request_id != decode.request.request_id
        prefill.deliver([9], Finish.LENGTH)
        decode.deliver([7, 8])
        decode.deliver([9], Finish.STOP)
        outcome = await request
        assert (sink.ids, sink.finish, sink.begun) == ([7, 8, 9], Finish.STOP, 1)
        assert (outcome.engine, outcome.attempts, outcome.engine_tokens) == ("ns/a", 1, 3)
        assert not prefill.cancelled
        assert not decode.cancelled

    play(scenario)


def test_vllm_decode_leg_brings_what_the_prefill_leg_answered() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = world.ask(sink)
        prefill = await world.call("p")
        assert prefill.request.handover == Keep()
        assert (prefill.request.prefill_only, prefill.request.max_tokens) == (True, 1)
        assert not world.calls("a")
        prefill.deliver([9], Finish.LENGTH)
        (decode,) = world.calls("a")  # it left from inside the callback
        assert decode.request.handover == Fetch(b"kept")
        assert (decode.request.max_tokens, decode.request.sampling) == (4, REQUEST.sampling)
        decode.deliver([7])
        decode.deliver([], Finish.STOP)
        await request
        assert sink.ids == [7]

    play(scenario, protocol=VLLM)


def test_whatever_a_request_meets_rooms_are_never_used_twice() -> None:
    async def scenario(world: World) -> None:
        world.process["p"].answers = world.process["a"].answers = True
        for _ in range(200):
            await world.ask()
        rooms = [call.request.handover.room for call in world.calls("p")]  # type: ignore[union-attr]
        assert len(set(rooms)) == 200

    play(scenario)
