"""Whatever happens between an engine and us: once it has spoken again, nothing is credited that it does not hold."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from enginehouse.domain.kv import Cleared, KvEvent, Removed, Trust
from enginehouse.testing.kv import FakePublisher, fake_stored
from tests.unit.service.kv_world import World, play

PROMPTS = [[100 * prompt + n for n in range(100)] for prompt in range(3)]
"""Six blocks of 16 each."""

lost = st.booleans()
steps = st.one_of(
    st.tuples(st.just("hold"), st.integers(0, 2), st.integers(0, 6), lost),
    st.tuples(st.just("clear"), st.just(0), st.just(0), lost),
    st.tuples(st.just("break"), st.just(0), st.just(0), st.just(False)),
    st.tuples(st.just("connect"), st.just(0), st.just(0), st.just(False)),
    st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(False)),
    st.tuples(st.just("mute"), st.integers(0, 1), st.just(0), st.just(False)),
    st.tuples(st.just("unreadable"), st.integers(0, 2), st.integers(0, 6), lost),
    st.tuples(st.just("wait"), st.integers(0, 40), st.just(0), st.just(False)),
    st.tuples(st.just("look"), st.just(0), st.just(0), st.just(False)),
)


class Cache:
    """What the engine really holds: of each prompt so many blocks."""

    def __init__(self) -> None:
        self.blocks = [0, 0, 0]

    def change(self, prompt: int, blocks: int) -> list[KvEvent]:
        before, self.blocks[prompt] = self.blocks[prompt], blocks
        base = 1 + 10 * prompt
        if blocks > before:
            return [fake_stored(PROMPTS[prompt][: 16 * blocks], first=before, base=base)]
        return [Removed([base + n for n in range(before - 1, blocks - 1, -1)])] if blocks < before else []

    def clear(self) -> list[KvEvent]:
        self.blocks = [0, 0, 0]
        return [Cleared()]


async def look(world: World, publisher: FakePublisher, cache: Cache) -> None:
    """The engine says something, and now we are right or know nothing."""
    publisher.publish()
    await asyncio.sleep(5)
    trust = world.rank("a").trust
    for prompt, blocks in enumerate(cache.blocks):
        held = world.held(PROMPTS[prompt])["a", None]
        if trust is Trust.SYNCED:
            assert held == 16 * blocks
        else:
            assert held is not None
            assert held <= 16 * blocks


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.sampled_from([3, 10_000]), st.lists(steps, max_size=25))
def test_nothing_is_credited_that_the_engine_does_not_hold(
    replays: bool, keep: int, history: list[tuple[str, int, int, bool]]
) -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a", replays=replays)
        publisher.keep = keep
        cache = Cache()
        await world.joined("a")
        for what, number, blocks, lost in history:
            match what:
                case "hold":
                    publisher.publish(*cache.change(number, blocks), lost=lost)
                case "clear":
                    publisher.publish(*cache.clear(), lost=lost)
                case "break":
                    publisher.lose()
                case "connect":
                    if not publisher.reachable:
                        publisher.connect()
                case "restart":
                    if publisher.reachable:
                        publisher.lose()
                    publisher.restart()
                    cache = Cache()
                    publisher.connect()
                case "mute":
                    publisher.mute = bool(number)
                case "unreadable":
                    publisher.publish(*cache.change(number, blocks), lost=lost, readable=False)
                case "wait":
                    await asyncio.sleep(number)
                case _ if publisher.reachable:
                    await look(world, publisher, cache)
                case _:
                    await world.settle()
        if not publisher.reachable:
            publisher.connect()
        publisher.mute = False
        await look(world, publisher, cache)
        await asyncio.sleep(200)
        publisher.publish()
        await look(world, publisher, cache)
        assert world.rank("a").trust in (Trust.SYNCED, Trust.PARTIAL), "it comes back by itself"

    play(scenario)
