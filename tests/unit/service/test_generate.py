"""One request's life on a real fleet of fake engines, in virtual time: retries, deadlines, accounts, cancelling."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.policy import PolicyName, RoutingSettings
from enginehouse.domain import errors
from enginehouse.domain.request import EngineRequest, Sampling
from enginehouse.domain.stream import Delta, Finish
from enginehouse.ports import Call, LegName
from enginehouse.service.fleet import Fleet, Member
from enginehouse.service.generate import Generator, RequestSettings, TokenRequest
from enginehouse.testing.clock import run_virtual
from enginehouse.testing.engines import FakeCall, FakeEngines, FakeProcess
from enginehouse.testing.feeds import FakeFeed, fake_wanted

REQUEST = TokenRequest([1, 2, 3], 4, Sampling())


class Sink:
    """An answer that keeps what it is given; like a streamed one it counts as sent with its first token."""

    def __init__(self, *, enough_after: int = 0, streamed: bool = True) -> None:
        self.ids: list[int] = []
        self.sent = False
        self.finish: Finish | None = None
        self.begun = 0
        self._enough_after = enough_after
        self._streamed = streamed
        self.call: Call | None = None

    def begin(self, call: Call) -> None:
        self.begun += 1
        self.ids.clear()
        self.call = call

    def push(self, delta: Delta) -> bool:
        self.ids += delta.token_ids
        self.sent = self.sent or self._streamed
        self.finish = delta.finish
        return bool(self._enough_after) and len(self.ids) >= self._enough_after


class Meter:
    """Notes the retries."""

    def __init__(self) -> None:
        self.retries: list[str] = []

    def tokens(self, count: int) -> None: ...

    def prompt(self, tokens: int, cached: int = 0) -> None: ...

    def decided(self, rule: str, predicted: int) -> None: ...

    def retried(self, code: str, leg: LegName | None = None) -> None:
        self.retries.append(code)

    def leg(self, leg: LegName, seconds: float) -> None: ...

    def leg_failed(self, leg: LegName, code: str) -> None: ...

    def end(self, status: int, code: str | None = None, *, cut: bool = False) -> None: ...


class World:
    """A fleet of fake engines named a, b, … and a generator on it."""

    def __init__(self, names: str, limits: RequestSettings, routing: RoutingSettings) -> None:
        self.engines = FakeEngines()
        self.feed = FakeFeed()
        self.fleet = Fleet(self.engines, [self.feed], rng=Random(1))
        self.ledger = Ledger()
        self.generator = Generator(self.fleet, self.ledger, limits, routing, rng=Random(2))
        self.process: dict[str, FakeProcess] = {}
        self.meter = Meter()
        for name in names:
            self.start(name)

    def start(self, name: str) -> FakeProcess:
        process = self.process[name] = self.engines.listen(self.address(name))
        process.answers = False
        return process

    def address(self, name: str) -> str:
        return f"10.0.0.{ord(name) - ord('a') + 1}:9000"

    def know(self, names: str) -> None:
        self.feed.list(*[fake_wanted(name, self.address(name)) for name in names])

    async def generate(self, sink: Sink) -> Any:
        return await self.generator.run(REQUEST, sink, self.meter)

    def calls(self, name: str) -> list[FakeCall]:
        """Calls of requests, without the fleet's own canaries."""
        return [
            call
            for engine in self.process[name].opened
            for call in engine.calls
            if list(call.request.token_ids) == REQUEST.token_ids
        ]

    async def call(self, names: str, number: int = 0) -> tuple[str, FakeCall]:
        """The `number`th call that reaches one of these engines, once it does."""
        while True:
            for name in names:
                if len(calls := self.calls(name)) > number:
                    return name, calls[number]
            await asyncio.sleep(0.001)

    def settled(self) -> None:
        assert self.ledger.in_flight == 0
        self.ledger.check()
        assert all(engine.streams == 0 for engine in self.fleet.view().engines)


def play(
    scenario: Callable[[World], Awaitable[None]],
    names: str = "ab",
    limits: RequestSettings | None = None,
    routing: RoutingSettings | None = None,
) -> None:
    async def main() -> None:
        world = World(names, limits or RequestSettings(), routing or RoutingSettings(policy="round-robin"))
        running = asyncio.create_task(world.fleet.run())
        world.know(names)
        while len(world.fleet.serving.get()) < len(names):
            await world.fleet.serving.changed(world.fleet.serving.version)
        await scenario(world)
        world.settled()
        await world.fleet.close(0)
        await running

    run_virtual(main())


def test_a_whole_answer() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = asyncio.create_task(world.generate(sink))
        _, call = await world.call("ab")
        assert list(call.request.token_ids) == [1, 2, 3]
        assert world.ledger.in_flight == 1
        call.deliver([7, 8])
        call.deliver([9], Finish.STOP)
        outcome = await request
        assert (sink.ids, sink.finish, outcome.attempts, outcome.engine_tokens) == ([7, 8, 9], Finish.STOP, 1, 3)
        assert not call.cancelled

    play(scenario)


def test_a_session_stays_with_one_engine() -> None:
    async def scenario(world: World) -> None:
        for process in world.process.values():
            process.answers = True
        for session in "xyz":
            request = TokenRequest([1, 2, 3], 4, Sampling(), session=session)
            seen = {(await world.generator.run(request, Sink(), world.meter)).engine for _ in range(5)}
            assert seen == {world.generator.explain(request).chosen.name}

    play(scenario, "abcd", routing=RoutingSettings(policy="random", affinity="header"))


def test_an_explanation_books_nothing() -> None:
    async def scenario(world: World) -> None:
        decision = world.generator.explain(REQUEST)
        assert {part.engine_id for part in decision.parts} == {"a", "b"}
        assert world.ledger.in_flight == 0
        assert not world.calls("a")
        assert not world.calls("b")

    play(scenario)


def test_a_prompt_is_work_until_its_first_token() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        name, call = await world.call("ab")
        (load,) = [load for (engine_id, _, _), load in world.ledger if engine_id == name]
        assert (load.tokens, load.prefill_tokens) == (3, 3)
        call.sink.on_delta(Delta([], prompt_tokens=3))
        assert load.prefill_tokens == 3
        call.deliver([5])
        assert (load.tokens, load.prefill_tokens) == (3, 0)
        call.deliver([6], Finish.STOP)
        await request

    play(scenario)


def test_m2_an_engine_lost_before_the_first_token_costs_the_client_nothing() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = asyncio.create_task(world.generate(sink))
        name, _ = await world.call("ab")
        world.engines.stop(world.address(name))
        other = "b" if name == "a" else "a"
        _, call = await world.call(other)
        call.deliver([5], Finish.LENGTH)
        assert (await request).attempts == 2
        assert (sink.ids, world.meter.retries) == ([5], ["engine_unavailable"])

    play(scenario)


def test_m2_an_engine_lost_after_the_first_token_is_an_error_and_no_second_answer() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = asyncio.create_task(world.generate(sink))
        name, call = await world.call("ab")
        call.deliver([5, 6, 7, 8, 9])
        world.engines.stop(world.address(name))
        with pytest.raises(errors.EngineUnavailable):
            await request
        assert (sink.ids, sink.begun) == ([5, 6, 7, 8, 9], 1)

    play(scenario)


def test_an_answer_that_is_not_streamed_starts_anew_even_after_tokens() -> None:
    async def scenario(world: World) -> None:
        sink = Sink(streamed=False)
        request = asyncio.create_task(world.generate(sink))
        name, call = await world.call("ab")
        call.deliver([5, 6])
        call.end(errors.EngineFailed("x"))
        _, call = await world.call("b" if name == "a" else "a")
        call.deliver([1], Finish.LENGTH)
        await request
        assert sink.ids == [1]

    play(scenario)


def test_m3_every_request_succeeds_on_its_second_try_when_one_of_two_refuses() -> None:
    async def scenario(world: World) -> None:
        world.engines.stop(world.address("a"))
        world.process["b"].answers = True
        for _ in range(6):
            sink = Sink()
            await world.generate(sink)
            assert sink.finish is Finish.LENGTH
        assert len(world.calls("b")) == 6

    play(scenario)


def test_m3_a_refusing_engine_gets_nothing_more_until_it_was_checked() -> None:
    async def scenario(world: World) -> None:
        world.process["b"].answers = True
        a = world.process["a"]
        a.refuses = errors.ProbeFailed("still not well")
        request = asyncio.create_task(world.generate(Sink()))
        name, call = await world.call("ab")
        while name != "a":
            await request
            request = asyncio.create_task(world.generate(Sink()))
            name, call = await world.call("a")
        call.end(errors.EngineUnavailable("refused"))
        await request
        before = len(world.calls("a"))
        for _ in range(10):
            await world.generate(Sink())
        assert len(world.calls("a")) == before

    play(scenario)


def test_the_last_error_is_told_when_every_engine_was_tried() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        name, call = await world.call("ab")
        call.end(errors.EngineOverloaded("full"))
        _, call = await world.call("b" if name == "a" else "a")
        call.end(errors.EngineFailed("boom"))
        with pytest.raises(errors.EngineFailed, match="boom"):
            await request

    play(scenario)


def test_the_engines_failure_is_told_rather_than_that_all_others_are_full() -> None:
    async def scenario(world: World) -> None:
        requests = [asyncio.create_task(world.generate(Sink())) for _ in range(2)]
        _, call = await world.call("a")
        await world.call("b")
        call.end(errors.EngineFailed("boom"))
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        (failed,) = [request for request in requests if request.done()]
        assert isinstance(failed.exception(), errors.EngineFailed)
        world.calls("b")[0].deliver([1], Finish.LENGTH)
        await asyncio.gather(*requests, return_exceptions=True)

    play(scenario, routing=RoutingSettings(policy="round-robin", max_requests_per_engine=1))


def internal(request: EngineRequest) -> errors.EngineError:
    return errors.EngineFailed("INTERNAL")


def internal_but_for_canaries(request: EngineRequest) -> errors.EngineError | None:
    return None if list(request.token_ids) == [1] else internal(request)


@pytest.mark.parametrize(("fails", "most"), [(internal, 3), (internal_but_for_canaries, 60)])
@pytest.mark.parametrize("policy", ["least-loaded", "round-robin"])
def test_g9_m3_an_engine_that_fails_everything_while_its_health_is_fine_is_no_black_hole(
    fails: Callable[[EngineRequest], errors.EngineError | None], most: int, policy: PolicyName
) -> None:
    async def scenario(world: World) -> None:
        for process in world.process.values():
            process.answers = True
        world.process["a"].fails = fails
        for _ in range(60):
            sinks = [Sink() for _ in range(10)]
            requests = [asyncio.create_task(world.generate(sink)) for sink in sinks]
            await asyncio.gather(*requests)
            assert all(sink.finish is Finish.LENGTH for sink in sinks)
            await asyncio.sleep(0.5)
        assert 3 <= len(world.calls("a")) <= most + 10  # those under way when the third failed

    play(scenario, routing=RoutingSettings(policy=policy))


def test_g9_failures_between_good_answers_say_nothing_about_the_engine() -> None:
    async def scenario(world: World) -> None:
        world.process["a"].answers = True
        turns = iter(range(1000))
        world.process["a"].fails = lambda request: internal(request) if next(turns) % 3 else None
        for _ in range(60):
            await asyncio.gather(world.generate(Sink()), return_exceptions=True)
        assert world.fleet.counters.suspicions == 0
        assert len(world.calls("a")) == 60

    play(scenario, "a")


def test_m14_a_hung_engines_requests_without_a_token_go_elsewhere_within_ten_seconds() -> None:
    async def scenario(world: World) -> None:
        sinks = [Sink(), Sink(), Sink(), Sink()]
        requests = [asyncio.create_task(world.generate(sink)) for sink in sinks]
        await world.call("a", 1)
        await world.call("b", 1)
        started, other = world.calls("a")
        started.deliver([1])
        world.process["a"].hangs = True
        began = asyncio.get_running_loop().time()
        await world.call("b", 2)
        assert asyncio.get_running_loop().time() - began < 10
        assert other.cancelled
        assert not started.cancelled
        for call in world.calls("b"):
            call.deliver([2], Finish.LENGTH)
        started.deliver([2], Finish.LENGTH)
        await asyncio.gather(*requests)
        assert sorted(sink.ids for sink in sinks) == [[1, 2], [2], [2], [2]]

    play(scenario)


def test_m14_without_another_engine_a_request_stays_with_the_one_that_hangs_until_one_comes() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        _, call = await world.call("a")
        world.process["a"].hangs = True
        await asyncio.sleep(20)
        assert not call.cancelled
        world.start("b").answers = True
        world.know("ab")
        await request
        assert call.cancelled

    play(scenario, "a")


def test_d15_m2_a_request_that_lost_the_only_engine_waits_a_moment_for_the_next() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        await world.call("a")
        world.engines.stop(world.address("a"))
        await asyncio.sleep(0.4)
        world.start("a").answers = True
        assert (await request).attempts == 2

    play(scenario, "a")


def test_m2_the_same_process_is_tried_again_once_a_check_has_passed() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        await world.call("a")
        world.process["a"].break_links()
        _, call = await world.call("a", 1)
        call.deliver([1], Finish.LENGTH)
        assert (await request).attempts == 2

    play(scenario, "a")


def test_m2_when_no_engine_comes_the_real_failure_is_told_with_retry_after() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        await world.call("a")
        began = asyncio.get_running_loop().time()
        world.engines.stop(world.address("a"))
        with pytest.raises(errors.EngineUnavailable) as caught:
            await request
        assert caught.value.retry_after == 1
        assert 0.9 < asyncio.get_running_loop().time() - began < 1.5

    play(scenario, "a")


def test_a_failure_that_a_serving_engine_answers_with_is_told_at_once() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        _, call = await world.call("a")
        began = asyncio.get_running_loop().time()
        call.end(errors.EngineOverloaded("full"))
        with pytest.raises(errors.EngineOverloaded) as caught:
            await request
        assert caught.value.retry_after == 1
        assert asyncio.get_running_loop().time() - began < 0.1

    play(scenario, "a")


def test_promise_1_an_engine_withdrawn_between_choice_and_hold_is_left_out_and_another_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        for process in world.process.values():
            process.answers = True
        hold, refused = world.fleet.hold, []

        def once(member: Member, *told: Callable[[], None]) -> Callable[[], None] | None:
            if not refused:
                refused.append(member.engine_id)
                return None
            return hold(member, *told)

        monkeypatch.setattr(world.fleet, "hold", once)
        outcome = await world.generate(Sink())
        assert outcome.attempts == 1
        assert outcome.decision.chosen.engine_id not in refused
        assert not world.calls(refused[0])

    play(scenario)


def test_a_rejected_request_is_tried_nowhere_else() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        _, call = await world.call("ab")
        call.end(errors.EngineRejected("bad value"))
        with pytest.raises(errors.EngineRejected):
            await request
        assert len(world.calls("a")) + len(world.calls("b")) == 1

    play(scenario)


def test_attempts_are_bounded() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        for _ in range(2):
            while not (open_calls := [c for n in "abcd" for c in world.calls(n) if not c.over]):
                await asyncio.sleep(0.001)
            open_calls[0].end(errors.EngineFailed("x"))
        with pytest.raises(errors.EngineFailed):
            await request
        assert sum(len(world.calls(name)) for name in "abcd") == 2

    play(scenario, "abcd", RequestSettings(attempts=2))


def test_g8_each_attempt_has_its_own_id_of_fixed_length() -> None:
    async def scenario(world: World) -> None:
        for process in world.process.values():
            process.answers = True
        await asyncio.gather(*[world.generate(Sink()) for _ in range(20)])
        ids = [call.request.request_id for name in "ab" for call in world.calls(name)]
        assert len(set(ids)) == 20
        assert {len(each) for each in ids} == {32}

    play(scenario)


def test_m14_a_mute_engine_is_left_at_the_first_token_deadline_and_the_request_goes_elsewhere() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = asyncio.create_task(world.generate(sink))
        name, mute = await world.call("ab")
        _, call = await world.call("b" if name == "a" else "a")
        assert asyncio.get_running_loop().time() >= 9
        assert mute.cancelled
        call.deliver([1], Finish.LENGTH)
        await request
        assert world.meter.retries == ["engine_timeout"]

    play(scenario, limits=RequestSettings(first_token_timeout=10))


def test_a_stream_that_falls_silent_ends_in_a_timeout() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        _, call = await world.call("ab")
        for _ in range(5):
            call.deliver([1])
            await asyncio.sleep(4)
        with pytest.raises(errors.EngineTimeout, match="no token for 5 s"):
            await request
        assert call.cancelled

    play(scenario, limits=RequestSettings(token_timeout=5))


def test_time_in_which_the_client_does_not_read_is_not_the_engines() -> None:
    async def scenario(world: World) -> None:
        sink = Sink()
        request = asyncio.create_task(world.generate(sink))
        _, call = await world.call("ab")
        call.deliver([1])
        assert sink.call is not None
        sink.call.pause()
        assert call.paused
        await asyncio.sleep(57)
        assert not request.done()
        sink.call.resume()
        await asyncio.sleep(4)
        call.deliver([2], Finish.LENGTH)
        await request

    play(scenario, limits=RequestSettings(first_token_timeout=30, token_timeout=5))


def test_o3_a_stop_string_ends_the_answer_and_aborts_the_engine_once() -> None:
    async def scenario(world: World) -> None:
        sink = Sink(enough_after=2)
        request = asyncio.create_task(world.generate(sink))
        _, call = await world.call("ab")
        call.deliver([1])
        call.deliver([2])
        call.deliver([3])
        await request
        assert (sink.ids, call.cancelled) == ([1, 2], True)

    play(scenario)


def test_s1_a_cancelled_request_aborts_the_engine_and_settles() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        _, call = await world.call("ab")
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert call.cancelled

    play(scenario)


def test_m8_a_known_model_without_engines_is_503_with_retry_after() -> None:
    async def scenario(world: World) -> None:
        world.know("")
        with pytest.raises(errors.NoEngine) as caught:
            await world.generate(Sink())
        assert (caught.value.status, caught.value.retry_after) == (503, 1)

    play(scenario)


def test_d15_a_request_waits_a_moment_for_an_engine_that_is_just_joining() -> None:
    async def scenario(world: World) -> None:
        world.know("")
        request = asyncio.create_task(world.generate(Sink()))
        await asyncio.sleep(0.5)
        world.process["b"].answers = True
        world.know("b")
        await request

    play(scenario)


def test_m9_limit_two_send_five() -> None:
    async def scenario(world: World) -> None:
        requests = [asyncio.create_task(world.generate(Sink())) for _ in range(5)]
        await asyncio.sleep(0.01)
        refused = [request for request in requests if request.done()]
        assert len(refused) == 3
        for request in refused:
            with pytest.raises(errors.Overloaded):
                request.result()
        for call in world.calls("a"):
            call.deliver([1], Finish.LENGTH)
        await asyncio.gather(*[request for request in requests if request not in refused])

    play(scenario, "a", routing=RoutingSettings(max_requests_per_engine=2))


def test_m1_a_withdrawn_engine_finishes_its_stream_and_gets_nothing_new() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(sink := Sink()))
        name, call = await world.call("ab")
        call.deliver([1])
        other = "b" if name == "a" else "a"
        world.know(other)
        world.process[other].answers = True
        for _ in range(5):
            await world.generate(Sink())
        assert len(world.calls(name)) == 1
        await asyncio.sleep(60)
        call.deliver([2], Finish.STOP)
        await request
        assert sink.ids == [1, 2]

    play(scenario, limits=RequestSettings(token_timeout=100))


def test_m1_a_stream_that_outlives_the_drain_deadline_is_cut_with_an_error() -> None:
    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Sink()))
        name, call = await world.call("ab")
        call.deliver([1])
        world.know("b" if name == "a" else "a")
        with pytest.raises(errors.EngineUnavailable, match="drain deadline"):
            await request
        assert call.cancelled

    play(scenario, limits=RequestSettings(token_timeout=10_000))


def test_a_fault_of_ours_in_the_answer_reaches_the_request_not_the_link() -> None:
    class Faulty(Sink):
        def push(self, delta: Delta) -> bool:
            raise ZeroDivisionError

    async def scenario(world: World) -> None:
        request = asyncio.create_task(world.generate(Faulty()))
        _, call = await world.call("ab")
        call.deliver([1])
        with pytest.raises(ZeroDivisionError):
            await request
        assert call.cancelled

    play(scenario)


def test_requests_are_spread_over_the_fleet() -> None:
    async def scenario(world: World) -> None:
        for process in world.process.values():
            process.answers = True
        await asyncio.gather(*[world.generate(Sink()) for _ in range(30)])
        assert Counter({name: len(world.calls(name)) for name in "abc"}) == {"a": 10, "b": 10, "c": 10}

    play(scenario, "abc")


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["finish", "fail", "lose", "hang up", "time out"]), st.integers(0, 3)), max_size=12
    )
)
def test_m5_whatever_becomes_of_requests_every_count_returns_to_zero(ends: Sequence[tuple[str, int]]) -> None:
    async def scenario(world: World) -> None:
        requests = []
        for end, tokens in ends:
            request = asyncio.create_task(world.generate(Sink()))
            requests.append(request)
            await asyncio.sleep(0.001)
            for call in [call for name in "ab" for call in world.calls(name) if not call.over]:
                if tokens:
                    call.deliver([1] * tokens)
                if end == "finish":
                    call.deliver([2], Finish.STOP)
                elif end == "fail":
                    call.end(errors.EngineFailed("x"))
                elif end == "lose":
                    call.end(errors.EngineUnavailable("x"))
            if end == "hang up":
                request.cancel()
        await asyncio.sleep(500)
        await asyncio.gather(*requests, return_exceptions=True)

    play(scenario)
