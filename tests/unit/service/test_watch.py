"""A watch hands out the latest value, tells of real changes only, and keeps the last value."""

from __future__ import annotations

import asyncio

import pytest

from enginehouse.service.watch import Watch, WatchClosed


def test_it_publishes_only_what_differs() -> None:
    watch = Watch((1,))
    assert not watch.publish((1,))
    assert watch.version == 0
    assert watch.publish((2,))
    assert (watch.get(), watch.version) == ((2,), 1)


def test_changed_returns_at_once_when_something_was_missed() -> None:
    async def main() -> None:
        watch = Watch("a")
        seen = watch.version
        watch.publish("b")
        assert await watch.changed(seen) == watch.version

    asyncio.run(main())


def test_changed_wakes_every_waiter() -> None:
    async def main() -> None:
        watch = Watch("a")
        waiters = [asyncio.create_task(watch.changed(watch.version)) for _ in range(3)]
        await asyncio.sleep(0)
        watch.publish("b")
        assert await asyncio.gather(*waiters) == [1, 1, 1]

    asyncio.run(main())


def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    async def main() -> None:
        watch = Watch("a")
        waiter = asyncio.create_task(watch.changed(watch.version))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert not watch._waiters
        watch.publish("b")

    asyncio.run(main())


def test_the_last_value_stays_after_close() -> None:
    async def main() -> None:
        watch = Watch("a")
        waiter = asyncio.create_task(watch.changed(watch.version))
        await asyncio.sleep(0)
        watch.close()
        with pytest.raises(WatchClosed):
            await waiter
        assert not watch.publish("b")
        assert watch.get() == "a"

    asyncio.run(main())


def test_a_projection_publishes_only_when_its_own_value_changes() -> None:
    watch = Watch((1, "x"))
    number = watch.map(lambda value: value[0])
    assert number.get() == 1
    watch.publish((1, "y"))
    assert number.version == 0
    watch.publish((2, "y"))
    assert (number.get(), number.version) == (2, 1)
    watch.close()
    assert number.closed
    assert number.get() == 2


def test_following_yields_now_and_later_and_ends_with_the_watch() -> None:
    async def main() -> None:
        watch = Watch(0)
        seen: list[int] = []

        async def follow() -> None:
            async for value in watch.follow():
                seen.append(value)

        follower = asyncio.create_task(follow())
        await asyncio.sleep(0)
        watch.publish(1)
        await asyncio.sleep(0)
        watch.publish(2)
        watch.publish(3)
        await asyncio.sleep(0)
        watch.close()
        await follower
        assert seen == [0, 1, 3]

    asyncio.run(main())


def test_a_listener_is_called_with_the_value_now_and_from_inside_each_publish() -> None:
    watch = Watch((1,))
    heard: list[tuple[int, ...]] = []
    watch.listen(heard.append)
    assert heard == [(1,)]
    watch.publish((2,))
    assert heard == [(1,), (2,)]
    watch.publish((2,))
    watch.close()
    assert heard == [(1,), (2,)]


def test_what_a_listener_raises_its_owner_gets() -> None:
    watch = Watch(1)

    def fail(value: int) -> None:
        if value == 2:
            raise ValueError("a bug")

    watch.listen(fail)
    with pytest.raises(ValueError, match="a bug"):
        watch.publish(2)
