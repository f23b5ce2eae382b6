"""The fleet as the request path and operators see it: real tasks, fake engines and feeds, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from enginehouse.core.membership.roles import Topology
from enginehouse.core.membership.settings import MembershipSettings
from enginehouse.core.membership.states import State
from enginehouse.core.routing.candidate import Pairing
from enginehouse.domain.engine import EngineInfo, ProtocolName, Role, Target
from enginehouse.domain.errors import (
    EngineBroken,
    EngineFailed,
    EngineOverloaded,
    EngineTimeout,
    EngineUnavailable,
    ProbeFailed,
)
from enginehouse.domain.feed import FeedEvent
from enginehouse.domain.stream import Finish
from enginehouse.service.fleet import Fleet, Member
from enginehouse.testing.clock import run_virtual
from enginehouse.testing.engines import FakeEngine, FakeEngines
from enginehouse.testing.feeds import FakeFeed, fake_wanted

A, B, C = "10.0.0.1:9000", "10.0.0.2:9000", "10.0.0.3:9000"


class World:
    """A running fleet with its fakes."""

    def __init__(self, **options: Any) -> None:
        self.engines = FakeEngines()
        self.feed = FakeFeed()
        settings = MembershipSettings(**options.pop("settings", {}))
        self.fleet = Fleet(self.engines, [self.feed], settings, rng=Random(7), **options)

    @property
    def serving(self) -> list[str]:
        return sorted(member.engine_id for member in self.fleet.serving.get())

    def member(self, engine_id: str) -> Member:
        return next(m for m in self.fleet.serving.get() if m.engine_id == engine_id)

    def engine(self, engine_id: str) -> FakeEngine:
        engine = self.member(engine_id).engine
        assert isinstance(engine, FakeEngine)
        return engine

    def state(self, engine_id: str) -> State | None:
        states = [engine.state for engine in self.fleet.view().engines if engine.engine_id == engine_id]
        return states[-1] if states else None

    async def until(self, condition: Callable[[], object], limit: float = 1000.0) -> None:
        """Let virtual time pass until it holds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while not condition():
            assert loop.time() < end, f"it never came true; {self.fleet.view().engines}"
            await asyncio.sleep(0.01)

    async def serve(self, *addresses: str) -> None:
        """Engines e1, e2, … at these addresses, all the way in."""
        names = [f"e{number}" for number in range(1, len(addresses) + 1)]
        for address in addresses:
            if self.engines.at(address) is None:
                self.engines.listen(address)
        self.feed.list(*(fake_wanted(name, address) for name, address in zip(names, addresses, strict=True)))
        await self.until(lambda: self.serving == names)


def play(scene: Callable[[World], Awaitable[None]], **options: Any) -> World:
    """Run one scene; afterwards nothing may be left: no task, no open link."""

    async def main() -> World:
        world = World(**options)
        run = asyncio.create_task(world.fleet.run(), name="fleet")
        await asyncio.sleep(0)
        try:
            await scene(world)
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert all(process.links == 0 for process in world.engines.processes.values())
        assert world.engines.probing == 0
        return world

    return run_virtual(main())


def test_engines_join_and_leave() -> None:
    async def scene(world: World) -> None:
        await world.serve(A, B)
        assert [member.role for member in world.fleet.serving.get()] == [Role.AGGREGATED] * 2
        assert world.fleet.card.get() is not None
        assert len(world.fleet.runtime_configs.get()) == 2
        world.feed.delete("e1")
        assert world.serving == ["e2"]
        await world.until(lambda: world.engines.processes[A].links == 0)
        assert world.fleet.counters.engines_closed == 1

    play(scene)


def test_promise_1_a_member_withdrawn_after_the_choice_cannot_be_held() -> None:
    async def scene(world: World) -> None:
        await world.serve(A)
        chosen = world.member("e1")
        release = world.fleet.hold(chosen)
        assert release is not None
        release()
        world.feed.apply(fake_wanted("e1", A, eligible=False))
        assert world.fleet.hold(chosen) is None
        world.feed.apply(fake_wanted("e1", A))
        assert world.fleet.hold(chosen) is not None
        world.feed.apply(fake_wanted("e1", A, generation="2"))
        assert world.fleet.hold(chosen) is None
        await world.until(lambda: world.serving == ["e1"])
        assert world.fleet.hold(chosen) is None

    play(scene)


def test_promise_2_m1_withdrawing_cuts_no_stream_and_the_link_closes_after_the_last() -> None:
    async def scene(world: World) -> None:
        await world.serve(A)
        member, engine = world.member("e1"), world.engine("e1")
        cuts: list[str] = []
        first = world.fleet.hold(member, cut=lambda: cuts.append("first"))
        second = world.fleet.hold(member, cut=lambda: cuts.append("second"))
        assert first is not None
        assert second is not None
        world.feed.delete("e1")
        await asyncio.sleep(60)
        first()
        first()
        await asyncio.sleep(1)
        assert not engine.closed
        view = world.fleet.view().engines[0]
        assert (view.state, view.streams) == (State.DRAINING, 1)
        assert view.drain_left == pytest.approx(239, abs=0.5)
        second()
        await world.until(lambda: engine.closed)
        assert cuts == []
        assert world.fleet.view().engines == ()

    play(scene)


def test_at_the_drain_deadline_what_still_runs_is_cut() -> None:
    async def scene(world: World) -> None:
        await world.serve(A)
        engine = world.engine("e1")
        cuts: list[float] = []
        loop = asyncio.get_running_loop()

        def cut() -> None:
            cuts.append(loop.time())
            assert release is not None
            release()

        release = world.fleet.hold(world.member("e1"), cut=cut)
        world.feed.delete("e1")
        began = loop.time()
        await world.until(lambda: engine.closed)
        assert cuts == [pytest.approx(began + 300)]
        assert world.fleet.counters.streams_cut == 1

    play(scene)


def test_promise_4_m11_a_pod_replaced_at_once_with_late_words_of_the_old_one() -> None:
    async def scene(world: World) -> None:
        await world.serve(A)
        old = world.member("e1")
        release = world.fleet.hold(old)
        assert release is not None
        world.feed.delete("e1")
        world.feed.apply(fake_wanted("e1", A))
        await world.until(lambda: world.serving == ["e1"])
        new = world.member("e1")
        assert new.incarnation > old.incarnation
        assert isinstance(old.engine, FakeEngine)
        old.engine.lose("late")
        world.fleet.report_failure(old, EngineUnavailable("late"))
        assert world.serving == ["e1"]
        release()
        await world.until(lambda: old.engine.closed)  # type: ignore[attr-defined]
        assert world.member("e1") == new
        assert not world.engine("e1").closed

    play(scene)


def test_promise_5_a_hanging_probe_delays_nobody() -> None:
    async def scene(world: World) -> None:
        world.engines.listen(A).hangs = True
        world.engines.listen(B)
        world.feed.list(fake_wanted("e1", A), fake_wanted("e2", B))
        loop = asyncio.get_running_loop()
        await world.until(lambda: world.serving == ["e2"])
        assert loop.time() < 0.1
        assert world.state("e1") is State.PROBING
        await world.until(lambda: world.state("e1") is State.FAILED)
        assert world.fleet.view().engines[0].reason == "no answer to the probe within 10 s"
        assert world.fleet.counters.probes_timed_out == 1

    play(scene)


def test_promise_10_d26_every_engine_that_does_not_serve_says_why_and_when_it_is_tried_again() -> None:
    async def scene(world: World) -> None:
        await world.serve(A)
        world.engines.listen(C, context_length=7)
        world.feed.list(
            fake_wanted("e1", A),
            fake_wanted("e2", B),
            fake_wanted("e3", C),
            fake_wanted("e4", None, reason="no IP yet"),
        )
        await world.until(lambda: world.state("e3") is State.REFUSED)
        views = {engine.engine_id: engine for engine in world.fleet.view().engines}
        assert views["e1"].next_try is None
        assert (views["e2"].state, views["e2"].reason) == (State.FAILED, "connection refused")
        assert views["e2"].next_try is not None
        assert views["e3"].reason == "context length 7 differs from the fleet's 4096"
        assert views["e3"].next_try is not None
        assert (views["e4"].state, views["e4"].reason) == (State.WAITING, "no IP yet")
        assert views["e4"].pod is not None
        assert all(view.reason for view in views.values() if view.state is not State.SERVING)
        assert world.fleet.view().states[State.SERVING] == 1

    play(scene)


def test_d13_a_pod_whose_engine_starts_late_joins_by_itself_and_leaves_no_task_when_deleted() -> None:
    async def scene(world: World) -> None:
        world.feed.list(fake_wanted("e1", A), fake_wanted("e2", B))
        await world.until(lambda: world.fleet.counters.probes_failed >= 40)
        world.engines.listen(A)
        began = asyncio.get_running_loop().time()
        await world.until(lambda: world.serving == ["e1"])
        assert asyncio.get_running_loop().time() - began <= 5.1
        world.engines.listen(B).hangs = True
        await world.until(lambda: world.engines.probing == 1)
        world.feed.delete("e2")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert world.engines.probing == 0
        assert world.fleet.counters.probes_cancelled == 1

    play(scene)


def test_d14_twenty_flaps_cost_one_probe_and_one_reading() -> None:
    async def scene(world: World) -> None:
        await world.serve(A)
        engine = world.engine("e1")
        for _ in range(20):
            world.feed.apply(fake_wanted("e1", A, eligible=False))
            assert world.serving == []
            await asyncio.sleep(0.25)
            world.feed.apply(fake_wanted("e1", A))
            assert world.serving == ["e1"]
            await asyncio.sleep(0.25)
        assert len(world.engines.probed) == 1
        assert engine.checks == 0
        assert world.engine("e1") is engine

    play(scene)


def test_d15_with_one_of_two_replaced_at_a_time_somebody_always_serves() -> None:
    async def scene(world: World) -> None:
        await world.serve(A, B)
        for old, new, address in (("e1", "n1", A), ("e2", "n2", B)):
            world.feed.apply(fake_wanted(old, address, eligible=False, reason="terminating"))
            assert world.serving
            world.feed.delete(old)
            world.engines.listen(address)
            world.feed.apply(fake_wanted(new, address))
            await world.until(lambda new=new: new in world.serving)  # type: ignore[misc]
        assert world.serving == ["n1", "n2"]

    play(scene)


def test_d16_another_context_length_takes_over_without_a_gap() -> None:
    async def scene(world: World) -> None:
        await world.serve(A)
        world.engines.listen(B, context_length=8192)
        world.feed.apply(fake_wanted("n1", B))
        await world.until(lambda: world.state("n1") is State.REFUSED)
        gaps: list[tuple[Member, ...]] = []
        watched = world.fleet.serving.map(lambda members: gaps.append(members) if not members else None)
        world.feed.delete("e1")
        assert world.serving == ["n1"]
        assert gaps == []
        assert watched.get() is None
        card = world.fleet.card.get()
        assert card is not None
        assert card.context_length == 8192

    play(scene)


def test_m3_a_reported_failure_takes_it_out_at_once_and_a_check_brings_it_back() -> None:
    async def scene(world: World) -> None:
        await world.serve(A, B)
        member = world.member("e1")
        world.fleet.report_failure(member, EngineOverloaded("full"))
        assert world.serving == ["e1", "e2"]
        world.fleet.report_failure(member, EngineUnavailable("refused"))
        assert world.serving == ["e2"]
        assert world.fleet.hold(member) is None
        await world.until(lambda: world.serving == ["e1", "e2"])
        assert world.engines.probed.count(member.target) == 1
        assert world.fleet.counters.suspicions == 1

    play(scene)


def test_d22_a_dead_engine_is_avoided_through_its_own_link() -> None:
    async def scene(world: World) -> None:
        await world.serve(A, B)
        world.engines.stop(A)
        assert world.serving == ["e2"]
        await world.until(lambda: world.state("e1") is State.FAILED)
        world.engines.listen(A)
        await world.until(lambda: world.serving == ["e1", "e2"])

    play(scene)


def test_a_process_restarted_behind_the_same_address_is_a_new_incarnation() -> None:
    async def scene(world: World) -> None:
        world.engines.listen(A, instance_id="1")
        await world.serve(A)
        old, engine = world.member("e1"), world.engine("e1")
        world.engines.stop(A)
        world.engines.listen(A, instance_id="2")
        await world.until(lambda: world.serving == ["e1"])
        assert world.member("e1").incarnation > old.incarnation
        await world.until(lambda: engine.closed)

    play(scene)


@pytest.mark.parametrize("error", [EngineTimeout("no first token"), EngineBroken("no end")])
def test_g9_health_is_fine_but_generate_is_mute(error: EngineTimeout | EngineBroken) -> None:
    async def scene(world: World) -> None:
        await world.serve(A, B)
        process = world.engines.processes[A]
        process.mute = True
        engine = world.engine("e1")
        world.fleet.report_failure(world.member("e1"), error)
        await asyncio.sleep(100)
        assert world.serving == ["e2"]
        assert engine.calls[0].cancelled
        assert engine.calls[0].request.max_tokens == 4
        process.mute = False
        await world.until(lambda: world.serving == ["e1", "e2"])

    play(scene)


def test_g9_a_health_check_finds_an_engine_that_stopped_serving() -> None:
    async def scene(world: World) -> None:
        await world.serve(A, B)
        world.engines.processes[A].refuses = ProbeFailed("health says NOT_SERVING")
        await world.until(lambda: world.serving == ["e2"])
        assert world.fleet.view().engines[0].reason == "health says NOT_SERVING"

    play(scene)


def test_m9_an_engine_whose_tokens_flow_is_alive_however_late_its_health_check_is() -> None:
    """Engine or frontend have so much to do that a check takes too long: taking engines out would make it worse."""

    async def scene(world: World) -> None:
        await world.serve(A, B)
        world.engines.processes[A].hangs = True
        (engine,) = world.engines.processes[A].opened
        for _ in range(100):
            await asyncio.sleep(1)
            engine.heard += 1
            assert world.serving == ["e1", "e2"]
        await world.until(lambda: world.serving == ["e2"])

    play(scene)


def test_d10_d17_refusals_name_their_reason_and_are_tried_again() -> None:
    async def scene(world: World) -> None:
        process = world.engines.listen(A)
        process.refuses = ProbeFailed(
            "health answers, but there is no Generate: not the head of its engine", permanent=True
        )
        world.feed.list(fake_wanted("e1", A))
        await world.until(lambda: world.state("e1") is State.FAILED)
        assert "no Generate" in world.fleet.view().engines[0].reason
        await asyncio.sleep(100)
        assert world.serving == []
        process.refuses = None
        await world.until(lambda: world.serving == ["e1"], limit=31)

    play(scene)


def test_prefill_and_decode_are_pools_of_their_own() -> None:
    async def scene(world: World) -> None:
        world.engines.listen(A)
        world.engines.listen(B)
        world.feed.list(fake_wanted("e1", A, role=Role.PREFILL))
        await world.until(lambda: world.fleet.prefill.get())
        assert world.fleet.missing.get() == ("no decode engine has joined",)
        world.feed.list(fake_wanted("e1", A, role=Role.PREFILL), fake_wanted("e2", B))
        assert await world.fleet.ready(1) == ()
        assert world.serving == ["e2"]
        assert world.fleet.topology is Topology.DISAGGREGATED
        assert world.fleet.topology_reason == "an engine was given the role prefill"

    play(scene)


def test_a_member_says_where_it_is_met_and_with_whom_it_works() -> None:
    async def scene(world: World) -> None:
        said: dict[str, object] = {"protocol": ProtocolName.SGLANG, "transfer_backend": "nixl"}
        world.engines.listen(A, role=Role.PREFILL, bootstrap_port=8998, **said)
        world.engines.listen(B, role=Role.DECODE, **said)
        one, other = fake_wanted("e1", A), fake_wanted("e2", B)
        assert one.target is not None
        assert other.target is not None
        grouped = replace(one, target=replace(one.target, group="blue", bootstrap_host="head"))
        world.feed.list(grouped, replace(other, target=replace(other.target, bootstrap_port=9)))
        await world.until(lambda: world.fleet.prefill.get() and world.fleet.serving.get())
        (prefill,), (decode,) = world.fleet.prefill.get(), world.fleet.serving.get()
        assert prefill.meeting_point == ("head", 8998)
        assert prefill.pairing == Pairing("sglang", "nixl", None, 16, "blue")
        assert decode.pairing == prefill.pairing._replace(group=None)
        views = {view.engine_id: (view.group, view.meeting_point) for view in world.fleet.view().engines}
        assert views == {"e1": ("blue", ("head", 8998)), "e2": (None, None)}

    play(scene)


def test_ready_waits_for_the_first_engines_and_says_what_it_misses() -> None:
    async def scene(world: World) -> None:
        loop = asyncio.get_running_loop()
        assert await world.fleet.ready(5) == (
            "feed pods has not said yet what there is",
            "no serving engine has joined",
        )
        assert loop.time() == pytest.approx(5)
        listed = asyncio.create_task(world.fleet.first_listing())
        await asyncio.sleep(1)
        assert not listed.done()
        world.engines.listen(A)
        world.feed.list(fake_wanted("e1", A))
        await listed
        assert await world.fleet.ready(5) == ()
        assert world.fleet.counters.listings == {"pods": 1}

    play(scene)


def test_add_admits_and_remove_withdraws() -> None:
    async def scene(world: World) -> None:
        world.engines.listen(A)
        target = Target.parse(f"grpc://{A}")
        member = await world.fleet.add(target)
        assert member.engine_id == f"grpc://{A}"
        assert await world.fleet.add(target) == member
        assert len(world.engines.probed) == 1
        with pytest.raises(ProbeFailed, match="is there already, with role not given"):
            await world.fleet.add(Target.parse(f"grpc://{A}?role=prefill"))
        world.engines.listen(B)
        with pytest.raises(ProbeFailed, match="no place in an aggregated fleet"):
            await world.fleet.add(Target.parse(f"grpc://{B}?role=prefill"))
        with pytest.raises(ProbeFailed, match="connection refused"):
            await world.fleet.add(Target.parse(f"grpc://{C}"))
        assert len(world.fleet.view().engines) == 1
        assert world.fleet.remove(member.engine_id)
        assert world.serving == []
        again = await world.fleet.add(target)
        assert again.incarnation > member.incarnation

    play(scene)


def test_d9_removing_what_is_not_there_says_so() -> None:
    async def scene(world: World) -> None:
        await world.serve(A)
        assert not world.fleet.remove("grpc://10.9.9.9:1")
        assert not world.fleet.remove("e1")
        assert world.fleet.counters.removals_missed == 2
        assert world.serving == ["e1"]

    play(scene)


def test_an_add_that_is_given_up_leaves_nothing() -> None:
    async def scene(world: World) -> None:
        world.engines.listen(A).hangs = True
        adding = asyncio.create_task(world.fleet.add(Target.parse(f"grpc://{A}")))
        await world.until(lambda: world.engines.probing)
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        assert world.fleet.view().engines == ()

    play(scene)


def test_close_drains_then_cuts_then_ends_run() -> None:
    async def main() -> None:
        world = World()
        run = asyncio.create_task(world.fleet.run())
        await asyncio.sleep(0)
        await world.serve(A, B)
        cuts: list[str] = []
        short = world.fleet.hold(world.member("e1"), cut=lambda: cuts.append("short"))
        long = world.fleet.hold(world.member("e2"), cut=lambda: cuts.append("long"))
        assert short is not None
        assert long is not None
        loop = asyncio.get_running_loop()
        loop.call_later(3, short)
        began = loop.time()
        assert await world.fleet.close(10) == 1
        assert cuts == ["long"]
        assert loop.time() - began == pytest.approx(15)
        assert world.fleet.serving.get() == ()
        assert world.fleet.serving.closed
        await run
        assert all(process.links == 0 for process in world.engines.processes.values())

    run_virtual(main())


def test_close_of_an_idle_fleet_takes_no_time() -> None:
    async def main() -> None:
        world = World()
        run = asyncio.create_task(world.fleet.run())
        await asyncio.sleep(0)
        await world.serve(A)
        began = asyncio.get_running_loop().time()
        assert await world.fleet.close(60) == 0
        assert asyncio.get_running_loop().time() == began
        await run

    run_virtual(main())


def test_the_last_value_stays_when_the_owner_goes_away_and_nothing_more_is_sent() -> None:
    async def scene(world: World) -> None:
        await world.serve(A)

    world = play(scene)
    assert world.serving == ["e1"]
    assert world.fleet.hold(world.member("e1")) is None


def test_what_is_said_before_it_runs_counts_once_it_does() -> None:
    async def main() -> None:
        world = World()
        world.engines.listen(A)
        adding = asyncio.create_task(world.fleet.add(Target.parse(f"grpc://{A}")))
        run = asyncio.create_task(world.fleet.run())
        assert (await adding).engine_id == f"grpc://{A}"
        await world.fleet.close(0)
        await run

    run_virtual(main())


def test_g9_a_canary_has_to_end_well_not_only_to_begin() -> None:
    async def scene(world: World) -> None:
        await world.serve(A, B)
        engine = world.engine("e1")
        engine.process.answers = False
        world.fleet.report_failure(world.member("e1"), EngineBroken("x"))
        await world.until(lambda: engine.calls)
        engine.calls[-1].deliver([1])
        await asyncio.sleep(1)
        assert world.state("e1") is State.SUSPECT
        engine.calls[-1].end(EngineFailed("it fails with the second token"))
        await world.until(lambda: len(engine.calls) > 1)
        assert world.state("e1") is State.SUSPECT
        engine.calls[-1].deliver([1, 2], Finish.LENGTH)
        await world.until(lambda: world.state("e1") is State.SERVING)

    play(scene)


def test_g9_tokens_that_flow_meanwhile_do_not_stand_in_for_the_end_of_a_canary() -> None:
    async def scene(world: World) -> None:
        await world.serve(A, B)
        engine = world.engine("e1")
        engine.process.answers = False
        world.fleet.report_failure(world.member("e1"), EngineBroken("x"))
        await world.until(lambda: engine.calls)
        failed = world.fleet.counters.checks_failed
        engine.heard += 1
        engine.calls[-1].deliver([1])
        await world.until(lambda: world.fleet.counters.checks_failed > failed)
        assert world.state("e1") is State.SUSPECT

    play(scene)


@pytest.mark.parametrize("answered", [True, False])
def test_p1_an_answer_that_ends_well_makes_up_for_hand_overs_that_timed_out(*, answered: bool) -> None:
    async def scene(world: World) -> None:
        await world.serve(A, B)
        member = world.member("e1")
        for _ in range(2):
            if answered:
                world.fleet.report_success(member)
            await asyncio.sleep(100)  # the other doubts are forgotten by then
            world.fleet.report_unmet(member, "no first token")
            await asyncio.sleep(30)
        assert world.state("e1") is (State.SERVING if answered else State.SUSPECT)

    play(scene)


def test_the_topology_is_told_once_when_it_is_decided() -> None:
    async def scene(world: World) -> None:
        with capture_logs() as logs:
            await world.serve(A, B)
        told = [entry for entry in logs if entry["event"] == "topology"]
        assert [(entry["topology"], bool(entry["reason"])) for entry in told] == [("aggregated", True)]

    play(scene)


class _Odd(FakeEngines):
    """The engine at B trips a fault of ours wherever it is asked."""

    probes = True

    async def probe(self, target: Target) -> FakeEngine:
        engine = await super().probe(target)
        if target.authority == B:
            if self.probes:
                await engine.close()
                raise OverflowError("cannot convert float infinity to integer")
            _trip(engine)
        return engine


def _trip(engine: FakeEngine) -> None:
    async def check() -> EngineInfo:
        raise RecursionError("too deep")

    async def close() -> None:
        await FakeEngine.close(engine)
        raise TypeError("unhashable")

    engine.check = check  # type: ignore[method-assign]
    engine.close = close  # type: ignore[method-assign]


def test_m3_a_fault_at_one_engine_fails_that_engine_and_not_the_fleet() -> None:
    async def scene(world: World) -> None:
        odd = world.engines = world.fleet._tasks._engines = _Odd()
        odd.listen(B)
        odd.listen(A)
        world.feed.list(fake_wanted("e1", A), fake_wanted("e2", B))
        await world.until(lambda: world.serving == ["e1"] and world.state("e2") is State.FAILED)
        reasons = {engine.engine_id: engine.reason for engine in world.fleet.view().engines}
        assert reasons["e2"] == "fault while probing: OverflowError"
        odd.probes = False
        await world.until(lambda: world.serving == ["e1", "e2"])
        await world.until(lambda: world.state("e2") is State.SUSPECT)
        reasons = {engine.engine_id: engine.reason for engine in world.fleet.view().engines}
        assert reasons["e2"] == "fault while checking: RecursionError"
        world.feed.delete("e2")
        await world.until(lambda: not odd.processes[B].links)
        assert world.serving == ["e1"]

    play(scene)


class _BrokenFeed(FakeFeed):
    async def run(self, post: Callable[[FeedEvent], None]) -> None:
        raise ZeroDivisionError("a bug in a feed")


@pytest.mark.parametrize("where", ["feed", "cut"])
def test_a_bug_ends_the_run_with_its_error(where: str) -> None:
    async def main() -> None:
        feed = _BrokenFeed() if where == "feed" else FakeFeed()
        engines = FakeEngines()
        fleet = Fleet(engines, [feed], MembershipSettings())
        run: asyncio.Task[None] = asyncio.create_task(_forever(fleet.run()))
        await asyncio.sleep(0)
        engines.listen(A)
        feed.list(fake_wanted("e1", A))
        if where == "cut":
            while not fleet.serving.get():
                await asyncio.sleep(0.01)

            def cut() -> None:
                raise ZeroDivisionError("a bug in a request")

            fleet.hold(fleet.serving.get()[0], cut)
            feed.delete("e1")
        with pytest.raises(ZeroDivisionError):
            await run
        assert await fleet.close(1) == 0

    run_virtual(main())


async def _forever(running: Coroutine[Any, Any, None]) -> None:
    await running
