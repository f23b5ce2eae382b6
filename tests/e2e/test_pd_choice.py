"""Which engines share a request, and what becomes of it when a role is missing or busy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import MakeEngine, MakeFront
from tests.e2e.kube import Cluster
from tests.e2e.pd import PROTOCOLS, VLLM, FilePools, PodPools, begun, idle, named, stream
from tests.e2e.support import WITHIN, Front, Stream, ask, at_once, chat, well_formed
from tests.support import until

pytestmark = pytest.mark.e2e
ONE_OF_EACH = ["sglang", "vllm"]


@pytest.fixture
def pools(request: pytest.FixtureRequest, tmp_path: Path, engine: MakeEngine, front: MakeFront) -> FilePools:
    return FilePools(request.param, engine, front, tmp_path)


def only_prefill_is_missing(front: Front) -> None:
    """Wait until all else is ready, the tokenizer too."""
    front.child.wait_line("model ready")
    status, body = front.get("/readyz")
    assert status == 503
    assert b"prefill" in body


def of(*protocols: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pools", protocols, indirect=True)


@of(*ONE_OF_EACH)
def test_p6_without_a_prefill_engine_a_request_waits_for_one(pools: FilePools) -> None:
    d, p = pools.decode("d"), pools.prefill("p")
    pools.join(d)
    front = pools.front("--topology", "disaggregated", "--prefill-wait", 50, ready=False)
    only_prefill_is_missing(front)
    waiting = stream(front)
    pools.join(p)
    assert waiting.rest().whole
    assert d.requests == p.requests == 1
    idle(front, d, p)


@of(*ONE_OF_EACH)
def test_p6_the_wait_for_a_prefill_engine_has_an_end(pools: FilePools) -> None:
    d = pools.decode("d")
    pools.join(d)
    front = pools.front("--topology", "disaggregated", "--prefill-wait", 0.5, ready=False)
    only_prefill_is_missing(front)
    answer = ask(front)
    assert answer.status == 503
    assert well_formed(answer.error)
    assert d.requests == 0


@of("sglang", "vllm")
@pytest.mark.parametrize("policy", ["decode", "fail"])
def test_p6_the_last_prefill_engine_goes_and_the_policy_says_what_then(pools: FilePools, policy: str) -> None:
    """An engine of SGLang that decodes cannot prefill: `decode` is `fail` there."""
    p, later, d = pools.prefill("p"), pools.prefill("later"), pools.decode("d")
    pools.join(p)
    pools.join(d)
    front = pools.front("--prefill-missing", policy)
    named(front, p, d)
    assert ask(front).whole
    pools.leave(p)
    front.wait_state(p, "gone", None)
    answer = ask(front)
    if policy == "decode" and pools.protocol == "vllm":
        assert answer.whole
        assert d.requests == 2
        assert len(d.seen("leg")) == 1
    else:
        assert answer.status == 503
        assert well_formed(answer.error)
        assert d.requests == 1
    pools.join(later)
    front.wait_state(later, "serving")
    assert ask(front).whole
    assert later.requests == 1


@of(*VLLM)
def test_short_prompts_run_on_decode_alone(pools: FilePools) -> None:
    p, d = pools.prefill("p"), pools.decode("d")
    pools.join(p)
    pools.join(d)
    front = pools.front("--prefill-min-tokens", 200)
    named(front, p, d)
    assert ask(front, chat("short")).whole
    assert (p.requests, d.requests, d.seen("leg")) == (0, 1, [])
    assert ask(front, chat("long " * 400)).whole
    assert (p.requests, d.requests, len(d.seen("leg"))) == (1, 2, 1)


@of("vllm")
def test_prompts_that_decode_holds_run_there_alone(pools: FilePools) -> None:
    p, d = pools.prefill("p"), pools.decode("d", kv_events_port=0, kv_replay_port=0)
    pools.join(p)
    pools.join(d)
    front = pools.front("--prefill-min-tokens", 200, policy="kv")
    named(front, p, d)
    body = chat("a long story " * 200)
    assert ask(front, body).whole
    assert (p.requests, d.requests) == (1, 1)

    def alone() -> bool:
        assert ask(front, body).whole
        return len(d.seen("leg")) < d.requests

    until(alone, within=WITHIN)
    assert d.seen("end")[-1]["outcome"] == "length"


@of("sglang")
def test_sglang_short_prompts_are_prefilled_apart_all_the_same(pools: FilePools) -> None:
    p, d = pools.prefill("p"), pools.decode("d")
    pools.join(p)
    pools.join(d)
    front = pools.front("--prefill-min-tokens", 200)
    named(front, p, d)
    assert ask(front, chat("short")).whole
    assert (p.requests, d.requests) == (1, 1)


@of(*ONE_OF_EACH)
def test_hand_overs_from_one_prefill_engine_are_bounded(pools: FilePools) -> None:
    """The third and on wait in the frontend, not at the engine; none is lost."""
    p, d = pools.prefill("p", prefill_hold=True), pools.decode("d")
    pools.join(p)
    pools.join(d)
    front = pools.front("--max-handovers-per-prefill", 2)
    named(front, p, d)
    running = [stream(front) for _ in range(6)]
    begun(p, number=2)
    waiting = "enginehouse_handovers_waiting 4.0"
    until(lambda: waiting in front.get("/metrics")[1].decode(), within=WITHIN)
    assert p.requests == 2
    assert d.requests == (2 if pools.protocol == "sglang" else 0)
    p.faults(prefill_hold=False)
    assert all(one.rest().whole for one in running)
    assert p.requests == d.requests == 6
    idle(front, p, d)


@of(*PROTOCOLS)
def test_p9_the_prefill_leg_makes_one_token_whatever_spells_the_length(pools: FilePools) -> None:
    p, d = pools.prefill("p"), pools.decode("d")
    pools.join(p)
    pools.join(d)
    front = pools.front()
    named(front, p, d)
    lengths: list[dict[str, Any]] = [
        {"max_tokens": 12},
        {"max_tokens": None, "max_completion_tokens": 12},
        {"max_tokens": 12, "min_tokens": 12},
        {"max_tokens": 12, "ignore_eos": False},
    ]
    for length in lengths:
        assert ask(front, chat(**length)).finish == "length"
    body = {"model": "mock", "prompt": "tell me", "max_tokens": 12, "ignore_eos": True, "stream": True}
    assert Stream(front, body, path="/v1/completions").rest().finish == "length"
    idle(front, p, d)
    assert [line["max_tokens"] for line in p.seen("request")] == [1] * 5
    assert [line["tokens"] for line in p.seen("end")] == [1] * 5
    assert [line["max_tokens"] for line in d.seen("request")] == [12] * 5
    assert [line["tokens"] for line in d.seen("end")] == [12] * 5


@of("sglang")
def test_p3_rooms_are_ours_new_for_each_request_and_name_the_rank(pools: FilePools) -> None:
    """A client that names a room, or another place to run at, is refused."""
    p, d = pools.prefill("p", ranks=3), pools.decode("d", ranks=2)
    pools.join(p)
    pools.join(d)
    front = pools.front()
    named(front, p, d)
    for name in ("bootstrap_room", "bootstrap_host", "bootstrap_port", "kv_transfer_params", "disaggregated_params"):
        answer = ask(front, chat(**{name: 7}))
        assert answer.status == 400
        assert well_formed(answer.error)
    assert p.requests == d.requests == 0
    assert all(answer.whole for answer in at_once(front, [chat()] * 30))
    idle(front, p, d)
    rooms = [line["room"] for line in p.seen("leg")]
    assert sorted(rooms) == sorted(line["room"] for line in d.seen("leg"))
    assert len(set(rooms)) == 30
    assert all(1 <= room < 2**63 for room in rooms)
    assert max(rooms) > 2**53, "not cut down to what a double holds"
    ranks = {line["rid"]: line["rank"] for line in p.seen("request")}
    assert all(ranks[line["rid"]] == line["room"] % 3 for line in p.seen("leg"))
    assert set(ranks.values()) == {0, 1, 2}


@of(*ONE_OF_EACH)
def test_a_prefill_engine_has_no_place_in_an_aggregated_fleet(pools: FilePools) -> None:
    whole, p = pools.aggregated("whole"), pools.prefill("p")
    pools.join(whole)
    front = pools.front()
    named(front, whole)
    pools.join(p)
    until(lambda: "prefill" in str((front.engine(p) or {}).get("reason")), within=WITHIN)
    assert front.state(p) != "serving"
    assert ask(front).whole
    assert p.requests == 0


@of("sglang")
def test_a_hint_against_what_the_engine_reports_is_refused(pools: FilePools) -> None:
    p, d, liar = pools.prefill("p"), pools.decode("d"), pools.prefill("liar", believes="decode")
    for engine in (p, d, liar):
        pools.join(engine)
    front = pools.front()
    named(front, p, d)
    until(lambda: "decode" in str((front.engine(liar) or {}).get("reason")), within=WITHIN)
    assert front.state(liar) != "serving"
    assert ask(front).whole


@pytest.mark.rig("kube")
@pytest.mark.parametrize("protocol", ONE_OF_EACH)
def test_p5_engines_of_different_groups_are_never_paired(
    cluster: Cluster, engine: MakeEngine, front: MakeFront, protocol: str
) -> None:
    """Two generations side by side, and then the prefill engines of one of them go."""
    pools = PodPools(protocol, engine, front, cluster)
    group = "example.com/generation"
    olds = [pools.prefill("p-old"), pools.decode("d-old")]
    news = [pools.prefill("p-new"), pools.decode("d-new")]
    for generation, engines in (("old", olds), ("new", news)):
        for one in engines:
            pools.join(one, **{group: generation})
    alone = pools.prefill("p-alone")
    pools.join(alone)
    running = pools.front("--pair-by", group, "--prefill-missing", "fail")
    named(running, *olds, *news)

    def refusal() -> str:
        rows = running.page()["engines"]
        return next((str(row["reason"]) for row in rows if row["pod"]["name"] == pools.pod(alone)), "")

    until(lambda: group in refusal(), within=WITHIN, saying=str(running.page()))
    assert all(answer.whole for _ in range(5) for answer in at_once(running, [chat()] * 8))
    idle(running, *olds, *news)
    assert alone.requests == 0
    for p, d in (olds, news):
        assert p.requests == d.requests > 0
    if protocol == "sglang":
        for p, d in (olds, news):
            assert {line["room"] for line in p.seen("leg")} == {line["room"] for line in d.seen("leg")}

    pools.leave(olds[0])
    running.wait_state(olds[0], "gone", "draining", "unready", None)
    before = olds[1].requests
    assert all(answer.whole for answer in at_once(running, [chat()] * 8))
    assert olds[1].requests == before, "its decode engine has nobody to work with"
