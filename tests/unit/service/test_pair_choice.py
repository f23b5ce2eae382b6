"""Which two engines, and what a request does while there are not two: in virtual time."""

import asyncio
from typing import Any

import pytest

from enginehouse.core.routing.handover_settings import HandoverSettings, PrefillMissing
from enginehouse.core.routing.pairs import Alone, PairDecision
from enginehouse.core.routing.policy import RoutingSettings
from enginehouse.domain import errors
from enginehouse.domain.engine import LINK, KvEventSource, ProtocolName
from enginehouse.domain.handover import Fetch
from enginehouse.domain.request import Sampling
from enginehouse.domain.stream import Finish
from enginehouse.service.generate import Choice, Outcome, RequestSettings, TokenRequest
from enginehouse.testing.kv import FakePublisher, fake_stored
from tests.unit.service.pair_world import DECODE, PREFILL, REQUEST, SGLANG, VLLM, World, play

KEPT = Fetch(b"kept")
BOTH = pytest.mark.parametrize("protocol", [SGLANG, VLLM])


def missing(policy: PrefillMissing) -> HandoverSettings:
    return HandoverSettings(prefill_missing=policy, prefill_wait=10)


@BOTH
def test_p6_without_a_prefill_engine_requests_wait_for_one(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        await asyncio.sleep(8)
        assert not request.done()
        assert not world.calls("a")
        await world.joined("pa")
        await world.legs()
        await world.answer()
        assert (await request).attempts == 1

    play(scenario, "a", protocol, handover=missing("wait"))


def test_p6_and_once_more_as_long_when_the_one_that_came_is_lost() -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        await asyncio.sleep(8)
        await world.joined("pa")
        await world.call("p")
        began = asyncio.get_running_loop().time()
        world.process["p"].break_links()
        world.process["p"].refuses = errors.ProbeFailed("sick")
        with pytest.raises(errors.EngineUnavailable):
            await request
        assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=0.1)

    play(scenario, "a", handover=missing("wait"))


@BOTH
def test_p6_and_are_told_so_when_none_comes(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(errors.NoEngine, match="no prefill engine"):
            await world.ask()
        assert loop.time() - began == pytest.approx(10)
        assert world.generator.lack() == "no prefill engine can take a request for this model now"

    play(scenario, "a", protocol, handover=missing("wait"))


@pytest.mark.parametrize(("protocol", "policy"), [(SGLANG, "fail"), (VLLM, "fail"), (SGLANG, "decode")])
def test_p6_or_at_once(protocol: ProtocolName, policy: PrefillMissing) -> None:
    async def scenario(world: World) -> None:
        began = asyncio.get_running_loop().time()
        with pytest.raises(errors.NoEngine, match="no prefill engine"):
            await world.ask()
        assert asyncio.get_running_loop().time() == began
        assert not world.calls("a")

    play(scenario, "a", protocol, handover=missing(policy))


def test_p6_or_run_on_a_decode_engine_alone() -> None:
    async def scenario(world: World) -> None:
        told: list[Choice] = []
        request = world.ask(request=TokenRequest([1, 2, 3], 4, Sampling(), decided=told.append))
        call = await world.call("a")
        assert (call.request.handover, call.request.prefill_only) == (None, False)
        ((_, load),) = [(key, load) for key, load in world.ledger if load.requests]
        assert (load.tokens, load.prefill_tokens) == (3, 3)
        call.deliver([7], Finish.STOP)
        outcome = await request
        assert isinstance(outcome.decision, Alone)
        assert told == [outcome.decision]
        assert world.generator.lack() is None
        assert world.generator.pairs.in_flight == {}

    play(scenario, "a", VLLM, handover=missing("decode"))


def test_short_prompts_run_on_a_decode_engine_alone() -> None:
    async def scenario(world: World) -> None:
        world.process["a"].answers = world.process["p"].answers = True
        short = await world.ask(request=TokenRequest([1] * 7, 4, Sampling()))
        long = await world.ask(request=TokenRequest([1] * 8, 4, Sampling()))
        assert (type(short.decision), type(long.decision)) == (Alone, PairDecision)
        assert len(world.calls("p")) == 1
        assert isinstance(world.generator.explain(REQUEST), Alone)

    play(scenario, "pa", VLLM, handover=HandoverSettings(prefill_min_tokens=8))


@BOTH
def test_p6_without_a_decode_engine_requests_wait_a_moment(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        await asyncio.sleep(0.5)
        await world.joined("pa")
        await world.legs()
        await world.answer()
        await request
        world.know("p")
        await asyncio.sleep(0.1)
        with pytest.raises(errors.NoEngine):
            await world.ask()

    play(scenario, "p", protocol)


@BOTH
def test_p6_a_moment_without_a_decode_engine_does_not_shorten_the_wait_for_a_prefill_engine(
    protocol: ProtocolName,
) -> None:
    async def scenario(world: World) -> None:
        loop = asyncio.get_running_loop()
        await world.joined("")
        began = loop.time()
        request = world.ask()
        await asyncio.sleep(0.5)
        world.know("a")
        with pytest.raises(errors.NoEngine, match="no prefill engine"):
            await request
        assert loop.time() - began == pytest.approx(10.5, abs=0.3)

    play(scenario, "pa", protocol, handover=missing("wait"))


@BOTH
def test_m2_losing_the_only_prefill_engine_costs_the_request_a_moment(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        request = world.ask()
        await world.call(PREFILL)
        world.process["p"].break_links()
        await world.legs()
        await world.answer()
        assert (await request).attempts == 2

    play(scenario, "pa", protocol)


@BOTH
@pytest.mark.parametrize("role", [PREFILL, DECODE])
def test_an_engine_that_was_withdrawn_between_choice_and_dispatch_is_sent_nothing(
    protocol: ProtocolName, role: str
) -> None:
    async def scenario(world: World) -> None:
        gone: list[str] = []

        def fits() -> bool:
            if not gone:
                choice = chosen[-1]
                assert isinstance(choice, PairDecision)
                decision = choice.prefill if role == PREFILL else choice.decode
                gone.append(decision.chosen.engine_id)
                world.know("pqab".replace(gone[0], ""))
            return True

        chosen: list[Choice] = []
        choose = world.generator._chooser.choose

        def noted(*args: Any, **how: Any) -> Choice:
            chosen.append(choose(*args, **how))
            return chosen[-1]

        world.generator._chooser.choose = noted  # type: ignore[method-assign]
        request = world.ask(request=TokenRequest([1, 2, 3], 4, Sampling(), fits=fits))
        await world.legs()
        await world.answer()
        assert (await request).attempts == 1
        assert len(chosen) == 2
        assert not world.calls(gone[0])

    play(scenario, "pqab", protocol)


@BOTH
def test_a_burst_waits_for_room_at_the_prefill_engines_in_order(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        requests = [world.ask() for _ in range(9)]
        await asyncio.sleep(0.01)
        assert len(world.open(PREFILL)) == 2
        assert world.generator.pairs.waiting == 7
        requests[5].cancel()
        await asyncio.sleep(0.01)
        assert world.generator.pairs.waiting == 6
        done: list[int] = []
        for number, request in enumerate(requests):
            request.add_done_callback(lambda _, number=number: done.append(number))  # type: ignore[misc]
        for _ in range(8):
            assert len(world.open(PREFILL)) <= 2
            prefill = world.open(PREFILL)[0]
            prefill.deliver([9], Finish.LENGTH)
            await asyncio.sleep(0.01)
            mates = [call for call in world.open(DECODE) if call.request.handover in (prefill.request.handover, KEPT)]
            for call in mates:
                call.deliver([7], Finish.STOP)
            await asyncio.sleep(0.01)
        assert all(request.done() for request in requests)
        assert [number for number in done if number != 5] == [0, 1, 2, 3, 4, 6, 7, 8]

    play(scenario, "pabc", protocol, handover=HandoverSettings(max_handovers_per_prefill=2))


def test_for_each_free_place_one_of_those_who_wait_looks_again_and_no_other() -> None:
    async def scenario(world: World) -> None:
        requests = [world.ask() for _ in range(5)]
        await asyncio.sleep(0.001)
        looks = 0
        choose = world.generator._chooser.choose

        def counted(*args: Any, **how: Any) -> Choice:
            nonlocal looks
            looks += 1
            return choose(*args, **how)

        world.generator._chooser.choose = counted  # type: ignore[method-assign]
        for number in range(1, 5):
            world.open("p")[0].deliver([9], Finish.LENGTH)
            await asyncio.sleep(0.001)
            assert looks == number
        world.open("p")[0].deliver([9], Finish.LENGTH)
        for call in world.open("a"):
            call.deliver([7], Finish.LENGTH)
        await asyncio.gather(*requests)

    play(scenario, "pa", handover=HandoverSettings(max_handovers_per_prefill=1))


def test_who_waits_too_long_for_room_is_told_to_come_again() -> None:
    async def scenario(world: World) -> None:
        first = world.ask()
        await asyncio.sleep(1)
        second = world.ask()
        await asyncio.sleep(1)
        with pytest.raises(errors.Overloaded):
            world.generator.explain(REQUEST)
        world.open("a")[0].deliver([7])
        third = world.ask()
        await asyncio.sleep(0.1)
        assert len(world.calls("p")) == 2, "the second has the first one's room"
        assert not second.done()
        with pytest.raises(errors.Overloaded, match="every prefill engine"):
            await third
        for task in (first, second):
            task.cancel()

    play(
        scenario,
        "pa",
        limits=RequestSettings(first_token_timeout=5),
        handover=HandoverSettings(max_handovers_per_prefill=1, handover_timeout=100),
    )


def test_a_prefill_engine_that_joins_is_room_for_those_who_wait() -> None:
    async def scenario(world: World) -> None:
        requests = [world.ask(), world.ask()]
        await asyncio.sleep(0.01)
        assert world.generator.pairs.waiting == 1
        await world.joined("pqa")
        await asyncio.sleep(0.01)
        assert world.generator.pairs.waiting == 0
        for call in world.open("pqa"):
            call.deliver([7], Finish.LENGTH)
        await asyncio.gather(*requests)

    play(scenario, "pa", handover=HandoverSettings(max_handovers_per_prefill=1))


def test_a_turn_that_is_of_no_use_goes_to_the_next() -> None:
    async def scenario(world: World) -> None:
        outdated = TokenRequest([1, 2, 3], 4, Sampling(), fits=lambda: False)
        first = world.ask()
        await asyncio.sleep(0.001)
        second, third = world.ask(request=outdated), world.ask()
        await asyncio.sleep(0.001)
        world.open("p")[0].deliver([9], Finish.LENGTH)
        await asyncio.sleep(0.001)
        assert second.done()
        assert second.exception() is not None
        assert len(world.open("p")) == 1
        for call in world.open("pa"):
            call.deliver([7], Finish.LENGTH)
        await asyncio.gather(first, third)

    play(scenario, "pa", handover=HandoverSettings(max_handovers_per_prefill=1))


def test_engines_that_do_not_fit_are_never_paired_and_that_is_said() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(errors.NoEngine, match="no decode engine can take over"):
            await world.ask()
        assert world.generator.lack() == "no decode engine can take over from the prefill engines that are there"
        assert not world.calls("pa")

    async def prepared(world: World) -> None:
        world.start("p", kv_dtype="fp8")
        world.start("a", kv_dtype="auto")
        await world.joined("pa")
        await scenario(world)

    play(prepared, "", handover=missing("wait"))


def test_a_choice_of_two_is_told_and_explained() -> None:
    async def scenario(world: World) -> None:
        world.process["a"].answers = world.process["p"].answers = True
        told: list[Choice] = []
        outcome = await world.ask(request=TokenRequest([1, 2, 3], 4, Sampling(), decided=told.append))
        assert told == [outcome.decision]
        assert isinstance(outcome.decision, PairDecision)
        assert (outcome.decision.prefill.chosen.name, outcome.decision.decode.chosen.name) == ("ns/p", "ns/a")
        assert world.meter.choices == [("only-one", 0)]
        explained = world.generator.explain(REQUEST)
        assert isinstance(explained, PairDecision)
        assert {part.engine for part in explained.prefill.parts} == {"ns/p"}
        assert {part.engine for part in explained.decode.parts} == {"ns/a"}
        assert world.ledger.in_flight == 0

    play(scenario)


def test_the_room_of_an_sglang_leg_says_which_rank_prefills() -> None:
    async def scenario(world: World) -> None:
        for process in world.process.values():
            process.answers = True
        for _ in range(50):
            outcome = await world.ask()
            assert isinstance(outcome.decision, PairDecision)
            prefill, decode = world.calls("p")[-1].request, world.calls("a")[-1].request
            assert prefill.handover is not None
            assert prefill.handover.room % 8 == outcome.decision.prefill.chosen.rank  # type: ignore[union-attr]
            assert decode.rank == outcome.decision.decode.chosen.rank

    async def prepared(world: World) -> None:
        world.start("p", ranks=8)
        world.start("a", ranks=2)
        await world.joined("pa")
        await scenario(world)

    play(prepared, "")


@pytest.mark.parametrize(("protocol", "decodes"), [(SGLANG, 0), (VLLM, 96)])
def test_engines_of_a_pair_are_known_to_hold_the_prompt_unless_they_forget_what_they_fetch(
    protocol: ProtocolName, decodes: int
) -> None:
    async def scenario(world: World) -> None:
        for process in world.process.values():
            process.answers = True
        request = TokenRequest(list(range(100)), 1, Sampling())
        first = (await world.ask(request=request)).decision
        assert isinstance(first, PairDecision)
        for _ in range(10):
            again = (await world.ask(request=request)).decision
            assert isinstance(again, PairDecision)
            assert again.prefill.chosen.name == first.prefill.chosen.name
            assert (again.prefill.predicted, again.decode.predicted) == (96, decodes)
            assert not decodes or again.decode.chosen.name == first.decode.chosen.name
        explained = world.generator.explain(request)
        assert isinstance(explained, PairDecision)
        held = {part.engine: part.held for part in (*explained.prefill.parts, *explained.decode.parts)}
        assert sorted(held.values(), key=int) == [0, 0, decodes, 96]

    play(scenario, "pqab", protocol, routing=RoutingSettings(policy="kv"))


def test_what_a_decode_engine_of_sglang_keeps_it_tells_itself() -> None:
    async def scenario(world: World) -> None:
        request = TokenRequest(list(range(100)), 1, Sampling())
        publisher = world.process["b"].kv[0] = FakePublisher()
        await world.joined("pab")
        publisher.publish(fake_stored(request.token_ids))
        await asyncio.sleep(1)
        choice = world.generator.explain(request)
        assert isinstance(choice, PairDecision)
        assert {part.engine: part.held for part in choice.decode.parts} == {"ns/a": 0, "ns/b": 96}

    async def prepared(world: World) -> None:
        world.start("b", kv_event_sources=(KvEventSource(0, LINK),))
        await scenario(world)

    play(prepared, "pa", routing=RoutingSettings(policy="kv"))


def test_what_a_prefill_engine_had_cached_is_held_against_its_prediction_alone() -> None:
    async def scenario(world: World) -> None:
        assert world.knowledge is not None
        request = TokenRequest(list(range(100)), 1, Sampling())
        for cached in (0, 96):
            task = world.ask(request=request)
            await asyncio.sleep(0.001)
            (prefill,), (decode,) = world.open("p"), world.open("a")
            prefill.deliver([9], Finish.LENGTH, cached=cached)
            decode.deliver([7], Finish.LENGTH, cached=99)
            await task
        ranks = {rank.key.engine_id: rank for rank in world.knowledge.view(0).ranks}
        assert (ranks["p"].requests, ranks["p"].predicted_tokens, ranks["p"].reported_tokens) == (2, 96, 96)
        assert ranks["a"].requests == 0

    play(scenario, routing=RoutingSettings(policy="kv"))


ONE_EACH = HandoverSettings(max_handovers_per_prefill=1)


def test_a_turn_of_one_who_leaves_goes_to_the_next() -> None:
    async def scenario(world: World) -> None:
        first, second, third = world.ask(), world.ask(), world.ask()
        await asyncio.sleep(0.001)
        world.open("p")[0].deliver([9], Finish.LENGTH)  # wakes the second
        second.cancel()
        await asyncio.sleep(0.001)
        assert len(world.open("p")) == 1
        for call in world.open("pa"):
            call.deliver([7], Finish.LENGTH)
        await asyncio.gather(first, third)

    play(scenario, "pa", handover=ONE_EACH)


def test_who_was_overtaken_keeps_the_first_place() -> None:
    async def scenario(world: World) -> None:
        first, second, third = world.ask(), world.ask(), world.ask()
        await asyncio.sleep(0.001)
        overtakes = world.ask()
        world.open("p")[0].deliver([9], Finish.LENGTH)  # wakes the second, after that one
        done: list[asyncio.Task[Outcome]] = []
        for request in (first, second, third, overtakes):
            request.add_done_callback(done.append)
        while len(done) < 4:
            await asyncio.sleep(0.001)
            for call in (*world.open("p"), *world.open("a")):
                call.deliver([7], Finish.LENGTH)
        assert done == [first, overtakes, second, third]

    play(scenario, "pa", handover=ONE_EACH)


@BOTH
def test_a_change_of_a_pool_leaves_those_who_wait_in_order(protocol: ProtocolName) -> None:
    async def scenario(world: World) -> None:
        requests = [world.ask() for _ in range(5)]
        await asyncio.sleep(0.01)
        await world.joined("pab")
        await asyncio.sleep(0.01)
        assert world.generator.pairs.waiting == 4
        done: list[asyncio.Task[Outcome]] = []
        for request in requests:
            request.add_done_callback(done.append)
        while len(done) < 5:
            for call in (*world.open("p"), *world.open("ab")):
                call.deliver([7], Finish.LENGTH)
            await asyncio.sleep(0.001)
        assert done == requests

    play(scenario, "pa", protocol, handover=ONE_EACH)


@pytest.mark.parametrize("failing", [1, 2])
def test_room_that_the_first_may_not_use_goes_to_the_next_who_may(failing: int) -> None:
    async def scenario(world: World) -> None:
        requests = [world.ask(), world.ask()]
        await asyncio.sleep(0.001)
        for waiting in range(1, failing + 1):  # those that failed at q may only go to p now
            world.open("q")[0].end(errors.EngineOverloaded("full"))
            requests.append(world.ask())
            await asyncio.sleep(0.001)
            assert world.generator.pairs.waiting == waiting
        requests.append(world.ask())
        await asyncio.sleep(0.001)
        assert world.generator.pairs.waiting == failing + 1
        world.open("q")[0].deliver([9], Finish.LENGTH)
        await asyncio.sleep(0.001)
        assert len(world.open("q")) == 1
        assert world.generator.pairs.waiting == failing
        while world.open("pqab"):
            for call in world.open("pqab"):
                call.deliver([7], Finish.LENGTH)
            await asyncio.sleep(0.001)
        await asyncio.gather(*requests)

    play(scenario, "pqab", handover=ONE_EACH)


def test_the_ledger_knows_both_pools() -> None:
    async def scenario(world: World) -> None:
        for names in ("pa", "pab", "pqab", "qb"):
            await world.joined(names)
            for process in world.process.values():
                process.answers = True
            await world.ask()
            assert {engine_id for (engine_id, _, _), _ in world.ledger} == set(names)

    play(scenario)
