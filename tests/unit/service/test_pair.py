"""Two engines answer one request, in virtual time: what each is asked, who ends whom, what is retried where."""

import asyncio
from itertools import pairwise

import pytest

from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.domain import errors
from enginehouse.domain.engine import ProtocolName
from enginehouse.domain.handover import Fetch, Keep, Rendezvous
from enginehouse.domain.stream import Finish
from enginehouse.service.generate import RequestSettings
from tests.unit.service.pair_world import DECODE, PREFILL, REQUEST, SGLANG, VLLM, Sink, World, play

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


@BOTH
def test_p1_a_decode_leg_that_fails_ends_the_other_and_the_request_moves_on(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = world.ask(sink)
        prefill, decode = await world.legs()
        began = asyncio.get_running_loop().time()
        failed = world.whose(decode)
        decode.end(errors.EngineOverloaded("full"))
        _, again = await world.legs()
        assert prefill.cancelled is (protocol is SGLANG)  # of vLLM it was over before
        assert world.whose(again) != failed
        assert asyncio.get_running_loop().time() - began < 1
        await world.answer()
        assert (await request).attempts == 2
        assert sink.ids == [7, 8]
        assert world.meter.failed == [("decode", "engine_overloaded")]
        assert world.meter.retries == ["engine_overloaded"]
        assert len(world.calls("p")) == 2, "the innocent one stays in use"

    play(scenario, "pab", protocol)


@BOTH
def test_a_prefill_leg_that_fails_ends_the_other_and_the_request_moves_on(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = world.ask(sink)
        prefill = await world.call(PREFILL)
        others = world.open(DECODE)
        assert len(others) == (protocol is SGLANG)
        prefill.end(errors.EngineUnavailable("gone"))
        again, _ = await world.legs()
        assert all(call.cancelled for call in others)
        assert world.whose(again) != world.whose(prefill)
        await world.answer()
        assert (await request).attempts == 2
        assert world.meter.failed == [("prefill", "engine_unavailable")]
        assert {m.engine_id for m in world.fleet.prefill.get()} == {"p", "q"}  # it was checked meanwhile

    play(scenario, "pqa", protocol)


@BOTH
@pytest.mark.parametrize("leg", ["prefill", "decode"])
def test_p2_what_an_engine_refuses_is_the_clients_error_at_once(protocol: ProtocolName, leg: str) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        began = asyncio.get_running_loop().time()
        if leg == "prefill":
            refusing = await world.call(PREFILL)
        else:
            _, refusing = await world.legs()
        refusing.end(errors.EngineRejected("top_k must be at least 1"))
        with pytest.raises(errors.EngineRejected, match="top_k"):
            await request
        assert asyncio.get_running_loop().time() - began < 1
        assert not world.open(PREFILL + DECODE)
        assert world.meter.retries == []
        assert len(world.calls(PREFILL)) == 1

    play(scenario, "pqab", protocol)


@BOTH
def test_p7_a_failed_transfer_is_an_error_and_both_engines_are_in_doubt_for_the_request(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        prefill, decode = await world.legs()
        first = {world.whose(prefill), world.whose(decode)}
        decode.end(errors.HandoverFailed("the transfer failed"))
        prefill, decode = await world.legs()
        assert first.isdisjoint({world.whose(prefill), world.whose(decode)})
        decode.end(errors.HandoverFailed("the transfer failed"))
        with pytest.raises(errors.HandoverFailed):
            await request
        assert world.meter.failed == [("handover", "handover_failed")] * 2

    play(scenario, "pqab", protocol)


@BOTH
@pytest.mark.parametrize(("names", "kept"), [("pab", "p"), ("pqa", "a")])
def test_p7_after_a_failed_transfer_an_engine_that_is_the_only_one_is_tried_with_another(
    protocol: ProtocolName, names: str, kept: str
) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        prefill, decode = await world.legs()
        first = {world.whose(prefill), world.whose(decode)}
        decode.end(errors.HandoverFailed("the transfer failed"))
        prefill, decode = await world.legs()
        assert first & {world.whose(prefill), world.whose(decode)} == {kept}
        await world.answer()
        assert (await request).attempts == 2

        request = world.ask()
        for _ in range(2):
            _, decode = await world.legs()
            decode.end(errors.HandoverFailed("the transfer failed"))
        with pytest.raises(errors.HandoverFailed):
            await request

    play(scenario, names, protocol)


@BOTH
def test_p7_after_a_failed_transfer_of_the_only_two_nothing_is_left(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        _, decode = await world.legs()
        began = asyncio.get_running_loop().time()
        decode.end(errors.HandoverFailed("the transfer failed"))
        with pytest.raises(errors.HandoverFailed):
            await request
        assert asyncio.get_running_loop().time() - began < 1

    play(scenario, "pa", protocol)


def test_p7_after_a_failed_transfer_of_the_only_two_a_decode_engine_may_work_alone() -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        _, decode = await world.legs()
        decode.end(errors.HandoverFailed("the transfer failed"))
        await asyncio.sleep(0.001)
        alone = await world.call("a")
        assert alone.request.handover is None
        alone.deliver([7], Finish.STOP)
        assert (await request).attempts == 2

    play(scenario, "pa", VLLM, handover=HandoverSettings(prefill_missing="decode"))


def test_p7_after_a_failed_transfer_an_engine_that_is_being_checked_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        _, decode = await world.legs()
        world.process["p"].break_links()
        world.process["p"].refuses = errors.ProbeFailed("sick")
        failed = world.whose(decode)
        decode.end(errors.HandoverFailed("the transfer failed"))
        await asyncio.sleep(0.1)
        world.know("pabc")  # another decode engine is no help
        await asyncio.sleep(0.1)
        world.process["p"].refuses = None
        prefill, decode = await world.legs()
        assert world.whose(prefill) == "p"
        assert world.whose(decode) != failed
        await world.answer()
        assert (await request).attempts == 2

    async def prepared(world: World) -> None:
        world.start("c")
        await scenario(world)

    play(prepared, "pab", VLLM)


@BOTH
def test_p7_a_decode_leg_that_breaks_off_is_a_well_formed_error_and_nothing_is_sent_twice(
    protocol: ProtocolName,
) -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = world.ask(sink)
        prefill, decode = await world.legs()
        decode.deliver([7])
        if protocol is SGLANG:
            prefill.deliver([7], Finish.LENGTH)
        decode.end(errors.HandoverFailed("aborted"))
        with pytest.raises(errors.HandoverFailed):
            await request
        assert sink.ids == [7]
        assert len(world.calls(PREFILL)) == len(world.calls(DECODE)) == 1

    play(scenario, "pqab", protocol)


def test_the_first_error_is_the_one_that_counts() -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        prefill, decode = await world.legs()
        decode.end(errors.EngineOverloaded("full"))
        prefill.end(errors.EngineUnavailable("its mate has gone"))
        _, decode = await world.legs()
        await world.answer()
        await request
        assert world.meter.failed == [("decode", "engine_overloaded")]
        assert world.fleet.counters.suspicions == 0

    play(scenario, "pab")


def test_a_prefill_engine_that_dies_after_the_answer_began_costs_nothing() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = world.ask(sink)
        prefill, decode = await world.legs()
        decode.deliver([7])
        prefill.end(errors.EngineUnavailable("connection reset"))
        await asyncio.sleep(1)
        assert not decode.over
        decode.deliver([8], Finish.STOP)
        assert (await request).attempts == 1
        assert sink.ids == [7, 8]
        assert world.fleet.counters.suspicions == 1, "it is asked whether it is well all the same"
        assert world.meter.failed == []

    play(scenario)


def test_a_prefill_engine_that_fails_after_the_answer_began_is_free_at_once() -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        prefill, decode = await world.legs()
        decode.deliver([7])
        prefill.end(errors.EngineFailed("no"))
        assert {engine.name for engine in world.fleet.view().engines if engine.streams} == {"ns/a"}
        decode.deliver([8], Finish.STOP)
        assert (await request).attempts == 1

    play(scenario)


@BOTH
def test_a_stop_string_ends_both_legs(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask(Sink(enough_after=2))
        _, decode = await world.legs()
        decode.deliver([7, 8])
        await request
        assert decode.cancelled

    play(scenario, protocol=protocol)


@BOTH
def test_a_client_that_leaves_stops_both_legs(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        prefill = await world.call(PREFILL)
        request.cancel()
        await asyncio.wait([request])
        assert prefill.cancelled
        assert not world.open(DECODE)

        request = world.ask()
        _, decode = await world.legs()
        decode.deliver([7])
        request.cancel()
        await asyncio.wait([request])
        assert decode.cancelled
        assert world.generator.pairs.released == world.generator.pairs.stranded == 0

    play(scenario, protocol=protocol)


def test_blocks_kept_for_a_client_that_left_are_fetched_all_the_same() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = world.ask(sink)
        _, decode = await world.legs()
        request.cancel()
        await asyncio.wait([request])
        assert not decode.over
        assert world.generator.pairs.in_flight == {}
        world.know("")  # both engines wait for it
        await asyncio.sleep(1)
        assert {engine.streams for engine in world.fleet.view().engines} == {1}
        decode.deliver([7])
        await asyncio.sleep(0.001)
        assert decode.cancelled
        assert sink.ids == []
        assert world.generator.pairs.released == 1
        assert world.fleet.view().engines == ()

    play(scenario, protocol=VLLM)


def test_a_prefill_leg_that_ends_just_as_the_client_leaves_has_its_blocks_fetched() -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        prefill = await world.call(PREFILL)
        request.cancel()
        prefill.deliver([9], Finish.LENGTH)
        await asyncio.wait([request])
        decode = await world.call(DECODE)
        assert decode.request.handover == Fetch(b"kept")
        assert decode.request.max_tokens == 1
        decode.deliver([7], Finish.LENGTH)
        await asyncio.sleep(0.001)
        assert world.generator.pairs.released == 1

    play(scenario, protocol=VLLM)


@pytest.mark.parametrize("fails_first", [True, False])
def test_a_decode_leg_that_fails_just_as_the_client_leaves_is_not_waited_for(*, fails_first: bool) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        _, decode = await world.legs()
        for fails in (fails_first, not fails_first):
            if fails:
                decode.end(errors.EngineOverloaded("full"))
            else:
                request.cancel()
        await asyncio.wait([request])
        world.settled()

    play(scenario, protocol=VLLM)


@pytest.mark.parametrize("how", ["mute", "fails", "closed"])
def test_blocks_that_nobody_fetches_are_given_up_after_a_while(how: str) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        _, decode = await world.legs()
        request.cancel()
        await asyncio.wait([request])
        if how == "fails":
            decode.end(errors.EngineFailed("no"))
        elif how == "closed":
            await world.generator.close()
        await asyncio.sleep(25)
        assert decode.over
        assert world.generator.pairs.released == 0
        assert world.generator.pairs.stranded == (how != "closed")

    play(scenario, protocol=VLLM)


@BOTH
def test_a_hand_over_that_takes_too_long_is_tried_with_two_others(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        loop = asyncio.get_running_loop()
        began = loop.time()
        if protocol is VLLM:
            await world.call(PREFILL)
            await asyncio.sleep(15)  # a long prompt counts for nothing
            began += 15
        prefill, decode = await world.legs()
        first = {world.whose(prefill), world.whose(decode)}
        while not decode.over:
            await asyncio.sleep(0.1)
        assert loop.time() - began == pytest.approx(10, abs=0.2)
        assert decode.cancelled
        assert prefill.cancelled is (protocol is SGLANG)
        prefill, decode = await world.legs()
        assert first.isdisjoint({world.whose(prefill), world.whose(decode)})
        await world.answer()
        await request
        assert world.meter.failed == [("handover", "handover_timeout")]
        assert {world.whose_canary(call) for call in world.calls("pqab", canaries=True)} == (
            first if protocol is VLLM else set()
        ), "one of SGLang cannot be asked alone"
        assert world.fleet.counters.suspicions == 2
        assert len(world.fleet.serving.get()) == len(world.fleet.prefill.get()) == 2, "the first costs them nothing"

    play(scenario, "pqab", protocol, handover=HandoverSettings(handover_timeout=10))


@BOTH
def test_p1_an_engine_whose_hand_overs_time_out_is_tried_less_and_less(protocol: ProtocolName) -> None:
    """`a` is mute in every pair, and well whenever it is asked. `b` and both prefill engines get on meanwhile."""

    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        tried: list[float] = []
        began = loop.time()
        while loop.time() < began + 2000:
            request = world.ask()
            for _ in range(2):
                _, decode = await world.legs()
                if world.whose(decode) == "b":
                    break
                tried.append(loop.time())
                others = [world.ask() for _ in range(4)]
                await asyncio.sleep(1)
                for call in world.open(PREFILL):
                    call.deliver([9], Finish.LENGTH)
                await asyncio.sleep(0.001)
                for call in world.open("b"):
                    call.deliver([8], Finish.STOP)
                for call in world.open("a"):
                    if call is not decode:
                        call.end(errors.EngineOverloaded("full"))
                await asyncio.sleep(0.001)
                for call in world.open(PREFILL):
                    call.deliver([9], Finish.LENGTH)
                await asyncio.sleep(0.001)
                for call in world.open("b"):
                    call.deliver([8], Finish.STOP)
                await asyncio.gather(*others)
                while not decode.over:
                    await asyncio.sleep(1)
            await world.answer()
            await request
            await asyncio.sleep(5)
        pauses = [round(later - earlier) for earlier, later in pairwise(tried)]
        assert len(tried) < 12
        assert pauses == sorted(pauses)
        assert pauses[-1] > 400
        assert world.fleet.counters.suspicions < 2 * len(tried), "a prefill engine is not, when it got on with b"
        assert world.meter.failed.count(("handover", "handover_timeout")) == len(tried)

    play(scenario, "pqab", protocol, handover=HandoverSettings(handover_timeout=120))


def test_a_prompt_that_is_not_prefilled_in_time_is_the_prefill_engines_fault() -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        first = await world.call(PREFILL)
        await asyncio.sleep(6)
        assert first.cancelled
        second, _ = await world.legs()
        assert world.whose(first) != world.whose(second)
        await world.answer()
        await request
        assert world.meter.failed == [("prefill", "engine_timeout")]
        assert world.fleet.counters.suspicions == 1

    play(scenario, "pqa", VLLM, limits=RequestSettings(first_token_timeout=5))


@BOTH
@pytest.mark.parametrize("begun", [False, True])
def test_withdrawn_engines_finish_what_they_have(protocol: ProtocolName, begun: bool) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        prefill, decode = await world.legs()
        if begun:
            decode.deliver([7])
        world.know("qb")
        await asyncio.sleep(10)
        assert not decode.over
        if not begun:
            assert {engine.name for engine in world.fleet.view().engines if engine.streams} == {"ns/p", "ns/a"}
            decode.deliver([7])
        if protocol is SGLANG:
            prefill.deliver([9], Finish.LENGTH)
        await asyncio.sleep(1)
        # One that has passed its cache on has nothing left to do, however long the answer.
        assert {engine.name for engine in world.fleet.view().engines if engine.streams} == {"ns/a"}
        decode.deliver([8], Finish.STOP)
        assert (await request).attempts == 1

    async def prepared(world: World) -> None:
        for name in "qb":
            world.start(name)
        await scenario(world)

    play(prepared, "pa", protocol)


@BOTH
def test_a_drain_deadline_of_the_prefill_engine_cuts_no_answer_that_has_begun(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        _, decode = await world.legs()
        decode.deliver([7])
        world.know("a")
        for _ in range(10):  # past the deadline
            await asyncio.sleep(50)
            decode.deliver([7])
        decode.deliver([8], Finish.STOP)
        assert (await request).attempts == 1

    play(scenario, "pa", protocol)


@BOTH
def test_an_engine_that_is_mute_and_fails_its_check_is_left_for_another(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        prefill = await world.call(PREFILL)
        name = world.whose(prefill)
        world.process[name].refuses = errors.ProbeFailed("sick")
        world.process[name].opened[0]._lost[0]("connection reset")
        again = prefill
        while world.whose(again) == name:
            await asyncio.sleep(0.1)
            again = (world.open(PREFILL) or [again])[0]
        await world.legs()
        await world.answer()
        assert (await request).attempts == 2
        assert world.meter.failed == [("prefill", "engine_unavailable")]

    play(scenario, "pqa", protocol)


@BOTH
def test_what_each_engine_is_charged_and_for_how_long(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        def loads() -> dict[str, tuple[int, int, int]]:
            return {
                name: (load.requests, load.tokens, load.prefill_tokens)
                for (name, _, _), load in world.ledger
                if load.requests
            }

        request = world.ask()
        prefill = await world.call(PREFILL)
        assert loads() == {"p": (1, 3, 3), "a": (1, 3, 0)}
        if protocol is SGLANG:
            (decode,) = world.open(DECODE)
            decode.deliver([7])  # may come before the other leg's end
        else:
            prefill.deliver([9], Finish.LENGTH)
            (decode,) = world.open(DECODE)
            assert loads() == {"p": (1, 3, 0), "a": (1, 3, 0)}, "the cache is still on the prefill engine"
            decode.deliver([7])
        assert loads() == {"a": (1, 3, 0)}
        decode.deliver([8], Finish.STOP)
        await request
        assert loads() == {}

    play(scenario, protocol=protocol)


@BOTH
def test_each_leg_is_timed(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        prefill = await world.call(PREFILL)
        assert {engine_id: n for (engine_id, _), n in world.generator.pairs.in_flight.items()} == {"p": 1, "a": 1}
        await asyncio.sleep(3)
        prefill.deliver([9], Finish.LENGTH)
        decode = await world.call(DECODE)
        await asyncio.sleep(0.5)
        decode.deliver([7])
        await asyncio.sleep(20)
        decode.deliver([8], Finish.STOP)
        await request
        legs = {leg: pytest.approx(times, abs=0.05) for leg, times in world.meter.legs.items()}
        assert legs == {"queue": [0], "prefill": [3], "handover": [0.5], "decode": [20]}

    play(scenario, protocol=protocol)


@BOTH
def test_cached_tokens_are_those_of_the_prefill_engine(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = world.ask(sink)
        prefill = await world.call(PREFILL)
        prefill.deliver([9], Finish.LENGTH, cached=1)
        decode = await world.call(DECODE)
        decode.deliver([7], Finish.STOP, cached=3)
        await request
        assert sink.cached == 1

    play(scenario, protocol=protocol)


@BOTH
def test_cached_tokens_are_told_though_the_decode_engine_says_none_before_we_stop_it(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        sink = Sink(enough_after=2)
        request = world.ask(sink)
        prefill = await world.call(PREFILL)
        prefill.deliver([9], Finish.LENGTH, cached=1)
        decode = await world.call(DECODE)
        decode.deliver([7])
        decode.deliver([8])
        await request
        assert sink.cached == 1

    play(scenario, protocol=protocol)


def test_cached_tokens_of_a_vllm_decode_engine_are_only_what_it_fetched() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = world.ask(sink)
        _, decode = await world.legs()
        decode.deliver([7], Finish.STOP, cached=3)
        await request
        assert sink.cached is None

    play(scenario, protocol=VLLM)


def test_a_prefill_engine_that_keeps_nothing_is_at_fault_alone() -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        first = await world.call(PREFILL)
        first.end(errors.HandoverFailed("it kept nothing"))
        second, _ = await world.legs()
        assert world.whose(second) != world.whose(first)
        await world.answer()
        await request
        assert world.meter.failed == [("prefill", "handover_failed")]

    play(scenario, "pqa", VLLM)


def test_engines_whose_every_hand_over_fails_are_asked_whether_they_are_well() -> None:
    async def scenario(world: World) -> None:
        for attempts in (2, 2, 3):  # the last one is tried again with two that are well, it seems
            request = world.ask()
            for _ in range(attempts):
                _, decode = await world.legs()
                decode.end(errors.HandoverFailed("no"))
            with pytest.raises(errors.HandoverFailed):
                await request
        await asyncio.sleep(1)
        assert world.fleet.counters.suspicions == 4
        assert len(world.fleet.serving.get()) == len(world.fleet.prefill.get()) == 2, "they are"

    play(scenario, "pqab", VLLM)
