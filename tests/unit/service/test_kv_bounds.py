"""Turns at replays: so many at once, first come first served, and nobody keeps one for nothing."""

from __future__ import annotations

import asyncio

from enginehouse.service.kv_bounds import AT_ONCE, LONGEST, LOOK, Replays
from enginehouse.testing.clock import run_virtual


class Rank:
    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting = 0


class Desk:
    """Ranks that ask, and who has begun."""

    def __init__(self) -> None:
        self.replays = Replays(asyncio.get_running_loop())
        self.begun: list[str] = []

    def ask(self, *names: str) -> list[Rank]:
        ranks = [Rank(name) for name in names]
        for rank in ranks:
            self.again(rank)
        return ranks

    def again(self, rank: Rank) -> None:
        self.replays.ask(rank, lambda: self.begun.append(rank.name))


NAMES = [str(number) for number in range(AT_ONCE + 3)]


def test_who_ends_lets_the_next_begin() -> None:
    async def test() -> None:
        desk = Desk()
        ranks = desk.ask(*NAMES)
        await asyncio.sleep(0)
        assert desk.begun == NAMES[:AT_ONCE]
        desk.replays.forget(ranks[AT_ONCE])
        desk.replays.over(ranks[1])
        desk.replays.over(ranks[1])
        desk.again(ranks[1])
        await asyncio.sleep(0)
        assert desk.begun == [*NAMES[:AT_ONCE], NAMES[AT_ONCE + 1]], "who asks again is the last"
        for rank in (ranks[0], ranks[2]):
            desk.replays.over(rank)
        await asyncio.sleep(0)
        assert desk.begun[AT_ONCE + 1 :] == [NAMES[AT_ONCE + 2], "1"]

    run_virtual(test())


def test_a_new_question_takes_the_place_of_an_older_one() -> None:
    async def test() -> None:
        desk = Desk()
        ranks = desk.ask(*NAMES)
        await asyncio.sleep(0)
        desk.again(ranks[0])
        assert desk.begun[AT_ONCE:] == ["0"], "it has its turn"
        for rank in (ranks[-1], ranks[-1]):
            desk.again(rank)
        for rank in ranks[:AT_ONCE]:
            desk.replays.over(rank)
        await asyncio.sleep(0)
        assert desk.begun[AT_ONCE + 1 :] == NAMES[AT_ONCE:]

    run_virtual(test())


def test_a_turn_ends_when_nothing_comes_and_nothing_waits() -> None:
    async def test() -> None:
        desk = Desk()
        ranks = desk.ask(*NAMES)
        ranks[0].waiting = 1
        for _ in range(4):
            desk.replays.came(ranks[1])
            await asyncio.sleep(LOOK)
        assert desk.begun == NAMES, "two were silent, and those who came after them"
        await asyncio.sleep(3 * LOOK)
        desk.ask(*"wxyz")
        await asyncio.sleep(0)
        assert desk.begun[len(NAMES) :] == ["w", "x", "y"], "one still has something to work off"

    run_virtual(test())


def test_a_turn_ends_some_time_whatever_comes() -> None:
    async def test() -> None:
        desk = Desk()
        ranks = desk.ask(*NAMES)
        for rank in ranks:
            rank.waiting = 1
        await asyncio.sleep(LONGEST - LOOK)
        assert desk.begun == NAMES[:AT_ONCE]
        await asyncio.sleep(2 * LOOK)
        assert desk.begun == NAMES

    run_virtual(test())
