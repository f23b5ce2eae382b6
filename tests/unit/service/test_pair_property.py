"""Whatever befalls pairs, in whatever order: one outcome each, nothing sent twice, nothing left open or booked."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehouse.core.routing.handover_settings import HandoverSettings
from enginehouse.domain import errors
from enginehouse.domain.engine import ProtocolName
from enginehouse.domain.stream import Finish
from enginehouse.service.generate import Outcome, RequestSettings
from tests.unit.service.pair_world import DECODE, PREFILL, SGLANG, VLLM, Sink, World, play

ENGINES = "pqab"
ERRORS: list[type[errors.EngineError]] = [
    errors.EngineUnavailable,
    errors.EngineTimeout,
    errors.EngineBroken,
    errors.EngineOverloaded,
    errors.EngineFailed,
    errors.HandoverFailed,
    errors.EngineRejected,
]
EVENTS = [
    *["ask", "ask whole", "prefilled", "prefilled", "token", "token", "finish", "finish"],
    *["prefill fails", "decode fails", "leave", "withdraw", "return", "break", "sick", "well", "wait", "wait long"],
    *["leave just as it is prefilled", "finish just as it leaves"],
]


class Story:
    """Carries events out; `chance` says at whom."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = Random(seed)
        self.requests: list[tuple[asyncio.Task[Outcome], Sink]] = []
        self.known = set(ENGINES)

    async def tell(self, event: str) -> None:
        world, chance = self.world, self.chance
        running = [task for task, _ in self.requests if not task.done()]
        match event:
            case "ask" | "ask whole":
                sink = Sink(streamed=event == "ask")
                self.requests.append((world.ask(sink), sink))
            case "prefilled":
                self.deliver(PREFILL, Finish.LENGTH)
            case "token":
                self.deliver(DECODE, None)
            case "finish":
                self.deliver(DECODE, Finish.STOP)
            case "prefill fails" | "decode fails":
                if calls := world.open(PREFILL if event == "prefill fails" else DECODE):
                    chance.choice(calls).end(chance.choice(ERRORS)("as told"))
            case "leave":
                if running:
                    chance.choice(running).cancel()
            case "leave just as it is prefilled":
                if running:
                    chance.choice(running).cancel()
                self.deliver(PREFILL, Finish.LENGTH)
                return
            case "finish just as it leaves":
                self.deliver(DECODE, Finish.STOP)
                if running:
                    chance.choice(running).cancel()
                return
            case "withdraw" | "return":
                name = chance.choice(ENGINES)
                (self.known.discard if event == "withdraw" else self.known.add)(name)
                world.know("".join(sorted(self.known)))
            case "break":
                world.process[chance.choice(ENGINES)].break_links()
            case "sick":
                world.process[chance.choice(ENGINES)].refuses = errors.ProbeFailed("sick")
            case "well":
                for process in world.process.values():
                    process.refuses = None
            case "wait":
                await asyncio.sleep(1)
            case "wait long":
                await asyncio.sleep(25)
        if chance.random() < 0.7:
            await asyncio.sleep(0.01)
        world.ledger.check()

    def deliver(self, names: str, finish: Finish | None) -> None:
        if calls := self.world.open(names):
            self.chance.choice(calls).deliver([7], finish)


@pytest.mark.parametrize("protocol", [SGLANG, VLLM])
@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(EVENTS), min_size=4, max_size=60), st.integers(0, 2**32), st.sampled_from([0, 1, 2]))
def test_p_everything_is_settled_once(protocol: ProtocolName, events: Sequence[str], seed: int, room: int) -> None:
    async def scenario(world: World) -> None:
        story = Story(world, seed)
        for event in events:
            await story.tell(event)
        for process in world.process.values():
            process.refuses = None
        world.know(ENGINES)
        if story.requests:
            _, late = await asyncio.wait([task for task, _ in story.requests], timeout=400)
            assert not late, "every wait is bounded"
        for task, sink in story.requests:
            if task.cancelled() or task.exception() is not None:
                error = None if task.cancelled() else task.exception()
                assert error is None or isinstance(error, errors.EnginehouseError), error
            else:
                assert sink.finish is not None
                assert task.result().attempts <= 3
        assert all(call.request.prefill_only for call in world.calls(PREFILL))
        rooms = [call.request.handover for call in world.calls(PREFILL)]
        if protocol is SGLANG:
            assert len(set(rooms)) == len(rooms)
            assert {call.request.handover for call in world.calls(DECODE)} == set(rooms)

    limits = RequestSettings(first_token_timeout=20, token_timeout=20)
    handover = HandoverSettings(max_handovers_per_prefill=room, handover_timeout=15, prefill_wait=5)
    play(scenario, ENGINES, protocol, limits=limits, handover=handover)
