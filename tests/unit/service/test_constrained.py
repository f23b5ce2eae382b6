"""Requests whose answers are held to something that engines cannot compile, in virtual time.

They cost nobody else anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from enginehouse.domain import errors
from enginehouse.domain.constraint import Grammar
from enginehouse.domain.engine import Ability, ProtocolName
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Finish
from enginehouse.service.generate import RequestSettings, TokenRequest
from enginehouse.testing.engines import FakeCall
from tests.unit.service.pair_world import SGLANG, VLLM
from tests.unit.service.pair_world import Sink as PairSink
from tests.unit.service.pair_world import World as Pairs
from tests.unit.service.pair_world import play as play_pairs
from tests.unit.service.test_generate import Sink, World, play

ENDLESS = TokenRequest(
    [1, 2, 3], 4, Sampling(constraint=Grammar("root ::= root")), params={Ability.GRAMMAR: "guided_grammar"}
)
Fails = Callable[[EngineRequest], errors.EngineError | None]


def constrained(error: Callable[[], errors.EngineError]) -> Fails:
    return lambda request: error() if request.sampling.constraint is not None else None


def internal() -> errors.EngineError:
    return errors.EngineFailed("INTERNAL")


def presumed() -> errors.EngineError:
    """As vLLM's decode engine is understood, which does not say why it fails."""
    error = errors.HandoverFailed("the decode engine could not take over")
    error.__cause__ = internal()
    return error


def is_the_clients(error: errors.EnginehouseError) -> None:
    assert (error.status, error.param, error.code) == (400, "guided_grammar", "invalid_constraint")
    assert error.type == "invalid_request_error"


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_an_endless_grammar_is_the_clients_fault_and_no_engines(names: str) -> None:
    async def scenario(world: World) -> None:
        for process in world.process.values():
            process.answers = True
            process.fails = constrained(internal)
        for number in range(50):
            with pytest.raises(errors.ConstraintFailed) as caught:
                await world.generator.run(ENDLESS, Sink(), world.meter)
            is_the_clients(caught.value)
            sink = Sink()
            await world.generate(sink)
            assert sink.finish is Finish.LENGTH
            asked = sum(len(world.calls(name)) for name in names)
            assert asked == (number + 1) * (min(len(names), 2) + 1), "more than two engines tried"
        assert world.fleet.counters.suspicions == 0
        assert len(world.fleet.serving.get()) == len(names)

    play(scenario, names)


def test_one_engine_that_fails_it_is_not_the_last_word() -> None:
    async def scenario(world: World) -> None:
        for process in world.process.values():
            process.answers = True
        world.process["a"].fails = constrained(internal)
        for _ in range(10):
            sink = Sink()
            await world.generator.run(ENDLESS, sink, world.meter)
            assert sink.finish is Finish.LENGTH
        assert set(world.meter.retries) == {"invalid_constraint"}
        assert world.fleet.counters.suspicions == 0

    play(scenario)


def test_with_one_attempt_the_first_engines_failure_is_told_as_the_constraints() -> None:
    async def scenario(world: World) -> None:
        world.process["a"].fails = constrained(internal)
        world.process["b"].fails = constrained(internal)
        with pytest.raises(errors.ConstraintFailed):
            await world.generator.run(ENDLESS, Sink(), world.meter)
        assert not world.meter.retries

    play(scenario, limits=RequestSettings(attempts=1))


@pytest.mark.parametrize("kind", [errors.EngineUnavailable, errors.EngineBroken])
def test_an_engine_that_is_lost_or_broken_is_in_doubt_whatever_it_was_asked(kind: type[errors.EngineError]) -> None:
    async def scenario(world: World) -> None:
        world.process["a"].fails = constrained(lambda: kind("gone"))
        world.process["b"].fails = constrained(lambda: kind("gone"))
        with pytest.raises(kind):
            await world.generator.run(ENDLESS, Sink(), world.meter)
        assert world.fleet.counters.suspicions >= 2

    play(scenario, limits=RequestSettings(attempts=2))


async def open_call(world: World) -> FakeCall:
    """The one that is under way, once there is one."""
    while not (calls := [call for name in world.process for call in world.calls(name) if not call.over]):
        await asyncio.sleep(0.001)
    return calls[0]


def test_a_token_that_the_constraint_has_ruled_out_is_no_beginning() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generator.run(ENDLESS, Sink(streamed=False), world.meter))
        call = await open_call(world)
        call.deliver([0])
        call.end(internal())
        with pytest.raises(errors.ConstraintFailed):
            await request

    play(scenario, "a")


@pytest.mark.parametrize("streamed", [True, False])
def test_what_fails_midway_is_told_as_it_is_until_another_engine_fails_it_too(streamed: bool) -> None:
    async def scenario(world: World) -> None:
        for number in range(10):
            request = asyncio.create_task(world.generator.run(ENDLESS, Sink(streamed=streamed), world.meter))
            for _ in range(1 if streamed else 2):
                call = await open_call(world)
                call.deliver([7, 8])
                call.end(internal())
            with pytest.raises(errors.EngineFailed) as caught:
                await request
            assert isinstance(caught.value, errors.ConstraintFailed) is not streamed, number
        assert world.fleet.counters.suspicions == 0, "a client could take engines out by constraints that fail later"

    play(scenario)


def test_what_an_engine_refuses_names_the_clients_field() -> None:
    async def scenario(world: World) -> None:
        world.process["a"].fails = constrained(lambda: errors.EngineRejected("no grammar"))
        with pytest.raises(errors.EngineRejected) as caught:
            await world.generator.run(ENDLESS, Sink(), world.meter)
        assert (caught.value.param, caught.value.code) == ("guided_grammar", "engine_rejected")

    play(scenario, "a")


@pytest.mark.parametrize(
    ("protocol", "error", "leg"),
    [(VLLM, presumed, "ab"), (SGLANG, internal, "ab"), (SGLANG, internal, "pq"), (VLLM, internal, "pq")],
)
def test_p1_a_pair_that_fails_it_is_no_more_to_blame(
    protocol: ProtocolName, error: Callable[[], errors.EngineError], leg: str
) -> None:
    async def scenario(world: Pairs) -> None:
        for name in "pqab":
            world.process[name].answers = True
            if name in leg:
                world.process[name].fails = constrained(error)
        for _ in range(50):
            with pytest.raises(errors.ConstraintFailed) as caught:
                await world.ask(request=ENDLESS)
            is_the_clients(caught.value)
            sink = PairSink()
            await world.ask(sink)
            assert sink.finish is Finish.LENGTH
        assert world.fleet.counters.suspicions == 0

    play_pairs(scenario, "pqab", protocol)
