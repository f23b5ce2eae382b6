"""Pools change under load: pods flip between pools, whole generations are replaced, some by quite other engines."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import enginehouse.mock
from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.fleets import FileFleet, PodFleet
from tests.e2e.kube import Cluster
from tests.e2e.support import Answer, Engine, Front, ask, chat
from tests.support import until

pytestmark = pytest.mark.e2e


@contextmanager
def steady(front: Front, *, clients: int = 4, **more: Any) -> Iterator[list[Answer]]:
    """Clients that ask one request after the other, every second one streamed; their answers."""
    answers: list[Answer] = []
    enough = threading.Event()

    def client(number: int) -> None:
        while not enough.is_set():
            number += 1
            answers.append(ask(front, chat(f"request {number}", **{"stream": number % 2 == 0, **more})))

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client, number) for number in range(clients)]
        try:
            yield answers
        finally:
            enough.set()
    for one in running:
        one.result()


def some_more(answers: list[Answer], number: int = 6) -> None:
    """Wait until so many more are answered."""
    wanted = len(answers) + number
    until(lambda: len(answers) >= wanted)


def good(answer: Answer) -> bool:
    return answer.status == 200 and (answer.whole if answer.body is None else answer.error is None)


@pytest.mark.rig("kube")
@pytest.mark.parametrize("length", [32_768, 16_384], ids=["the same model", "another context length"])
@pytest.mark.parametrize("surge", [True, False])
def test_d15_d16_a_rolling_update_is_seen_by_nobody(pods: PodFleet, cluster: Cluster, surge: bool, length: int) -> None:
    """Two pods are replaced one after the other under load, the new one first (maxSurge 1) or the old one (0)."""
    old = [pods.engine(name).run() for name in "ab"]
    new = [pods.engine(name, context_length=length).run() for name in "cd"]
    for engine in old:
        pods.add(engine)
    front = pods.front("--hold-timeout", 5)
    for engine in old:
        front.wait_state(engine, "serving")

    def arrive(engine: Engine) -> None:
        pods.add(engine)
        # minReadySeconds, in which every frontend learns of it. Those of another length wait for the old ones' end.
        front.wait_state(engine, "serving", "refused")

    def leave(engine: Engine) -> None:
        pods.remove(engine)
        front.wait_state(engine, "unready", "draining", "gone", None)
        until(lambda: engine.open == 0)  # the pause of preStop
        assert engine.child is not None
        engine.child.signal(signal.SIGTERM)
        cluster.pods.gone(pods.name(engine))

    with steady(front, max_tokens=20) as answers:
        some_more(answers)
        for before, after in zip(old, new, strict=True):
            for step in (arrive, leave) if surge else (leave, arrive):
                step(after if step is arrive else before)
            some_more(answers)
        for engine in new:
            front.wait_state(engine, "serving")
        some_more(answers)
    bad = [answer for answer in answers if not good(answer)]
    assert not bad, f"{len(bad)} of {len(answers)}, the first: {bad[0]}"
    assert all(engine.requests for engine in (*old, *new))
    assert front.page()["model"]["context_length"] == length
    front.wait_idle()


@pytest.mark.rig("kube")
def test_d8_pods_flip_between_the_pools_and_are_never_in_both(
    pods: PodFleet, cluster: Cluster, front: MakeFront
) -> None:
    """A role label goes back and forth: each time the page shows the pod in the other pool, and at no time in two."""
    a, b = (pods.engine(name).run() for name in "ab")
    for engine in (a, b):
        pods.add(engine)
        pods.set(engine, labels={"role": "decode"})
    pools = [f"--{kind}pods={{}},role={role}" for kind, role in (("", "decode"), ("prefill-", "prefill"))]
    ports = ("--pod-port", pods.port, "--prefill-pod-port", pods.port)
    where = ("--kubeconfig", cluster.kubeconfig, "--kube-context", "frontend")
    running = front(*(pool.format(f"app={pods.label}") for pool in pools), *ports, *where, ready=False)
    for engine in (a, b):
        running.wait_state(engine, "serving")
    assert roles(running, a) == roles(running, b) == ["decode"]

    seen: list[list[str]] = []
    enough = threading.Event()

    def watch() -> None:
        while not enough.is_set():
            seen.append(roles(running, a))

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            for role in ("prefill", "decode") * 3:
                pods.set(a, labels={"role": role})
                until(lambda role=role: roles(running, a) == [role], saying=str(running.page()))  # type: ignore[misc]
                assert roles(running, b) == ["decode"]
        finally:
            enough.set()
        watching.result()
    assert {len(roles) for roles in seen} <= {0, 1}, seen
    pods.set(a, labels={"role": "none"})
    running.wait_state(a, None, "gone")
    answer = ask(running)  # both kinds are there, and no hand-over yet: an honest refusal
    assert answer.status == 503
    assert answer.error is not None


def roles(front: Front, engine: Engine) -> list[str]:
    """The pools in which this engine serves now."""
    return [
        str(row["role"]) for row in front.page()["engines"] if row["url"] == engine.url and row["state"] == "serving"
    ]


def test_d16_no_request_reaches_an_engine_with_anothers_token_ids(
    tmp_path: Path, engine: MakeEngine, front: MakeFront
) -> None:
    """The whole fleet is exchanged for one with another tokenizer, under load: each prompt has its engine's own ids."""
    model = tmp_path / "model"
    shutil.copytree(Path(enginehouse.mock.__file__).parent / "model", model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []  # one token for each byte: the same text has many more
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    fleet = FileFleet(tmp_path, engine, front)
    a = fleet.engine("a").run()
    b = fleet.engine("b", model_path=model, context_length=16_384).run()
    fleet.add(a)
    running = fleet.front("--hold-timeout", 5)
    text = {"messages": [{"role": "user", "content": "which engine are you " * 40}], "max_tokens": 4}
    with steady(running, clients=6, **text) as answers:
        some_more(answers)
        for out, into in ((a, b), (b, a)):
            fleet.add(into)
            running.wait_state(into, "refused")
            fleet.remove(out)
            running.wait_state(into, "serving")
            some_more(answers, 12)
    assert all(good(answer) for answer in answers)
    lengths = [{line["prompt_tokens"] for line in one.seen("request")} for one in (a, b)]
    assert [len(found) for found in lengths] == [1, 1], lengths
    assert lengths[0] != lengths[1]
