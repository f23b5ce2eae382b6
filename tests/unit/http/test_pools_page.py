"""Two pools on `/engines` and in the table: who is in which, pairs in flight, and what a missing pool means."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from enginehouse.core.membership.states import State
from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.handover_settings import HandoverSettings, PrefillMissing
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.pairs import PoolLack
from enginehouse.domain.engine import Role
from enginehouse.http import pools_page
from enginehouse.http.fleet_table import render
from enginehouse.http.loads import by_engine
from enginehouse.service.membership import EngineView
from enginehouse.service.pair_counts import PairCounts
from enginehouse.service.pools_view import PoolsView
from tests.unit import test_cli as cli
from tests.unit.adapters.test_metrics import engine as engine_view
from tests.unit.http.test_completions import Edge, run


def view(
    lack: PoolLack | None = None, counts: PairCounts | None = None, *, alone: bool = True, **settings: Any
) -> PoolsView:
    return PoolsView(lack, alone, HandoverSettings(**settings), counts or PairCounts())


def member(name: str, role: Role | None, state: State = State.SERVING) -> EngineView:
    made = engine_view(name, state)
    object.__setattr__(made, "role", role)
    return made


def busy(ledger: Ledger, name: str, requests: int) -> None:
    for _ in range(requests):
        ledger.charge(Candidate(name, 1, name, None, ledger.load(name, 1, None), 0), 10, 10)


FLEET = (
    member("p", Role.PREFILL),
    member("q", Role.PREFILL, State.SUSPECT),
    member("a", Role.DECODE),
    member("b", Role.DECODE),
    member("x", None, State.FAILED),
)


def in_flight() -> tuple[PairCounts, Ledger]:
    """Three pairs: two of them at hand-over, both from p."""
    counts, ledger = PairCounts(), Ledger()
    for decode in "aab":
        counts.begin(("p", 1), (decode, 1))
        busy(ledger, decode, 1)
    busy(ledger, "p", 2)
    counts.waiting = 5
    return counts, ledger


def test_pools_are_counted_by_who_serves_and_pairs_once() -> None:
    counts, ledger = in_flight()
    assert pools_page.of_pools(view(counts=counts), FLEET, by_engine(ledger)) == {
        "serving": {"engines": 2},
        "prefill": {"engines": 1, "missing": None, "then": None},
        "pairs_in_flight": 3,
        "handovers_under_way": 2,
        "handovers_waiting": 5,
        "max_handovers_per_prefill": 256,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("p", {"pool": "prefill", "pairs": 3, "handovers": 2}),
        ("q", {"pool": "prefill", "pairs": 0, "handovers": 0}),
        ("a", {"pool": "serving", "pairs": 2, "handovers": None}),
        ("b", {"pool": "serving", "pairs": 1, "handovers": None}),
        ("x", {"pool": None, "pairs": 0, "handovers": None}),
    ],
)
def test_each_engine_has_its_pool_and_its_pairs(name: str, expected: dict[str, Any]) -> None:
    counts, ledger = in_flight()
    (one,) = (e for e in FLEET if e.engine_id == name)
    assert pools_page.of_engine(view(counts=counts), one, by_engine(ledger)) == expected


@pytest.mark.parametrize(
    ("policy", "alone", "then"),
    [
        ("wait", True, "requests wait up to 7.5 s for one, then 503"),
        ("decode", True, "requests run on a decode engine alone"),
        ("decode", False, "503 at once: no decode engine is there that can prefill"),
        ("fail", True, "503 at once"),
    ],
)
@pytest.mark.parametrize("lack", get_args(PoolLack))
def test_p6_a_missing_prefill_pool_is_shown_with_what_becomes_of_requests(
    policy: PrefillMissing, alone: bool, then: str, lack: PoolLack
) -> None:
    seen = view(lack, alone=alone, prefill_missing=policy, prefill_wait=7.5)
    assert seen.missing
    assert seen.then == then
    assert view().missing is view().then is None


def page(seen: PoolsView, ledger: Ledger, *, group: str | None = None) -> dict[str, Any]:
    shown = [cli.engine(name=e.name, state=e.state.value, role=e.role, group=group) for e in FLEET]
    engines = [one | pools_page.of_engine(seen, e, by_engine(ledger)) for one, e in zip(shown, FLEET, strict=True)]
    return cli.page(*engines, pools=pools_page.of_pools(seen, FLEET, by_engine(ledger)))


def section(lines: list[str], head: str) -> list[list[str]]:
    start = lines.index(head) + 1
    end = lines.index("", start)
    return [line.split() for line in lines[start:end]]


def test_the_table_shows_each_pool_by_itself() -> None:
    counts, ledger = in_flight()
    lines = render(page(view(counts=counts), ledger))
    assert lines[1] == "3 pairs in flight, 2 hand-overs under way and 5 waiting (at most 256 per prefill rank)"
    prefill, serving = section(lines, "prefill pool: 1 serve"), section(lines, "serving pool: 2 serve")
    assert prefill[0] == ["NAME", "STATE", "PAIRS", "HAND-OVERS", "STREAMS", "SINCE", "NEXT", "REASON"]
    assert [row[:4] for row in prefill[1:]] == [["p", "serving", "3", "2"], ["q", "suspect", "0", "0"]]
    assert serving[0] == ["NAME", "STATE", "PAIRS", "STREAMS", "SINCE", "NEXT", "REASON"]
    assert [row[:3] for row in serving[1:]] == [["a", "serving", "2"], ["b", "serving", "1"]]
    assert section(lines, "role not known yet:")[1][:2] == ["x", "failed"]


def test_the_table_has_groups_where_there_are_any() -> None:
    lines = render(page(view(), Ledger(), group="blue"))
    rows = section(lines, "serving pool: 2 serve")
    assert rows[0][3] == "GROUP"
    assert [row[3] for row in rows[1:]] == ["blue", "blue"]


def test_p6_the_table_says_what_a_missing_pool_means() -> None:
    seen = view("none", max_handovers_per_prefill=0)
    gone = page(seen, Ledger())
    gone["engines"] = []
    gone["pools"] = pools_page.of_pools(seen, (), by_engine(Ledger()))
    lines = render(gone)
    assert lines[1].endswith("(no limit per prefill rank)")
    assert "prefill pool: 0 serve; no prefill engine serves: requests wait up to 10 s for one, then 503" in lines
    assert "serving pool: no decode engine serves" in lines


def test_an_aggregated_fleet_has_no_pools() -> None:
    async def scenario(edge: Edge) -> None:
        body = (await edge.client.get("/engines")).json()
        assert body["pools"] is None
        assert "pool" not in body["engines"][0]
        assert not any("pool" in line for line in render(body))

    run(scenario)
