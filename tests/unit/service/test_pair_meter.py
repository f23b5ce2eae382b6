"""What is measured of pairs: the time until two engines are found, and where the attempts failed that are repeated."""

from __future__ import annotations

import asyncio

import pytest

from enginehouse.domain.errors import EngineFailed
from enginehouse.domain.stream import Finish
from tests.unit.service.pair_world import SGLANG, World, play


def test_the_queue_ends_when_both_engines_are_there() -> None:
    async def scenario(world: World) -> None:
        await world.joined("a")
        request = world.ask()
        await asyncio.sleep(3)
        await world.joined("pa")
        prefill, decode = await world.legs()
        prefill.deliver([9], Finish.LENGTH)
        decode.deliver([8], Finish.STOP)
        await request
        assert world.meter.legs["queue"] == pytest.approx([3], abs=0.2)

    play(scenario, protocol=SGLANG)


def test_a_repeated_attempt_queues_from_the_failure_on_and_is_told_with_its_leg() -> None:
    async def scenario(world: World) -> None:
        await world.joined("paqb")
        request = world.ask()
        prefill, _ = await world.legs()
        await asyncio.sleep(5)
        prefill.end(EngineFailed("no"))
        prefill, decode = await world.legs()
        await asyncio.sleep(5)
        decode.end(EngineFailed("no"))
        prefill, decode = await world.legs()
        prefill.deliver([9], Finish.LENGTH)
        decode.deliver([8], Finish.STOP)
        await request
        assert world.meter.legs["queue"] == pytest.approx([0, 0, 0], abs=0.2)
        assert world.meter.retried_legs == ["prefill", "decode"]

    play(scenario, protocol=SGLANG)
