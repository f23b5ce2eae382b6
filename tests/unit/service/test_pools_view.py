"""What people read of the two pools, from a generator as it is."""

from __future__ import annotations

import asyncio
import json

from starlette.requests import Request

from enginehouse.domain.stream import Finish
from enginehouse.http.admin import Admin
from enginehouse.service.drain import Readiness
from enginehouse.service.models import Models
from enginehouse.service.pools_view import PoolsView
from tests.unit.service.pair_world import SGLANG, VLLM, World, play


def pools(world: World) -> PoolsView:
    seen = world.generator.pools()
    assert seen is not None
    return seen


def test_p6_what_the_prefill_pool_lacks() -> None:
    async def scenario(world: World) -> None:
        await world.joined("pa")
        assert pools(world).lack is None
        assert pools(world).works_alone
        await world.joined("a")
        assert pools(world).lack == "none"
        await world.joined("p")
        assert pools(world).lack is None, "what is missing then is the other pool"
        assert not pools(world).works_alone
        world.start("b", kv_dtype="fp8_e5m2")
        world.start("q", kv_dtype="bfloat16")
        await world.joined("qb")
        assert pools(world).lack == "incompatible"

    play(scenario, protocol=VLLM)


def test_decode_engines_of_sglang_do_not_work_alone() -> None:
    async def scenario(world: World) -> None:
        await world.joined("pa")
        assert not pools(world).works_alone

    play(scenario, protocol=SGLANG)


def test_a_request_on_two_engines_is_one_in_flight() -> None:
    async def scenario(world: World) -> None:
        async def never(*_: object) -> None:
            raise AssertionError

        models = Models(world.fleet, never, name=None)  # type: ignore[arg-type]
        admin = Admin(
            world.fleet,
            models,
            Readiness(world.fleet, models),
            world.ledger,
            "kv",
            lambda: (b"", ""),
            None,
            world.generator.pools,
        )

        async def page() -> dict[str, object]:
            return json.loads(bytes((await admin.engines(Request({"type": "http"}))).body))  # type: ignore[no-any-return]

        def told(shown: dict[str, object]) -> tuple[object, ...]:
            two = shown["pools"]
            assert isinstance(two, dict)
            return shown["requests_in_flight"], two["pairs_in_flight"], two["handovers_under_way"]

        await world.joined("pa")
        request = world.ask()
        prefill, decode = await world.legs()
        assert told(await page()) == (1, 1, 1)
        prefill.deliver([9], Finish.LENGTH)
        decode.deliver([7])
        await asyncio.sleep(0)
        assert told(await page()) == (1, 1, 0)
        decode.deliver([8], Finish.STOP)
        await request
        assert told(await page()) == (0, 0, 0)

    play(scenario, protocol=SGLANG)
