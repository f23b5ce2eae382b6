"""Whatever the history, a listing converges the fleet to what there is (promise 3), and invariants hold all the way.

The machine plays the cluster, the engines and the shell: pods come, go, flap, restart, swap addresses and labels;
events are lost; probes and checks end in any order, or after their incarnation is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enginehouse.core.membership.events import (
    CheckFailed,
    CheckPassed,
    Doubt,
    Doubted,
    Event,
    Probed,
    ProbeRefused,
    StreamsIdle,
    Woke,
)
from enginehouse.core.membership.intents import (
    CancelProbe,
    CloseEngine,
    CutStreams,
    Drain,
    Intent,
    StartCheck,
    StartProbe,
)
from enginehouse.core.membership.states import LINKED, State
from enginehouse.domain.engine import EngineInfo, Role, Target
from enginehouse.domain.feed import Wanted

from .playbook import Playbook, info, wanted

Key = tuple[str, int]
NAMES = st.sampled_from(["a", "b", "c"])
ADDRESSES = st.sampled_from([f"10.0.0.{n}:9000" for n in range(1, 4)])
OFTEN = st.sampled_from([True, True, False])
LENGTHS = st.sampled_from([4096, 4096, 4096, 8192])


@dataclass(frozen=True)
class Pod:
    address: str
    ready: bool
    restarts: int
    length: int
    pool: str

    def wanted(self, name: str) -> Wanted:
        return wanted(name, self.address, eligible=self.ready, generation=f"{self.address}/{self.restarts}/{self.pool}")

    def process(self, name: str) -> EngineInfo:
        return info(context_length=self.length, instance_id=f"{name}/{self.restarts}")


class Histories(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.play = Playbook()
        self.pods: dict[str, Pod] = {}
        self.probes: dict[Key, Target] = {}
        self.checks: set[Key] = set()
        self.links: set[Key] = set()
        self.draining: set[Key] = set()
        self.streams: dict[Key, int] = {}
        self.over: list[Key] = []
        self.left = False

    # The cluster. `seen` False: the event is lost in a gap of the watch.

    @rule(name=NAMES, address=ADDRESSES, ready=OFTEN, length=LENGTHS, seen=OFTEN)
    def add(self, name: str, address: str, ready: bool, length: int, seen: bool) -> None:
        if name not in self.pods and all(pod.address != address for pod in self.pods.values()):
            self._change(name, Pod(address, ready, 0, length, "pods"), seen)

    @rule(name=NAMES, seen=st.booleans())
    def remove(self, name: str, seen: bool) -> None:
        if self.pods.pop(name, None) and seen:
            for feed in ("pods", "prefill"):
                self._do(self.play.delete(name, feed))

    @rule(name=NAMES, seen=st.booleans())
    def flap(self, name: str, seen: bool) -> None:
        if pod := self.pods.get(name):
            self._change(name, replace(pod, ready=not pod.ready), seen)

    @rule(name=NAMES, seen=st.booleans(), length=LENGTHS)
    def restart(self, name: str, seen: bool, length: int) -> None:
        if pod := self.pods.get(name):
            self._change(name, replace(pod, restarts=pod.restarts + 1, length=length), seen)

    @rule(name=NAMES, address=ADDRESSES, seen=st.booleans())
    def move(self, name: str, address: str, seen: bool) -> None:
        pod = self.pods.get(name)
        if pod and all(other.address != address for other in self.pods.values()):
            self._change(name, replace(pod, address=address), seen)

    @rule(old=NAMES, new=NAMES, length=LENGTHS)
    def reuse_address(self, old: str, new: str, length: int) -> None:
        """A pod goes unnoticed, and another one gets its address."""
        if old in self.pods and new not in self.pods:
            forgotten = new not in self.play.fleet.slots  # pods never return, but our few names do
            pod = replace(self.pods.pop(old), ready=True, restarts=0, length=length)
            self._change(new, pod, True)
            entry = self.play.fleet.current(old)
            if forgotten and entry is not None and entry.target == pod.wanted(new).target:
                assert not self._serves(old)

    @rule(name=NAMES, both=st.booleans())
    def relabel(self, name: str, both: bool) -> None:
        """Moves to the other selector, which may hear of it before the first one does."""
        if pod := self.pods.get(name):
            other = "prefill" if pod.pool == "pods" else "pods"
            moved = replace(pod, pool=other)
            self.pods[name] = moved
            if both:
                want = replace(
                    moved.wanted(name), target=replace(Target.parse(f"grpc://{pod.address}"), role=Role.DECODE)
                )
                self._do(self.play.apply(want, feed=other))
                assert not self._serves(name)
            self._do(self.play.delete(name, pod.pool))
            self._do(self.play.apply(moved.wanted(name), feed=other))

    @rule()
    def relist(self) -> None:
        self._list()

    # Engines and the request path.

    @rule(data=st.data(), ok=st.booleans(), permanent=st.booleans())
    def probe_ends(self, data: st.DataObject, ok: bool, permanent: bool) -> None:
        if self.probes:
            self._end_probe(data.draw(st.sampled_from(sorted(self.probes))), ok, permanent)

    @rule()
    def all_is_well(self) -> None:
        """Everything under way ends, and well where somebody is there."""
        for key in sorted(self.probes):
            self._end_probe(key, True, False)
        for key in sorted(self.checks):
            self._end_check(key, True)

    @rule(data=st.data(), ok=st.booleans())
    def check_ends(self, data: st.DataObject, ok: bool) -> None:
        if self.checks:
            self._end_check(data.draw(st.sampled_from(sorted(self.checks))), ok)

    @rule(data=st.data(), doubt=st.sampled_from(Doubt))
    def doubt(self, data: st.DataObject, doubt: Doubt) -> None:
        if self.links:
            key = data.draw(st.sampled_from(sorted(self.links)))
            self._do(self.play.say(Doubted(*key, doubt, "doubt")))

    @rule(name=NAMES)
    def request(self, name: str) -> None:
        if self._serves(name):
            key = name, self.play.number(name)
            assert key in self.links
            self.streams[key] = self.streams.get(key, 0) + 1

    @rule(data=st.data())
    def request_ends(self, data: st.DataObject) -> None:
        if self.streams:
            self._end_stream(data.draw(st.sampled_from(sorted(self.streams))))

    @rule(data=st.data(), kind=st.sampled_from([Probed, ProbeRefused, CheckPassed, CheckFailed, Doubted, StreamsIdle]))
    def late_word(self, data: st.DataObject, kind: type[Event]) -> None:
        """Something of an incarnation that is over: it changes nothing at all."""
        if not self.over:
            return
        key = data.draw(st.sampled_from(self.over))
        event: Event
        if kind is Probed:
            event = Probed(*key, info())
        elif kind is CheckPassed:
            event = CheckPassed(*key, info())
        elif kind is Doubted:
            event = Doubted(*key, Doubt.LOST, "late")
        elif kind is StreamsIdle:
            event = StreamsIdle(*key)
        else:
            event = kind(*key, "late")  # type: ignore[call-arg]
        before = self.play.fleet
        intents = self.play.say(event)
        assert self.play.fleet == before
        assert intents == ([CloseEngine(*key)] if kind is Probed else [])

    @rule(seconds=st.sampled_from([0.05, 0.3, 2.0, 20.0, 61.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        until = self.play.now + seconds
        while (wake := self.play.fleet.wake_at) is not None and wake <= until:
            self.play.now = max(wake, self.play.now)
            self._do(self.play.say(Woke()))
        self.play.now = until

    @precondition(lambda self: not self.left)
    @rule(sure=st.integers(0, 9))
    def leave(self, sure: int) -> None:
        if sure == 0:
            self.left = True
            self._do(self.play.leave(10))
            assert not self.play.serving

    @rule()
    def converges(self) -> None:
        """A listing, and time in which everything works: what may serve serves, nothing else does."""
        self._list()
        for _ in range(60):
            self.all_is_well()
            if not self.probes and not self.checks and self._settled():
                break
            self.time_passes(1.0)
        if self.left:
            assert not self.play.serving
            return
        able = {name for name, pod in self.pods.items() if pod.ready}
        card = self.play.fleet.card
        for name in able:
            entry = self.play.entry(name)
            fits = card is not None and self.pods[name].length == card.context_length
            assert entry.state is (State.SERVING if fits else State.REFUSED), (name, entry)
            assert entry.info == self.pods[name].process(name)
        assert self.play.serving <= able
        assert bool(self.play.serving) == bool(able)
        assert {name for name, slot in self.play.fleet.slots.items() if slot.current} == set(self.pods)

    # What the shell owes.

    @invariant()
    def what_is_open_is_what_the_fleet_knows(self) -> None:
        if not hasattr(self, "play"):
            return
        entries = {(slot.engine_id, e.incarnation): e for slot in self.play.fleet.slots.values() for e in slot.entries}
        assert {key for key, entry in entries.items() if entry.state in LINKED} == self.links
        assert {key for key, entry in entries.items() if entry.state is State.PROBING} == set(self.probes)
        assert {key for key, entry in entries.items() if entry.checking} == self.checks
        assert {key for key, entry in entries.items() if entry.state is State.DRAINING} == self.draining
        assert set(self.streams) <= self.links

    def _settled(self) -> bool:
        return all(
            slot.current is None or slot.current.state not in (State.PROBING, State.FAILED, State.SUSPECT)
            for slot in self.play.fleet.slots.values()
        )

    def _serves(self, name: str) -> bool:
        return self.play.state(name) is State.SERVING

    def _change(self, name: str, pod: Pod, seen: bool) -> None:
        self.pods[name] = pod
        if seen:
            self._do(self.play.apply(pod.wanted(name), feed=pod.pool))

    def _list(self) -> None:
        for feed in ("pods", "prefill"):
            wants = [pod.wanted(name) for name, pod in self.pods.items() if pod.pool == feed]
            self._do(self.play.list(*wants, feed=feed))

    def _end_probe(self, key: Key, ok: bool, permanent: bool) -> None:
        target = self.probes.pop(key, None)
        if target is None:
            return
        there = next(((n, pod) for n, pod in self.pods.items() if pod.address == target.authority), None)
        if ok and there is not None:
            self.links.add(key)
            self._do(self.play.say(Probed(*key, there[1].process(there[0]))))
        else:
            self._do(self.play.say(ProbeRefused(*key, "refused", permanent)))

    def _end_check(self, key: Key, ok: bool) -> None:
        if key not in self.checks:
            return
        self.checks.discard(key)
        entry = self.play.fleet.find(*key)
        assert entry is not None
        assert entry.target is not None
        there = next(((n, pod) for n, pod in self.pods.items() if pod.address == entry.target.authority), None)
        if ok and there is not None:
            self._do(self.play.say(CheckPassed(*key, there[1].process(there[0]))))
        else:
            self._do(self.play.say(CheckFailed(*key, "failed")))

    def _end_stream(self, key: Key) -> None:
        self.streams[key] -= 1
        if not self.streams[key]:
            del self.streams[key]
            if key in self.draining:
                self._do(self.play.say(StreamsIdle(*key)))

    def _do(self, intents: list[Intent]) -> None:
        for intent in intents:
            key = intent.engine_id, intent.incarnation  # type: ignore[union-attr]
            match intent:
                case StartProbe():
                    assert key not in self.probes
                    self.probes[key] = intent.target
                case CancelProbe():
                    del self.probes[key]
                    self.over.append(key)
                case StartCheck():
                    assert key in self.links
                    assert key not in self.checks
                    self.checks.add(key)
                case Drain():
                    assert key not in self.draining
                    self.draining.add(key)
                    self.checks.discard(key)
                    if key not in self.streams:
                        self._do(self.play.say(StreamsIdle(*key)))
                case CutStreams():
                    if key in self.streams:
                        self.streams[key] = 1
                        self._end_stream(key)
                case CloseEngine():
                    assert key not in self.streams, "a link was closed under a stream"
                    self.links.discard(key)
                    self.draining.discard(key)
                    self.checks.discard(key)
                    self.over.append(key)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=200, stateful_step_count=50, suppress_health_check=list(HealthCheck))
