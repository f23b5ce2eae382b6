"""Events from a fleet's engines reach the choice: who is followed when, trust after each fault, and no wrong credit."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from structlog.testing import capture_logs

from enginehouse.core.kv.accuracy import WINDOW
from enginehouse.core.kv.view import Policy
from enginehouse.core.routing.policy import RoutingSettings
from enginehouse.domain.engine import LINK, KvEventSource
from enginehouse.domain.errors import EngineOverloaded
from enginehouse.domain.kv import Cleared, KvEvent, RankKey, Removed, Trust
from enginehouse.domain.stream import Finish
from enginehouse.service import kv_backlog, kv_feed
from enginehouse.service.generate import Generator, RequestSettings
from enginehouse.service.kv_bounds import AT_ONCE, LOOK
from enginehouse.service.kv_claims import Claims
from enginehouse.service.kv_intake import EASY, MOST_TURNS, PAUSE, TURN
from enginehouse.service.kv_lines import BURST, EVERY
from enginehouse.service.kv_sink import Sink
from enginehouse.service.membership import Member
from enginehouse.testing.feeds import fake_wanted
from enginehouse.testing.kv import FakePublisher, FakeSubscription, fake_stored
from tests.unit.service.kv_world import TOKENS, World, play


def test_an_engine_is_subscribed_before_a_request_can_be_sent_to_it() -> None:
    async def scenario(world: World) -> None:
        seen: list[tuple[set[str], set[str]]] = []

        def look(members: tuple[Member, ...]) -> None:
            followed = {source.endpoint for source in world.events.following}
            known = {rank.key.engine_id for rank in world.follower.view().ranks}
            assert known == {member.engine_id for member in members}
            seen.append((followed, known))

        world.start("a")
        world.start("b")
        world.fleet.serving.listen(look)
        await world.joined("ab")
        await world.joined("b")
        assert seen[0] == (set(), set())
        assert seen[-2] == ({"tcp://a:5557", "tcp://b:5557"}, {"a", "b"})
        assert seen[-1] == ({"tcp://b:5557"}, {"b"})

    play(scenario)


def test_the_second_turn_goes_where_the_first_one_is() -> None:
    async def scenario(world: World) -> None:
        publishers = {"a": world.start("a"), "b": world.start("b")}
        await world.joined("ab")
        for first in range(6):
            tokens = [first, *TOKENS]
            name = await world.ask(tokens)
            publishers[name].publish(fake_stored(tokens, base=1000 * first + 1))
            await world.settle()
            again = [*tokens, *range(50)]
            assert world.explain(again).predicted == 96
            assert await world.ask(again, cached=96) == name
        hits = world.rank("a").hits + world.rank("b").hits
        predicted = world.rank("a").predicted_tokens + world.rank("b").predicted_tokens
        assert (hits, predicted) == (6, 6 * 96)

    play(scenario)


def test_history_is_fetched_when_an_engine_joins() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        publisher.publish(fake_stored(TOKENS[:64]))
        publisher.publish(fake_stored(TOKENS, first=4))
        await world.joined("a")
        assert (world.rank("a").trust, world.held()) == (Trust.SYNCED, {("a", None): 96})
        assert publisher.asked == [0]

    play(scenario)


def test_a_history_that_is_cut_is_partial_and_credited() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        publisher.keep = 1
        publisher.publish(fake_stored([5, 6, 7, *TOKENS], base=500))
        publisher.publish(fake_stored(TOKENS))
        await world.joined("a")
        assert (world.rank("a").trust, world.held()) == (Trust.PARTIAL, {("a", None): 96})

    play(scenario)


@pytest.mark.parametrize("replays", [True, False])
def test_k2_a_publisher_that_begins_anew_holds_nothing_of_before(replays: bool) -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a", replays=replays)
        await world.joined("a")
        for first in range(3):
            publisher.publish(fake_stored([first, *TOKENS], base=100 * first + 1))
        publisher.publish(fake_stored(TOKENS, base=1000))
        await world.ask(TOKENS)
        assert world.held() == {("a", None): 96}
        publisher.restart()
        publisher.publish(fake_stored([9, *TOKENS]))
        await world.settle()
        await asyncio.sleep(10)
        assert world.held() == {("a", None): 0}
        assert world.rank("a").heard.restarts == 1
        publisher.publish(fake_stored(TOKENS, base=50))
        await world.settle()
        assert world.held() == {("a", None): 96}
        assert world.rank("a").trust in (Trust.SYNCED, Trust.PARTIAL)

    play(scenario)


@pytest.mark.parametrize("replays", [True, False])
def test_k2_a_restart_behind_a_broken_connection(replays: bool) -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a", replays=replays)
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        await world.ask(TOKENS)
        publisher.lose()
        await world.settle()
        assert world.rank("a").trust is Trust.GAP
        assert world.rank("a").trust_reason == "connection reset"
        publisher.restart()
        publisher.publish(fake_stored([9, *TOKENS]))
        publisher.connect()
        publisher.publish(fake_stored([8, *TOKENS], base=30))
        await asyncio.sleep(10)
        assert world.held() == {("a", None): 0}
        publisher.publish(fake_stored([7, *TOKENS], base=50))
        await world.settle()
        assert world.rank("a").trust is (Trust.SYNCED if replays else Trust.PARTIAL)
        assert world.held() == {("a", None): 0}
        assert world.held([8, *TOKENS]) == {("a", None): 96}

    play(scenario)


def test_k2_what_we_sent_is_gone_with_the_process_that_got_it() -> None:
    """While its history is being fetched only what we sent is credited."""

    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored([9, *TOKENS]))
        await world.ask(TOKENS)
        publisher.mute = True
        publisher.restart()
        publisher.publish(fake_stored([8, *TOKENS]))
        await world.settle()
        assert world.rank("a").trust is Trust.REPLAYING
        assert world.held() == {("a", None): 0}
        await world.ask(TOKENS)
        assert world.held() == {("a", None): 96}

    play(scenario)


def test_k2_what_we_sent_is_gone_with_a_connection_that_nothing_can_vouch_for() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a", replays=False)
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        publisher.publish(lost=True)
        publisher.publish()
        await world.ask(TOKENS)
        assert world.held() == {("a", None): 96}, "events were lost, and what we sent counts"
        publisher.lose()
        await world.settle()
        assert world.held() == {("a", None): 0}
        await world.ask(TOKENS)
        publisher.lose("no route to host")
        await world.settle()
        assert world.held() == {("a", None): 96}, "it was not connected meanwhile"

    play(scenario)


def test_k2_an_engine_that_leaves_takes_its_knowledge_along_and_comes_back_empty() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        world.start("b")
        await world.joined("ab")
        publisher.publish(fake_stored(TOKENS))
        await world.settle()
        assert world.held() == {("a", None): 96, ("b", None): 0}
        await world.joined("b")
        assert world.held() == {("b", None): 0}
        assert world.follower.view().blocks == 0
        publisher.publish(fake_stored([9, *TOKENS], base=77))
        await world.settle()
        assert world.follower.view().blocks == 0
        world.start("a")
        await world.joined("ab")
        assert world.held() == {("b", None): 0, ("a", None): 0}
        assert world.rank("a").trust is Trust.SYNCED

    play(scenario)


def test_k2_a_container_restarted_in_place_is_another_incarnation() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        task = world.send()
        await world.settle()
        before = world.rank("a").key
        world.start("a")
        world.feed.apply(fake_wanted("a", world.address("a"), generation="2"))
        await asyncio.sleep(1)
        after = world.rank("a").key
        assert after.incarnation > before.incarnation
        assert [rank.key for rank in world.follower.view().ranks] == [after]
        assert world.held() == {("a", None): 0}
        world.process["a"].answers = True
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert world.held() == {("a", None): 0}

    play(scenario)


def test_a_pod_that_is_not_ready_for_a_moment_keeps_what_is_known() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        await world.settle()
        world.feed.apply(fake_wanted("a", world.address("a"), eligible=False))
        await world.settle()
        assert not world.fleet.serving.get()
        await world.joined("a")
        assert world.held() == {("a", None): 96}
        assert len(world.events.opened) == 1

    play(scenario)


def test_k4_lost_events_without_replay_credit_nothing() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a", replays=False)
        world.start("b")
        await world.joined("ab")
        publisher.publish(fake_stored(TOKENS))
        await world.settle()
        assert world.held() == {("a", None): 96, ("b", None): 0}
        publisher.publish(Removed(range(1, 7)), lost=True)
        publisher.publish(fake_stored([7, *TOKENS], base=50))
        await world.settle()
        seen = world.rank("a")
        assert (seen.trust, seen.policy, seen.heard.gaps, seen.heard.lost) == (Trust.GAP, Policy.APPROXIMATE, 1, 1)
        assert "batch 1 did not come" in seen.policy_reason
        assert world.held() == {("a", None): 0, ("b", None): 0}
        assert world.held([7, *TOKENS]) == {("a", None): 0, ("b", None): 0}
        publisher.publish(fake_stored([8, *TOKENS], base=70))
        await world.settle()
        assert world.rank("a").trust is Trust.PARTIAL
        assert world.held() == {("a", None): 0, ("b", None): 0}
        assert world.held([7, *TOKENS]) == {("a", None): 96, ("b", None): 0}

    play(scenario)


def test_k4_lost_events_are_fetched_where_they_can_be() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        publisher.publish(Removed([6, 5]), lost=True)
        publisher.publish(Removed([4]))
        await world.settle()
        assert (world.rank("a").trust, world.held()) == (Trust.SYNCED, {("a", None): 48})
        assert publisher.asked == [0, 1]

    play(scenario)


def test_what_comes_during_a_replay_is_applied_after_it_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        publisher.slow = 5
        publisher.publish(fake_stored(TOKENS))
        await world.joined("a")
        publisher.publish(Removed([6, 5]))
        publisher.publish(fake_stored(TOKENS[:80], first=4))
        await world.settle()
        assert (world.rank("a").trust, world.held()) == (Trust.REPLAYING, {("a", None): 0})
        answer = publisher.answer

        def answer_and_go_on(subscription: FakeSubscription, rank: int, batches: list[tuple[int, bytes]]) -> None:
            answer(subscription, rank, batches)
            publisher.publish(Removed([5]))  # waits together with the end of the replay
            publisher.publish(Removed([4]))

        monkeypatch.setattr(publisher, "answer", answer_and_go_on)
        await asyncio.sleep(10)
        assert (world.rank("a").trust, world.held()) == (Trust.SYNCED, {("a", None): 48})
        assert publisher.asked == [0]

    play(scenario)


def test_k4_a_replay_that_stays_away_credits_nothing_and_is_asked_for_again() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        publisher.publish(Removed([6, 5]), lost=True)
        publisher.mute = True
        publisher.publish(Removed([4]))
        await world.settle()
        assert (world.rank("a").trust, world.held()) == (Trust.GAP, {("a", None): 0})
        publisher.mute = False
        await asyncio.sleep(60)
        await world.settle()
        assert (world.rank("a").trust, world.held()) == (Trust.SYNCED, {("a", None): 48})

    play(scenario)


def test_k5_engines_with_other_sizes_and_other_hashes_side_by_side() -> None:
    async def scenario(world: World) -> None:
        a, b = world.start("a", block_size=16), world.start("b", block_size=16)
        await world.joined("ab")
        a.publish(fake_stored(TOKENS, base=2**63))
        b.publish(fake_stored(TOKENS, block_size=8, base=5))
        await world.settle()
        assert world.held(TOKENS[:30]) == {("a", None): 16, ("b", None): 24}
        assert (world.rank("a").block_size, world.rank("a").block_sizes_disagree) == (16, False)
        assert (world.rank("b").block_size, world.rank("b").block_sizes_disagree) == (8, True)

    play(scenario)


def test_k6_events_that_cannot_be_reached_show_on_the_rank() -> None:
    async def scenario(world: World) -> None:
        world.start("a", listens=False)
        with capture_logs() as lines:
            await world.joined("a")
        seen = world.rank("a")
        assert (seen.trust, seen.policy) == (Trust.NONE, Policy.APPROXIMATE)
        assert seen.policy_reason == "tcp://a:5557 cannot be reached"
        (told,) = [line for line in lines if line["event"] == "kv events"]
        assert (told["log_level"], told["reason"]) == ("warning", seen.policy_reason)
        assert await world.ask() == "a"
        assert world.held() == {("a", None): 96}, "what we sent counts meanwhile"

    play(scenario)


def test_k6_an_engine_that_publishes_nothing_says_so() -> None:
    async def scenario(world: World) -> None:
        world.start("a", kv_event_sources=())
        await world.joined("a")
        assert world.rank("a").policy_reason == "it publishes no KV events"
        assert not world.events.opened

    play(scenario)


def test_k7_ranks_0_to_7_and_8_to_15() -> None:
    async def scenario(world: World) -> None:
        publishers: dict[int, FakePublisher] = {}
        for name, first in (("a", 0), ("b", 8)):
            sources = tuple(
                KvEventSource(rank, f"tcp://{name}:{5557 + rank}", replay_endpoint="tcp://r:1")
                for rank in range(first, first + 8)
            )
            publishers |= {source.rank: world.events.listen(source.endpoint) for source in sources}
            world.start(name, ranks=8, first_rank=first, kv_event_sources=sources)
        await world.joined("ab")
        publishers[3].publish(fake_stored(TOKENS))
        publishers[11].publish(fake_stored(TOKENS[:64]))
        await world.settle()
        held = world.held()
        assert len(held) == 16
        assert {key: tokens for key, tokens in held.items() if tokens} == {("a", 3): 96, ("b", 11): 64}
        await world.ask(cached=96)
        assert [rank.key.rank for rank in world.follower.view().ranks if rank.hits] == [3]

    play(scenario)


def test_k7_a_rank_that_the_engine_does_not_have() -> None:
    async def scenario(world: World) -> None:
        sources = tuple(KvEventSource(rank, f"tcp://a:{5557 + rank}") for rank in (0, 1, 2))
        publishers = [world.events.listen(source.endpoint, replays=False) for source in sources]
        world.start("a", ranks=2, kv_event_sources=sources)
        await world.joined("a")
        publishers[2].publish(fake_stored(TOKENS))
        publishers[1].publish(fake_stored(TOKENS), rank=0)  # its port is rank 1's, and that counts
        await world.settle()
        assert world.held() == {("a", 0): 0, ("a", 1): 96}
        assert [world.rank("a", rank).heard.misdirected for rank in (0, 1)] == [0, 1]

    play(scenario)


def test_k7_ranks_that_do_not_exist_cost_neither_memory_nor_a_line_each() -> None:
    sink = Sink("a", {})
    with capture_logs() as lines:
        for rank in range(1000):
            sink.on_batch(rank, 0, b"")
            sink.on_batch(0, 0, b"")
    assert 1 < len(lines) < 10
    assert len(sink._strange) == len(lines)


def test_k7_an_engine_with_one_rank_may_number_it_as_it_likes() -> None:
    async def scenario(world: World) -> None:
        source = KvEventSource(5, "tcp://a:5562")
        publisher = world.events.listen(source.endpoint)
        world.start("a", first_rank=5, kv_event_sources=(source,))
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS), rank=5)
        await world.settle()
        assert world.held() == {("a", None): 96}
        assert world.rank("a").heard.misdirected == 0

    play(scenario)


def test_events_over_the_engines_own_link() -> None:
    async def scenario(world: World) -> None:
        world.start("a", ranks=2, kv_event_sources=(KvEventSource(0, LINK),))
        world.process["a"].kv = {0: FakePublisher(replays=False), 1: FakePublisher(replays=False)}
        await world.joined("a")
        world.process["a"].kv[1].publish(fake_stored(TOKENS))
        await world.settle()
        assert world.held() == {("a", 0): 0, ("a", 1): 96}
        assert [world.rank("a", rank).trust for rank in (0, 1)] == [Trust.NONE, Trust.SYNCED]

    play(scenario)


def test_a_link_that_carries_no_events() -> None:
    async def scenario(world: World) -> None:
        world.start("a", kv_event_sources=(KvEventSource(0, LINK),))
        await world.joined("a")
        assert world.rank("a").policy_reason == "it publishes no KV events"

    play(scenario)


def test_an_engine_that_says_later_where_its_events_are() -> None:
    async def scenario(world: World) -> None:
        world.start("a", kv_event_sources=())
        await world.joined("a")
        publisher = world.start("a")
        publisher.publish(fake_stored(TOKENS))
        await asyncio.sleep(10)  # a check reads what it says of itself now
        assert (world.rank("a").trust, world.held()) == (Trust.SYNCED, {("a", None): 96})

    play(scenario)


@pytest.mark.parametrize(("said", "value"), [("block_size", 32), ("kv_capacity_tokens", 64)])
def test_an_engine_that_says_other_sizes_later_is_known_by_them(said: str, value: int) -> None:
    async def scenario(world: World) -> None:
        world.start("a", kv_event_sources=())
        await world.joined("a")
        await world.ask()
        assert world.held() == {("a", None): 96}
        process = world.process["a"]
        world.start("a", kv_event_sources=(), **{said: value})
        world.process["a"] = process  # the link is to it
        await asyncio.sleep(10)
        assert world.held() == {("a", None): 0}
        await world.ask()
        assert world.held() == {("a", None): 96 if said == "block_size" else 32}

    play(scenario)


def test_of_two_sources_for_one_rank_the_first_counts() -> None:
    async def scenario(world: World) -> None:
        sources = (KvEventSource(0, "tcp://a:1"), KvEventSource(0, "tcp://a:2"), KvEventSource(0, LINK))
        publishers = [world.events.listen(source.endpoint, replays=False) for source in sources]
        world.start("a", kv_event_sources=sources)
        await world.joined("a")
        assert [source.endpoint for source in world.events.following] == ["tcp://a:1"]
        publishers[0].publish(fake_stored(TOKENS))
        await world.settle()
        assert world.held() == {("a", None): 96}

    play(scenario)


def test_one_publisher_is_not_taken_for_that_of_two_engines() -> None:
    """Two engines on one host and `--kv-events-port 5557` for all: what one of them holds is not the other's."""

    async def scenario(world: World) -> None:
        publisher = world.start("a")
        source = KvEventSource(0, "tcp://a:5557", replay_endpoint="tcp://a:6557")
        await world.joined("a")
        for name in "bc":
            world.start(name, listens=False, kv_event_sources=(source,))
        with capture_logs() as lines:
            await world.joined("abc")
        publisher.publish(fake_stored(TOKENS))
        await world.settle()
        assert world.held() == {("a", None): 96, ("b", None): 0, ("c", None): 0}
        assert len(world.events.following) == 1
        reason = "tcp://a:5557 is followed for rank 0 of a already: is it the right port?"
        assert (world.rank("b").trust, world.rank("b").policy_reason) == (Trust.NONE, reason)
        told = [(line["engine"], line["reason"]) for line in lines if line["event"] == "kv events refused"]
        assert told == [("b", reason), ("c", reason)]
        await world.joined("bc")
        assert world.held() == {("b", None): 96, ("c", None): 0}, "it may have been the other's from the start"
        assert "is followed for rank 0 of b" in world.rank("c").policy_reason
        await world.joined("c")
        assert world.held() == {("c", None): 96}

    play(scenario)


def test_one_publisher_is_not_taken_for_that_of_two_ranks() -> None:
    async def scenario(world: World) -> None:
        sources = tuple(KvEventSource(rank, "tcp://a:5557") for rank in range(2))
        publisher = world.start("a", replays=False, ranks=2, kv_event_sources=sources)
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        await world.settle()
        assert world.held() == {("a", 0): 96, ("a", 1): 0}
        assert "rank 0 of a already" in world.rank("a", 1).policy_reason

    play(scenario)


def test_a_rank_that_is_refused_a_publisher_may_have_another_source() -> None:
    async def scenario(world: World) -> None:
        world.start("a")
        sources = (KvEventSource(0, "tcp://a:5557"), KvEventSource(0, "tcp://b:5557"))
        other = world.start("b", kv_event_sources=sources)
        await world.joined("ab")
        other.publish(fake_stored(TOKENS))
        await world.settle()
        assert world.held() == {("a", None): 0, ("b", None): 96}

    play(scenario)


def test_k2_the_next_incarnation_follows_the_publisher_of_the_one_before() -> None:
    claims = Claims()
    assert claims.claim("tcp://a:1", RankKey("a", 1, 0)) is None
    assert claims.claim("tcp://a:1", RankKey("a", 2, 0)) is None
    claims.release(["tcp://a:1", "tcp://a:2"], "a", 1)
    assert claims.claim("tcp://a:1", RankKey("b", 3, 0)) == RankKey("a", 2, 0)
    claims.release(["tcp://a:1"], "a", 2)
    assert claims.free("tcp://a:1")


def test_events_that_hit_a_bug_of_ours_cost_that_rank_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        a, b = world.start("a"), world.start("b")
        await world.joined("ab")
        a.publish(fake_stored(TOKENS))
        await world.settle()
        apply = world.knowledge.apply

        def fail(key: RankKey, event: KvEvent) -> None:
            if key.engine_id == "a":
                raise ZeroDivisionError
            apply(key, event)

        monkeypatch.setattr(world.knowledge, "apply", fail)
        a.publish(fake_stored([9, *TOKENS], base=50))
        b.publish(fake_stored(TOKENS))
        a.publish()
        await world.settle()
        assert world.held() == {("a", None): 0, ("b", None): 96}
        assert (world.rank("a").trust, world.rank("a").policy) == (Trust.NONE, Policy.APPROXIMATE)
        assert "see the log" in world.rank("a").policy_reason

    play(scenario)


def test_a_rank_given_up_by_a_fault_of_ours_counts_no_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        monkeypatch.setattr(kv_feed.RankFeed, "_apply", lambda self, payload: 1 / 0)
        publisher.publish(fake_stored(TOKENS))
        await world.settle()
        assert world.rank("a").trust is Trust.NONE
        for number in range(5):
            publisher.publish(fake_stored([number, *TOKENS], base=1000))
        await world.settle()
        assert world.rank("a").heard.overflows == 0

    play(scenario)


def test_k4_a_publisher_that_keeps_losing_batches_does_not_fill_the_log() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a", replays=False)
        await world.joined("a")

        async def lose_some() -> list[int]:
            with capture_logs() as lines:
                for number in range(200):
                    publisher.publish(fake_stored([number, *TOKENS], base=100 * number + 1), lost=number % 3 == 2)
                    await world.settle()
            return [line.get("unsaid", 0) for line in lines if line["event"] == "kv events"]

        assert len(await lose_some()) <= BURST
        await asyncio.sleep(EVERY)
        assert sum(await lose_some()) > 50, "what was not said is counted"

    play(scenario)


def test_what_all_ranks_have_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        room = world.follower._room
        monkeypatch.setattr(room, "_most", 100)
        publishers = [world.start(name, replays=False) for name in "abc"]
        await world.joined("abc")
        for number in range(10):
            for publisher in publishers:
                publisher.publish(fake_stored([number, *TOKENS], base=100 * number + 1))
        assert room.used <= 100
        assert [world.rank(name).heard.overflows > 0 for name in "abc"] == [True, True, True]
        await world.settle()
        assert room.used == 0

    play(scenario)


def test_room_is_given_back_by_what_was_held_for_a_replay_and_by_who_leaves() -> None:
    async def scenario(world: World) -> None:
        room = world.follower._room
        publisher = world.start("a")
        publisher.slow = 1.0
        await world.joined("a")
        for _ in range(2):
            publisher.publish(fake_stored(TOKENS))
        await world.settle()
        assert room.used == 16
        await asyncio.sleep(2)
        assert (room.used, world.rank("a").trust) == (0, Trust.SYNCED)
        publisher.publish(lost=True)
        publisher.publish()
        await world.settle()
        assert room.used == 8
        publisher.publish()
        assert room.used == 16
        world.know("")
        await world.settle()
        assert room.used == 0

    play(scenario)


def test_replays_of_a_fleet_take_turns_and_mute_ones_keep_nobody_waiting() -> None:
    async def scenario(world: World) -> None:
        names = "abcdefghijkl"
        publishers = {name: world.start(name) for name in names}
        for name, publisher in publishers.items():
            publisher.publish(fake_stored(TOKENS))
            publisher.slow = 1000.0 if name in "abcdef" else 0.3
        await world.joined(names)
        asked = [name for name in names if publishers[name].asked]
        assert len(asked) == AT_ONCE
        assert {world.rank(name).trust for name in names} == {Trust.REPLAYING}
        await asyncio.sleep(len(names) * LOOK)
        assert {name for name in names if world.rank(name).trust is Trust.SYNCED} == set("ghijkl")
        assert all(len(publisher.asked) == 1 for publisher in publishers.values())
        publishers["a"].slow = 0.0
        await asyncio.sleep(1000)
        assert {world.rank(name).trust for name in names} == {Trust.SYNCED}

    play(scenario)


def test_a_turn_at_replaying_is_kept_while_batches_come() -> None:
    async def scenario(world: World) -> None:
        names = "abcde"
        publishers = {name: world.start(name) for name in names}
        for publisher in publishers.values():
            publisher.publish(fake_stored(TOKENS))
            publisher.slow = 5.0
        await world.joined(names)
        (waits,) = [name for name in names if not publishers[name].asked]
        for _ in range(8):
            await asyncio.sleep(LOOK / 2)
            for source, subscription in world.events.opened:
                if waits not in source.endpoint:
                    subscription.sink.on_replayed(0, 0, b"again")
        assert not publishers[waits].asked
        await asyncio.sleep(3 * LOOK)
        assert publishers[waits].asked == [0]

    play(scenario)


@pytest.mark.parametrize("how", ["it leaves", "its connection breaks"])
def test_who_waits_for_a_turn_and_goes_is_not_asked_and_keeps_nobody_waiting(how: str) -> None:
    async def scenario(world: World) -> None:
        names = "abcdef"
        publishers = {name: world.start(name) for name in names}
        for publisher in publishers.values():
            publisher.slow = 1000.0
        await world.joined(names)
        gone, left = [name for name in names if not publishers[name].asked]
        if how == "it leaves":
            world.know(left)
        else:
            publishers[gone].lose()
            await world.settle()
            world.know(left + gone)
        await world.settle()
        assert not publishers[gone].asked
        assert publishers[left].asked == [0], "all that were asked have left"

    play(scenario)


def test_a_cleared_cache() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        publisher.publish(Cleared(), fake_stored(TOKENS[:32]))
        await world.settle()
        assert (world.rank("a").trust, world.held()) == (Trust.SYNCED, {("a", None): 32})

    play(scenario)


def test_a_batch_that_cannot_be_read_costs_what_it_may_have_removed() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        publisher.publish(readable=False)
        await world.settle()
        assert (world.rank("a").trust, world.rank("a").heard.malformed) == (Trust.GAP, 1)
        assert world.held() == {("a", None): 0}
        publisher.publish(fake_stored([7, *TOKENS], base=50))
        await world.settle()
        assert world.rank("a").trust is Trust.PARTIAL
        assert world.held([7, *TOKENS]) == {("a", None): 96}

    play(scenario)


def test_a_large_batch_is_applied_in_slices_and_others_go_on_meanwhile() -> None:
    async def scenario(world: World) -> None:
        a, b = world.start("a"), world.start("b")
        await world.joined("ab")
        blocks = 10 * TURN
        long = list(range(16 * blocks))
        a.publish(fake_stored(long))
        b.publish(fake_stored(TOKENS))
        await asyncio.sleep(PAUSE)
        turns = 2  # nobody could look after the first
        small_done_after = turns if world.rank("b").blocks else None
        while world.rank("a").blocks < blocks:
            assert world.rank("a").heard.waiting == 1, "what is begun still waits"
            await asyncio.sleep(0)
            turns += 1
            if small_done_after is None and world.rank("b").blocks:
                small_done_after = turns
        assert turns >= 10
        assert small_done_after is not None
        assert small_done_after <= 2

    play(scenario)


def test_the_more_waits_the_longer_a_turn_within_limits_and_it_shows() -> None:
    """When the loop's passes are long and few, turns of one length would fall behind for ever."""

    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        assert (world.rank("a").heard.waiting, world.rank("a").waiting_age) == (0, None)
        batches, blocks = EASY * 64, len(TOKENS) // 16
        for _ in range(batches):
            publisher.publish(fake_stored(TOKENS))
        assert world.rank("a").heard.waiting == batches
        await asyncio.sleep(PAUSE / 2)
        assert world.rank("a").waiting_age == pytest.approx(PAUSE / 2)
        await asyncio.sleep(PAUSE / 2)  # its first turns are over
        turns = [world.rank("a").heard.batches]
        while world.rank("a").heard.waiting:
            assert world.rank("a").waiting_age == pytest.approx(PAUSE)
            before = world.rank("a").heard.batches
            await asyncio.sleep(0)
            turns.append(world.rank("a").heard.batches - before)
        assert sum(turns) == batches
        most = MOST_TURNS * TURN // blocks
        assert most / 2 < turns[1]
        assert max(turns[1:]) <= most
        assert (world.rank("a").heard.waiting, world.rank("a").waiting_age) == (0, None)

    play(scenario)


def test_what_comes_faster_than_it_is_applied_is_bounded_and_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_backlog, "MOST_BATCHES", 5)

    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        for block in range(6):
            for _ in range(3):
                publisher.publish()
            publisher.publish(fake_stored(TOKENS[: 16 * (block + 1)], first=block))
        assert world.rank("a").heard.overflows == 1
        await asyncio.sleep(60)
        assert (world.rank("a").trust, world.held()) == (Trust.SYNCED, {("a", None): 96})

    play(scenario)


def test_a_flood_of_bytes_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_backlog, "MOST_BYTES", 8 * 5)  # a fake batch has 8

    async def scenario(world: World) -> None:
        publisher = world.start("a", replays=False)
        await world.joined("a")
        for _ in range(30):
            publisher.publish()
        publisher.publish(fake_stored(TOKENS))
        await world.settle()
        assert world.rank("a").heard.overflows == 1
        publisher.publish(fake_stored([9, *TOKENS], base=40))
        publisher.publish()
        await world.settle()
        assert world.rank("a").trust is Trust.PARTIAL
        assert world.held() == {("a", None): 0}
        assert world.held([9, *TOKENS]) == {("a", None): 96}

    play(scenario)


@pytest.mark.parametrize("bound", [("MOST_BATCHES", 5), ("MOST_BYTES", 8 * 5)], ids=str)
def test_batches_that_come_during_a_replay_are_held_within_bounds(
    bound: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_backlog, *bound)

    async def scenario(world: World) -> None:
        publisher = world.start("a")
        publisher.slow = 5
        await world.joined("a")
        for block in range(6):
            publisher.publish()
            publisher.publish(fake_stored(TOKENS[: 16 * (block + 1)], first=block))
            await world.settle()
            assert world.follower._room.used <= 8 * 5
        assert world.rank("a").heard.overflows == 2
        publisher.slow = 0
        await asyncio.sleep(120)
        assert (world.rank("a").trust, world.held()) == (Trust.SYNCED, {("a", None): 96})

    play(scenario)


def test_a_history_that_comes_faster_than_it_is_applied_is_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_backlog, "MOST_BATCHES", 5)

    async def scenario(world: World) -> None:
        publisher = world.start("a")
        for block in range(6):
            publisher.publish()
            publisher.publish(fake_stored(TOKENS[: 16 * (block + 1)], first=block))
        await world.joined("a")
        await asyncio.sleep(1)
        assert publisher.asked == [0, 5, 10]
        assert (world.rank("a").trust, world.held()) == (Trust.SYNCED, {("a", None): 96})

    play(scenario)


def test_an_engine_whose_events_prove_wrong_is_told_to_begin_anew() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        await world.settle()
        for _ in range(WINDOW):
            assert publisher.asked == [0]
            await world.ask(cached=0)
            await asyncio.sleep(10)
        seen = world.rank("a")
        assert (seen.trust, seen.policy) == (Trust.SYNCED, Policy.APPROXIMATE)
        assert "less than half" in seen.policy_reason
        assert publisher.asked == [0, 0]
        for _ in range(WINDOW):
            await world.ask(cached=96)
        assert world.rank("a").policy is Policy.EVENTS

    play(scenario)


def test_a_choice_counts_at_once_and_its_prompt_is_work_until_the_first_token() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS[:64]))
        await world.settle()
        task = world.send()
        await world.settle()
        (load,) = [load for _, load in world.ledger]
        assert (load.tokens, load.prefill_tokens) == (100, 36)
        assert world.held() == {("a", None): 96}
        (call,) = world.open_calls("a")
        call.deliver([1], None, 64)
        assert (load.tokens, load.prefill_tokens) == (100, 0)
        await asyncio.sleep(5)
        assert world.held() == {("a", None): 64}, "no event came"
        call.deliver([2])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        seen = world.rank("a")
        assert (seen.requests, seen.hits, seen.predicted_tokens, seen.reported_tokens) == (1, 1, 64, 64)

    play(scenario)


def test_a_request_that_its_client_leaves_before_the_first_token_leaves_nothing_behind() -> None:
    async def scenario(world: World) -> None:
        world.start("a")
        await world.joined("a")
        task = world.send()
        await world.settle()
        assert world.rank("a").expected_blocks == 6
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert world.rank("a").expected_blocks == 0
        assert world.held() == {("a", None): 0}

    play(scenario)


def test_without_events_an_engine_that_refused_a_prompt_is_not_taken_to_hold_it() -> None:
    async def scenario(world: World) -> None:
        world.start("a", kv_event_sources=())
        world.start("b", kv_event_sources=())
        await world.joined("ab")
        task = world.send()
        await world.settle()
        (name,) = [name for name in "ab" if world.open_calls(name)]
        world.open_calls(name)[0].end(EngineOverloaded("no more requests for now"))
        await world.settle()
        (other,) = [one for one in "ab" if world.open_calls(one)]
        world.open_calls(other)[0].deliver([1], Finish.STOP, 0)
        await task
        await world.settle()
        assert world.held() == {(name, None): 0, (other, None): 96}

    play(scenario)


def test_without_events_a_prompt_that_its_client_left_before_the_first_token_is_not_held() -> None:
    async def scenario(world: World) -> None:
        world.start("a", kv_event_sources=())
        await world.joined("a")
        task = world.send()
        await world.settle()
        assert world.held() == {("a", None): 96}, "it is on its way"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert world.held() == {("a", None): 0}

    play(scenario)


@pytest.mark.parametrize(("instance_id", "held"), [(None, 0), ("1", 96)])
def test_k2_without_events_a_process_that_may_have_died_takes_what_we_sent_it_along(
    instance_id: str | None, held: int
) -> None:
    """Its link was seen to break: it is no restart that nobody could see. One that names itself is the same."""

    async def scenario(world: World) -> None:
        world.start("a", kv_event_sources=(), instance_id=instance_id)
        await world.joined("a")
        await world.ask(cached=0)
        assert world.held() == {("a", None): 96}
        world.engines.stop(world.address("a"))
        await world.settle()
        world.start("a", kv_event_sources=(), instance_id=instance_id)
        await asyncio.sleep(10)
        await world.joined("a")
        assert world.held() == {("a", None): held}

    play(scenario)


def test_without_events_what_is_sent_after_a_break_counts_whatever_else_changes() -> None:
    async def scenario(world: World) -> None:
        world.start("a", kv_event_sources=())
        await world.joined("a")
        world.process["a"].break_links()
        await asyncio.sleep(10)
        await world.joined("a")
        await world.ask(cached=0)
        world.start("b", kv_event_sources=())
        await world.joined("ab")
        assert world.held() == {("a", None): 96, ("b", None): 0}

    play(scenario)


def test_k2_an_index_that_its_own_connection_vouches_for_outlives_the_link() -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a", instance_id=None)
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        await world.settle()
        world.process["a"].break_links()
        await asyncio.sleep(10)
        await world.joined("a")
        assert world.held() == {("a", None): 96}

    play(scenario)


def test_explaining_changes_no_later_choice() -> None:
    """Nor does asking what is lacking, as readiness checks do."""

    async def scenario(world: World) -> None:
        world.start("a")
        world.start("b")
        await world.joined("ab")
        got: list[list[str]] = []
        for asks in (0, 1):
            world.generator = Generator(
                world.fleet,
                world.ledger,
                RequestSettings(),
                RoutingSettings(policy="round-robin"),
                rng=Random(2),
            )
            names = []
            for _ in range(6):
                for _ in range(asks):
                    world.explain()
                    world.generator.lack()
                names.append(await world.ask())
            got.append(names)
        assert got[0] == got[1]

    play(scenario)


def test_requests_that_a_flush_overtook_say_nothing_of_the_new_view() -> None:
    """Chosen by what was held before the cache was cleared; the events told of the clear, and are right."""

    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored(TOKENS))
        await world.settle()
        tasks = [world.send() for _ in range(WINDOW)]
        await world.settle()
        publisher.publish(Cleared())
        await world.settle()
        for call in world.open_calls("a"):
            call.deliver([1], Finish.STOP, 0)
        await asyncio.gather(*tasks)
        assert world.rank("a").policy is Policy.EVENTS

    play(scenario)


@pytest.mark.parametrize("cached", [10**400, -1])
def test_an_absurd_count_of_cached_tokens_leaves_nothing_open(cached: int) -> None:
    async def scenario(world: World) -> None:
        world.start("a")
        await world.joined("a")
        task = world.send()
        await world.settle()
        (call,) = world.open_calls("a")
        call.deliver([1], Finish.STOP, cached)
        await task
        (seen,) = world.fleet.view().engines
        assert seen.streams == 0
        assert world.rank("a").reported_tokens in (0, 100)

    play(scenario)


def test_an_engine_that_fails_is_not_credited_and_the_next_is_chosen_by_what_is_known_then() -> None:
    async def scenario(world: World) -> None:
        a, b = world.start("a"), world.start("b")
        await world.joined("ab")
        a.publish(fake_stored(TOKENS))
        await world.settle()
        task = world.send()
        await world.settle()
        assert len(world.open_calls("a")) == 1
        b.publish(fake_stored(TOKENS[:32]))
        await world.settle()
        world.engines.stop(world.address("a"))
        await world.settle()
        (call,) = world.open_calls("b")
        (part,) = [load for (engine_id, _, _), load in world.ledger if engine_id == "b"]
        assert part.prefill_tokens == 68
        call.deliver([1], None, 32)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert world.rank("b").hits == 1

    play(scenario)


def test_no_token_of_a_prompt_reaches_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(world: World) -> None:
        publisher = world.start("a")
        await world.joined("a")
        publisher.publish(fake_stored([987654321] * 32), rank=None)
        publisher.publish(readable=False)
        publisher.lose()
        await world.settle()

    play(scenario)
    captured = capsys.readouterr()
    assert "trust" in captured.out + captured.err
    assert "987654321" not in captured.out + captured.err
