"""Engines join and leave a running frontend: through the file, and through pods of a real API server."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.fleets import Fleet, PodFleet, each_way
from tests.e2e.kube import Cluster, Gate
from tests.e2e.support import Engine, Front, Stream, ask, chat, counts
from tests.support import until

pytestmark = pytest.mark.e2e

EACH_WAY = each_way("file", "pods:delete", "pods:gone", "pods:unready", "pods:label")


def asks(front: Front, number: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(number):
            assert ask(front).whole

    return work


def stream_on(front: Front, engine: Engine, **more: Any) -> Stream:
    """A running stream that this engine serves."""
    for _ in range(10):
        before = engine.requests
        stream = Stream(front, chat(**more))
        stream.until_text()
        if engine.requests > before:
            return stream
        stream.close()
    raise AssertionError(f"{engine.name} serves none of ten streams")


def held_stream_on(front: Front, engine: Engine) -> Stream:
    """One that this engine holds in the middle until its faults are taken back, so that the test has all the time."""
    engine.faults(stall_after_tokens=2)
    return stream_on(front, engine, max_tokens=40)


@EACH_WAY
def test_m1_d4_d8_d11_join_then_leave_while_a_stream_runs(fleet: Fleet) -> None:
    """Start with A; add B: it serves; remove A: it gets nothing new, and its running stream ends whole."""
    a, b = (fleet.engine(name).run() for name in "ab")
    fleet.add(a)
    front = fleet.front()
    assert counts([a, b], asks(front, 2)) == [2, 0]

    fleet.add(b)
    front.wait_state(b, "serving")
    assert counts([a, b], asks(front, 4)) == [2, 2]

    stream = held_stream_on(front, a)
    fleet.remove(a)
    front.wait_state(a, "draining", "unready")
    assert counts([a, b], asks(front, 6)) == [0, 6]
    assert a.open == 1
    a.faults()
    answer = stream.rest()
    assert answer.whole
    assert answer.finish == "length"
    assert {end["outcome"] for end in a.seen("end")} == {"length"}
    front.wait_state(a, None, "unready", "gone")
    front.wait_idle()
    assert counts([a, b], asks(front, 4)) == [0, 4]


@each_way("file", "pods:gone")
def test_m11_removed_and_added_again_while_draining_is_a_new_incarnation(fleet: Fleet) -> None:
    """What the old one still says must not take the new one away."""
    a, b = (fleet.engine(name).run() for name in "ab")
    fleet.add(a)
    fleet.add(b)
    front = fleet.front()
    for engine in (a, b):
        front.wait_state(engine, "serving")
    first = front.engine(a)
    stream = held_stream_on(front, a)
    fleet.remove(a)
    front.wait_state(a, "draining")
    fleet.add(a)
    front.wait_state(a, "serving")
    assert a.open == 1
    a.faults()
    second = front.engine(a)
    assert first is not None
    assert second is not None
    assert second["incarnation"] > first["incarnation"]
    assert stream.rest().whole
    assert counts([a, b], asks(front, 4)) == [2, 2]
    front.wait_idle()
    assert front.state(a) == "serving"


@EACH_WAY
def test_d12_d13_an_engine_that_does_not_answer_yet_is_tried_again(fleet: Fleet) -> None:
    """Known from the start, silent at first: nothing is sent to it; once it answers it serves, with no new event."""
    a, b = fleet.engine("a").run(), fleet.engine("b")
    fleet.add(a)
    fleet.add(b)
    front = fleet.front("--probe-retry-max", 0.5)
    front.wait_state(b, "failed", "probing")
    assert counts([a, b], asks(front, 3)) == [3, 0]
    b.run()
    front.wait_state(b, "serving")
    assert counts([a, b], asks(front, 4)) == [2, 2]


def test_a_fixed_engine_that_starts_late_joins(engine: MakeEngine, front: MakeFront) -> None:
    late = engine("late")
    running = front("--engine", late.url, "--probe-retry-max", 0.5, ready=False)
    until(lambda: running.state(late) == "failed")
    status, body = running.get("/readyz")
    assert status == 503
    assert b"no engine serves" in body
    late.run()
    running.wait_ready()
    assert ask(running).whole


def test_a_fixed_engine_that_restarts_comes_back(engine: MakeEngine, front: MakeFront) -> None:
    a, b = engine("a").run(), engine("b").run()
    running = front("--engine", a.url, "--engine", b.url, "--probe-retry-max", 0.5)
    for one in (a, b):
        running.wait_state(one, "serving")
    a.kill()
    assert counts([b], asks(running, 4)) == [4]
    running.wait_state(a, "suspect", "failed", "probing")
    a.run()
    running.wait_state(a, "serving")
    assert counts([a, b], asks(running, 4)) == [2, 2]


@pytest.mark.rig("kube")
def test_d14_a_flap_keeps_the_incarnation(pods: PodFleet) -> None:
    """Unready: no new requests. Ready again: the same incarnation serves, its link and knowledge kept."""
    a, b = (pods.engine(name).run() for name in "ab")
    pods.add(a)
    pods.add(b)
    front = pods.front()
    for engine in (a, b):
        front.wait_state(engine, "serving")
    before = front.engine(a)
    pods.set(a, ready=False)
    front.wait_state(a, "unready")
    assert counts([a, b], asks(front, 4)) == [0, 4]
    pods.set(a, ready=True)
    front.wait_state(a, "serving")
    after = front.engine(a)
    assert before is not None
    assert after is not None
    assert after["incarnation"] == before["incarnation"]
    assert counts([a, b], asks(front, 4)) == [2, 2]


@pytest.mark.rig("kube")
def test_d6_a_restarted_container_is_a_new_incarnation(pods: PodFleet, cluster: Cluster) -> None:
    """Same pod, same address, no readiness dip seen: the old link is replaced all the same."""
    a = pods.engine("a").run()
    pods.add(a)
    front = pods.front()
    first = front.engine(a)
    assert a.child is not None
    a.child.end()
    a.run()
    cluster.pods.restart(pods.name(a), merged=True)
    until(lambda: (front.engine(a) or {}).get("incarnation") not in (None, (first or {})["incarnation"]))
    front.wait_state(a, "serving")
    assert counts([a], asks(front, 3)) == [3]


@pytest.fixture
def gate(cluster: Cluster) -> Iterator[Gate]:
    with cluster.gate() as gate:
        yield gate


@pytest.mark.rig("kube")
def test_d1_a_deletion_in_a_watch_gap_is_withdrawn_at_the_relist(pods: PodFleet, cluster: Cluster, gate: Gate) -> None:
    """D22 too: while the API server cannot be reached, what is known goes on serving."""
    a, b = (pods.engine(name).run() for name in "ab")
    pods.add(a)
    pods.add(b)
    front = pods.front(kubeconfig=gate.kubeconfig)
    for engine in (a, b):
        front.wait_state(engine, "serving")
    gate.shut()
    cluster.pods.gone(pods.name(a))
    c = pods.engine("c").run()
    pods.add(c)
    assert counts([a, b, c], asks(front, 4)) == [2, 2, 0]
    assert front.get("/livez")[0] == 200
    gate.open()
    front.wait_state(a, None, "gone", "draining")
    front.wait_state(c, "serving")
    assert counts([a, b, c], asks(front, 4)) == [0, 2, 2]


@pytest.mark.rig("kube")
def test_d3_a_half_open_watch_is_replaced(pods: PodFleet, cluster: Cluster, gate: Gate) -> None:
    """The connection stays and says nothing: found out by the periodic listing and the idle limit."""
    a, b = (pods.engine(name).run() for name in "ab")
    pods.add(a)
    front = pods.front("--kube-resync-interval", 1, "--kube-watch-idle-limit", 1, kubeconfig=gate.kubeconfig)
    gate.freeze()
    pods.add(b)
    front.wait_state(b, "serving")
    pods.remove(a)
    front.wait_state(a, "unready")
    cluster.pods.gone(pods.name(a))
    front.wait_state(a, None, "gone")


@pytest.mark.rig("kube")
def test_adoption_of_a_pod_that_is_gone_at_the_next_listing(pods: PodFleet, cluster: Cluster, gate: Gate) -> None:
    """Found at the start, still silent, deleted unseen: when it answers at last it must not serve."""
    ghost, real = pods.engine("ghost"), pods.engine("real")
    pods.add(ghost)
    front = pods.front("--probe-retry-max", 0.2, kubeconfig=gate.kubeconfig, ready=False)
    front.wait_state(ghost, "failed", "probing")
    gate.shut()
    cluster.pods.gone(pods.name(ghost))
    real.run()
    pods.add(real)
    gate.open()
    front.wait_state(real, "serving")
    front.wait_state(ghost, None, "gone")
    ghost.run()
    assert counts([ghost, real], asks(front, 4)) == [0, 4]


@pytest.mark.rig("kube")
def test_d18_d26_every_matched_pod_that_does_not_serve_says_why(pods: PodFleet, cluster: Cluster) -> None:
    a, other = pods.engine("a").run(), pods.engine("other", model="another-model").run()
    pods.add(a)
    front = pods.front()
    pods.add(other)
    label = {"app": pods.label}
    cluster.pods.create(f"{pods.label}-starting", ip="127.9.9.9", labels=label, ready=False)
    bad = {"nvidia.com/dynamo-engine-grpc-port": "http"}
    cluster.pods.create(f"{pods.label}-badport", ip="127.9.9.8", labels=label, annotations=bad)

    def reasons() -> dict[str, str]:
        rows = front.page()["engines"]
        return {row["pod"]["name"].removeprefix(pods.label + "-"): row["reason"] or "" for row in rows if row["pod"]}

    until(lambda: set(reasons()) == {"a", "other", "starting", "badport"}, saying=str(front.page()))
    until(lambda: "another-model" in reasons()["other"], saying=str(reasons()))
    assert "eady" in reasons()["starting"]
    assert "http" in reasons()["badport"]
    assert counts([a, other], asks(front, 3)) == [3, 0]


@pytest.mark.rig("kube")
def test_the_frontend_leaves_in_order_while_it_watches(pods: PodFleet) -> None:
    a = pods.engine("a").run()
    pods.add(a)
    front = pods.front()
    stream = Stream(front, chat(max_tokens=40))
    stream.until_text()
    front.child.signal(signal.SIGTERM)
    assert stream.rest().whole
    assert front.child.process.wait(30) == 0
