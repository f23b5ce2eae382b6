"""Requests that need what not every engine can: who is chosen, and who is told that nobody can. In virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from enginehouse.core.routing.decision import Decision
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.pairs import Alone
from enginehouse.core.routing.policy import PolicyName, RoutingSettings
from enginehouse.domain import errors
from enginehouse.domain.engine import Ability, ProtocolName
from enginehouse.domain.request import Sampling
from enginehouse.domain.stream import Embedding
from enginehouse.service.fleet import Fleet
from enginehouse.service.generate import Generator, RequestSettings, TokenRequest
from enginehouse.testing.clock import run_virtual
from enginehouse.testing.engines import FakeEngines, FakeProcess
from enginehouse.testing.feeds import FakeFeed, fake_wanted
from tests.unit.service.pair_world import SGLANG, VLLM, Meter, Sink
from tests.unit.service.pair_world import World as Pairs
from tests.unit.service.pair_world import play as play_pairs

SOME = frozenset({Ability.GENERATE, Ability.LOGPROBS})
MORE = SOME | {Ability.LOGIT_BIAS, Ability.JSON_SCHEMA}
PLAIN = TokenRequest([1, 2, 3], 4, Sampling())
BIASED = TokenRequest([1, 2, 3], 4, Sampling(), needs=frozenset({Ability.LOGIT_BIAS}))


class World:
    """An aggregated fleet of fake engines named a, b, … that differ in what they can."""

    def __init__(self, policy: PolicyName) -> None:
        self.engines = FakeEngines()
        self.feed = FakeFeed()
        self.fleet = Fleet(self.engines, [self.feed], rng=Random(1))
        self.ledger = Ledger()
        self.generator = Generator(
            self.fleet,
            self.ledger,
            RequestSettings(hold_timeout=2.0),
            RoutingSettings(policy=policy),
            rng=Random(2),
        )
        self.process: dict[str, FakeProcess] = {}
        self.meter = Meter()

    def start(self, name: str, abilities: frozenset[Ability], **fields: object) -> FakeProcess:
        process = self.process[name] = self.engines.listen(self.address(name), abilities=abilities, **fields)
        return process

    @staticmethod
    def address(name: str) -> str:
        return f"10.0.0.{ord(name) - ord('a') + 1}:9000"

    async def joined(self, names: str) -> None:
        self.feed.list(*[fake_wanted(name, self.address(name)) for name in names])
        while {m.engine_id for m in self.fleet.serving.get()} != set(names):
            await self.fleet.serving.changed(self.fleet.serving.version)

    async def answered(self, request: TokenRequest) -> str:
        outcome = await self.generator.run(request, Sink(), self.meter)
        (name,) = [m.engine_id for m in self.fleet.serving.get() if m.name == outcome.engine]
        return name


def play(scenario: Callable[[World], Awaitable[None]], policy: PolicyName = "round-robin") -> None:
    async def main() -> None:
        world = World(policy)
        running = asyncio.create_task(world.fleet.run())
        await scenario(world)
        assert world.ledger.in_flight == 0
        world.ledger.check()
        assert all(engine.streams == 0 for engine in world.fleet.view().engines)
        await world.fleet.close(0)
        await running

    run_virtual(main())


POLICIES = pytest.mark.parametrize("policy", ["round-robin", "random", "least-loaded", "power-of-two"])


@POLICIES
def test_only_engines_that_can_are_chosen(policy: PolicyName) -> None:
    async def scenario(world: World) -> None:
        world.start("a", SOME, protocol=ProtocolName.SGLANG)
        world.start("b", MORE, protocol=ProtocolName.VLLM)
        world.start("c", SOME, protocol=ProtocolName.VLLM_NATIVE)
        world.start("d", MORE, protocol=ProtocolName.VLLM)
        await world.joined("abcd")
        assert {await world.answered(BIASED) for _ in range(40)} == {"b", "d"}
        assert {await world.answered(PLAIN) for _ in range(40)} == set("abcd")

    play(scenario, policy)


def test_a_need_that_no_engine_meets_is_refused_at_once_and_by_name() -> None:
    async def scenario(world: World) -> None:
        world.start("a", SOME)
        await world.joined("a")
        began = asyncio.get_running_loop().time()
        with pytest.raises(errors.InvalidRequest, match=r"logit_bias.*add to the logits") as caught:
            await world.generator.run(BIASED, Sink(), world.meter)
        assert (caught.value.status, caught.value.param, caught.value.code) == (400, "logit_bias", "unsupported_value")
        named = TokenRequest(
            [1], 1, Sampling(), needs=frozenset({Ability.REGEX}), params={Ability.REGEX: "guided_regex"}
        )
        with pytest.raises(errors.InvalidRequest, match="guided_regex") as caught:
            await world.generator.run(named, Sink(), world.meter)
        assert caught.value.param == "guided_regex"
        with pytest.raises(errors.InvalidRequest):
            world.generator.explain(named)
        assert asyncio.get_running_loop().time() == began
        assert not any(engine.calls for engine in world.process["a"].opened)

    play(scenario)


def test_needs_that_no_single_engine_meets_are_all_named() -> None:
    async def scenario(world: World) -> None:
        world.start("a", frozenset({Ability.GENERATE, Ability.REGEX}))
        world.start("b", frozenset({Ability.GENERATE, Ability.LOGPROBS}))
        await world.joined("ab")
        both = TokenRequest([1], 1, Sampling(), needs=frozenset({Ability.REGEX, Ability.LOGPROBS}))
        with pytest.raises(errors.InvalidRequest, match=r"log probabilities and .* regular expression"):
            await world.generator.run(both, Sink(), world.meter)

    play(scenario)


def test_an_empty_fleet_is_waited_for_whatever_a_request_needs() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(errors.NoEngine):
            await world.generator.run(BIASED, Sink(), world.meter)
        world.start("b", MORE)
        request = asyncio.create_task(world.answered(BIASED))
        await asyncio.sleep(1)
        await world.joined("b")
        assert await request == "b"

    play(scenario)


def test_a_retry_goes_to_another_that_can_and_else_says_what_failed() -> None:
    async def scenario(world: World) -> None:
        for name, abilities in (("a", SOME), ("b", MORE), ("c", MORE)):
            world.start(name, abilities)
        await world.joined("abc")
        world.process["b"].fails = lambda _: errors.EngineFailed("no")
        assert [await world.answered(BIASED) for _ in range(4)] == ["c"] * 4
        world.process["c"].fails = lambda _: errors.EngineFailed("no")
        with pytest.raises(errors.EngineFailed):
            await world.generator.run(BIASED, Sink(), world.meter)

    play(scenario)


def test_explain_shows_only_those_that_can() -> None:
    async def scenario(world: World) -> None:
        world.start("a", SOME)
        world.start("b", MORE)
        await world.joined("ab")
        told = world.generator.explain(BIASED)
        assert isinstance(told, Decision)
        assert (told.chosen.engine_id, told.considered) == ("b", 1)

    play(scenario)


def test_text_is_not_asked_of_embedding_engines() -> None:
    async def scenario(world: World) -> None:
        world.start("a", frozenset({Ability.EMBED}))
        await world.joined("a")
        with pytest.raises(errors.InvalidRequest, match="generate text") as caught:
            await world.generator.run(PLAIN, Sink(), world.meter)
        assert caught.value.param == "model"
        assert world.generator.lack() is None
        world.start("b", SOME)
        await world.joined("ab")
        assert [await world.answered(PLAIN) for _ in range(3)] == ["b"] * 3

    play(scenario)


# Pairs.


def pair_needs(*needs: Ability) -> TokenRequest:
    return TokenRequest([1, 2, 3], 4, Sampling(temperature=0.5), needs=frozenset(needs))


@pytest.mark.parametrize("protocol", [SGLANG, VLLM])
def test_of_a_pair_the_decode_engine_has_to_be_able(protocol: ProtocolName) -> None:
    async def scenario(world: Pairs) -> None:
        prefill = MORE if protocol is SGLANG else frozenset({Ability.GENERATE})
        world.start("p", abilities=prefill)
        world.start("a", abilities=SOME)
        world.start("b", abilities=MORE)
        await world.joined("pab")
        for _ in range(4):
            request = world.ask(request=pair_needs(Ability.JSON_SCHEMA))
            _, decode = await world.legs()
            assert world.whose(decode) == "b"
            await world.answer()
            await request
        with pytest.raises(errors.InvalidRequest, match="regular"):
            await world.ask(request=pair_needs(Ability.REGEX))

    play_pairs(scenario, "", protocol)


def test_sglangs_prefill_engine_draws_the_first_token_and_has_to_be_able_too() -> None:
    async def scenario(world: Pairs) -> None:
        world.start("p", abilities=SOME)
        world.start("q", abilities=MORE)
        world.start("a", abilities=MORE)
        await world.joined("pqa")
        for _ in range(4):
            request = world.ask(request=pair_needs(Ability.JSON_SCHEMA))
            prefill, _ = await world.legs()
            assert world.whose(prefill) == "q"
            await world.answer()
            await request
        await world.joined("pa")
        with pytest.raises(errors.InvalidRequest, match="JSON schema"):
            await world.ask(request=pair_needs(Ability.JSON_SCHEMA))

    play_pairs(scenario, "", SGLANG)


def test_what_only_the_engine_knows_that_computed_the_prompt_is_asked_of_one_alone() -> None:
    async def scenario(world: Pairs) -> None:
        asked = pair_needs(Ability.PROMPT_LOGPROBS)
        told = world.generator.explain(asked)
        assert isinstance(told, Alone)
        assert told.because == "prompt-logprobs"
        request = world.ask(request=asked)
        call = await world.call("a")
        assert call.request.handover is None
        await world.answer()
        await request
        assert not world.calls("p")

    play_pairs(scenario, "pa", VLLM)


# Embeddings.

EMBEDS = frozenset({Ability.EMBED})
VECTOR = TokenRequest([1, 2, 3], 1, Sampling())


def test_an_embedding_comes_from_an_engine_that_makes_them() -> None:
    async def scenario(world: World) -> None:
        world.start("a", EMBEDS)
        world.start("b", EMBEDS)
        world.start("c", SOME)
        await world.joined("abc")
        for _ in range(4):
            assert await world.generator.embed(VECTOR, world.meter) == Embedding([3.0, 6.0], 3)
        asked = {name: len(world.process[name].opened[0].embedded) for name in "abc"}
        assert asked == {"a": 2, "b": 2, "c": 0}

    play(scenario)


def test_where_no_engine_makes_embeddings_that_is_said() -> None:
    async def scenario(world: World) -> None:
        world.start("a", SOME)
        await world.joined("a")
        with pytest.raises(errors.InvalidRequest, match="make embeddings") as caught:
            await world.generator.embed(VECTOR, world.meter)
        assert caught.value.param == "model"

    play(scenario)


def test_an_embedding_is_tried_elsewhere_and_a_bad_request_is_not() -> None:
    async def scenario(world: World) -> None:
        world.start("a", EMBEDS)
        world.start("b", EMBEDS)
        await world.joined("ab")
        world.process["a"].fails = lambda _: errors.EngineFailed("no")
        assert [(await world.generator.embed(VECTOR, world.meter)).prompt_tokens for _ in range(2)] == [3, 3]
        assert world.meter.retries == ["engine_failed"]
        for name in "ab":
            world.process[name].fails = lambda _: errors.EngineRejected("too long")
        with pytest.raises(errors.EngineRejected):
            await world.generator.embed(VECTOR, world.meter)
        assert world.meter.retries == ["engine_failed"]

    play(scenario)


def test_an_embedding_that_does_not_come_is_a_timeout_and_the_engine_in_doubt() -> None:
    async def scenario(world: World) -> None:
        world.start("a", EMBEDS).mute = True
        await world.joined("a")
        began = asyncio.get_running_loop().time()
        with pytest.raises(errors.EngineTimeout):
            await world.generator.embed(VECTOR, world.meter)
        assert asyncio.get_running_loop().time() - began >= 120

    play(scenario)


def test_a_client_that_leaves_gives_everything_back() -> None:
    async def scenario(world: World) -> None:
        world.start("a", EMBEDS).mute = True
        await world.joined("a")
        request = asyncio.create_task(world.generator.embed(VECTOR, world.meter))
        await asyncio.sleep(1)
        assert world.ledger.in_flight == 1
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    play(scenario)


def test_an_engine_that_is_lost_fails_its_embeddings() -> None:
    async def scenario(world: World) -> None:
        world.start("a", EMBEDS).mute = True
        world.start("b", EMBEDS)
        await world.joined("ab")
        requests = [asyncio.create_task(world.generator.embed(VECTOR, world.meter)) for _ in range(2)]
        await asyncio.sleep(1)
        world.process["a"].hangs = True  # fails its checks: what it has not begun is taken elsewhere
        world.process["a"].break_links()
        assert [(await request).prompt_tokens for request in requests] == [3, 3]

    play(scenario)
