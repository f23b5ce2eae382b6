"""Adapters that not every engine has loaded: who is asked, and what is said of those that nobody has. Virtual time."""

import asyncio
from dataclasses import replace

import pytest

from enginehouse.core.routing.decision import Decision
from enginehouse.core.routing.policy import PolicyName
from enginehouse.domain import errors
from enginehouse.domain.engine import Ability, ProtocolName
from enginehouse.domain.errors import ProbeFailed
from enginehouse.domain.kv import namespace
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Finish
from enginehouse.service.generate import TokenRequest
from enginehouse.testing.engines import FakeProcess
from enginehouse.testing.kv import fake_stored
from tests.unit.service.kv_world import TOKENS, Meter, Sink
from tests.unit.service.kv_world import World as KvWorld
from tests.unit.service.kv_world import play as play_kv
from tests.unit.service.pair_world import SGLANG, VLLM
from tests.unit.service.pair_world import World as Pairs
from tests.unit.service.pair_world import play as play_pairs
from tests.unit.service.test_needs import SOME, World, play

PLAIN = TokenRequest([1, 2, 3], 4, Sampling())
ADAPTED = replace(PLAIN, lora="x")
POLICIES: list[PolicyName] = ["round-robin", "random", "least-loaded", "power-of-two"]


def asked(process: FakeProcess) -> list[str | None]:
    """The adapters that were asked for there."""
    return [call.request.lora for engine in process.opened for call in engine.calls]


async def reload(world: World, name: str, *loras: str) -> None:
    """The engine has these adapters now, and its next check has said so."""
    process = world.process[name]
    process.info = replace(process.info, loras=loras)
    while {m.engine_id: m.info.loras for m in world.fleet.serving.get()}[name] != loras:
        await world.fleet.serving.changed(world.fleet.serving.version)


@pytest.mark.parametrize("policy", POLICIES)
def test_o14_an_adapter_on_one_of_three_engines_gets_all_its_requests_there(policy: PolicyName) -> None:
    async def scenario(world: World) -> None:
        for name in "abc":
            world.start(name, SOME, loras=("x", "y") if name == "b" else ("y",))
        await world.joined("abc")
        assert {await world.answered(ADAPTED) for _ in range(9)} == {"b"}
        assert asked(world.process["b"]) == ["x"] * 9
        assert {await world.answered(PLAIN) for _ in range(40)} == set("abc")

    play(scenario, policy)


def test_o14_engines_that_load_it_are_used_and_those_that_unload_it_are_not() -> None:
    async def scenario(world: World) -> None:
        for name in "abc":
            world.start(name, SOME, loras=("x",) if name == "a" else ())
        await world.joined("abc")
        await reload(world, "c", "x")
        assert {await world.answered(ADAPTED) for _ in range(4)} == {"a", "c"}
        await reload(world, "a")
        assert {await world.answered(ADAPTED) for _ in range(4)} == {"c"}
        await reload(world, "c", "y")
        with pytest.raises(errors.ModelNotFound) as caught:
            await world.answered(ADAPTED)
        assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
        assert "'x' does not exist" in caught.value.message
        assert "'m' with the adapters 'y'" in caught.value.message
        with pytest.raises(errors.ModelNotFound):
            world.generator.explain(ADAPTED)
        assert asked(world.process["b"]) == []

    play(scenario)


def test_o14_an_engine_that_is_away_for_a_moment_has_its_adapters_still() -> None:
    async def scenario(world: World) -> None:
        world.start("a", SOME, loras=("x",))
        world.start("b", SOME)
        await world.joined("ab")
        world.process["a"].refuses = ProbeFailed("not now")
        world.process["a"].break_links()
        while len(world.fleet.serving.get()) > 1:
            await world.fleet.serving.changed(world.fleet.serving.version)
        with pytest.raises(errors.NoEngine):
            world.generator.explain(ADAPTED)
        waiting = asyncio.create_task(world.answered(ADAPTED))
        await asyncio.sleep(0.5)
        world.process["a"].refuses = None
        assert await waiting == "a"
        world.process["a"].refuses = ProbeFailed("not now")
        world.process["a"].break_links()
        with pytest.raises(errors.NoEngine):
            await world.answered(ADAPTED)
        assert asked(world.process["b"]) == []

    play(scenario)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_o14_an_engine_that_has_just_unloaded_it_says_so_and_another_is_tried(elsewhere: bool) -> None:
    gone = errors.AdapterNotLoaded("the adapter is not loaded any more", param="model")

    def fails(request: EngineRequest) -> errors.EngineError | None:
        return gone if request.lora else None

    async def scenario(world: World) -> None:
        world.start("a", SOME, loras=("x",)).fails = fails
        world.start("b", SOME, loras=("x",) if elsewhere else ())
        await world.joined("ab")
        for _ in range(20):
            if elsewhere:
                assert await world.answered(ADAPTED) == "b"
            else:
                with pytest.raises(errors.AdapterNotLoaded):
                    await world.answered(ADAPTED)
        assert {m.engine_id for m in world.fleet.serving.get()} == {"a", "b"}
        assert "x" not in asked(world.process["b"]) or elsewhere
        assert {await world.answered(PLAIN) for _ in range(4)} == {"a", "b"}

    play(scenario)


def test_o14_one_engine_needs_the_adapter_and_the_ability_both() -> None:
    async def scenario(world: World) -> None:
        world.start("a", SOME, loras=("x",))
        world.start("b", SOME | {Ability.LOGIT_BIAS})
        await world.joined("ab")
        biased = replace(ADAPTED, needs=frozenset({Ability.LOGIT_BIAS}))
        with pytest.raises(errors.InvalidRequest) as caught:
            await world.answered(biased)
        assert caught.value.code == "unsupported_value"
        await reload(world, "b", "x")
        assert {await world.answered(biased) for _ in range(3)} == {"b"}

    play(scenario)


@pytest.mark.parametrize("protocol", [SGLANG, VLLM])
def test_o14_of_a_pair_both_engines_have_to_have_it(protocol: ProtocolName) -> None:
    async def scenario(world: Pairs) -> None:
        for name in "pqabc":
            world.start(name, loras=("x",) if name in "qb" else ("y",) if name == "c" else ())
        await world.joined("pqabc")
        for _ in range(4):
            request = world.ask(request=ADAPTED)
            prefill, decode = await world.legs()
            assert (world.whose(prefill), world.whose(decode)) == ("q", "b")
            assert (prefill.request.lora, decode.request.lora) == ("x", "x")
            await world.answer()
            await request
        with pytest.raises(errors.ModelNotFound, match="'y' does not exist"):
            await world.ask(request=replace(PLAIN, lora="y"))  # no prefill engine has it
        await world.joined("pab")
        with pytest.raises(errors.ModelNotFound):
            await world.ask(request=ADAPTED)

    play_pairs(scenario, "", protocol)


def test_o14_a_prompt_to_an_adapter_is_not_found_in_the_caches_of_the_model_and_of_other_adapters() -> None:
    async def scenario(world: KvWorld) -> None:
        publishers = {name: world.start(name, loras=("x", "y")) for name in "abc"}
        await world.joined("abc")
        publishers["a"].publish(fake_stored(TOKENS))
        publishers["b"].publish(replace(fake_stored(TOKENS), namespace=namespace("x", None)))
        await world.settle()

        def held(lora: str | None) -> dict[str, int | None]:
            told = world.generator.explain(TokenRequest(TOKENS, 4, Sampling(), lora=lora))
            assert isinstance(told, Decision)
            return {part.engine_id: part.held for part in told.parts}

        assert held(None) == {"a": 96, "b": 0, "c": 0}
        assert held("x") == {"a": 0, "b": 96, "c": 0}
        assert held("y") == dict.fromkeys("abc", 0)

    play_kv(scenario)


def test_o14_what_was_sent_with_an_adapter_is_expected_with_that_adapter_only() -> None:
    async def scenario(world: KvWorld) -> None:
        world.start("a", loras=("x", "y"), kv_event_sources=())
        await world.joined("a")
        request = TokenRequest(TOKENS, 4, Sampling(), lora="x")
        asked = asyncio.create_task(world.generator.run(request, Sink(), Meter()))
        await world.settle()
        (call,) = world.open_calls("a")
        call.deliver([1], Finish.STOP, 0)
        await asked
        held = {}
        for lora in (None, "x", "y"):
            told = world.generator.explain(replace(request, lora=lora))
            assert isinstance(told, Decision)
            held[lora] = told.parts[0].held
        assert held == {None: 0, "x": 96, "y": 0}

    play_kv(scenario)
