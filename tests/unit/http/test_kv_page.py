"""What is known of KV caches on `/engines` and in its table: whatever is not as it should be has its reason there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from enginehouse.core.kv.accuracy import Verdict
from enginehouse.core.kv.view import Heard, KvView, Policy
from enginehouse.domain.kv import Trust
from enginehouse.http import kv_page
from enginehouse.http.fleet_table import kv_cell, kv_notes, render
from tests.unit.http.test_completions import Edge, run
from tests.unit.kv_views import known, rank_view
from tests.unit.test_cli import engine, page


def shown(*ranks: Any) -> list[dict[str, Any]]:
    return kv_page.of_engine(known(*ranks), "a", 1)


def test_every_number_of_a_rank_is_on_the_page_under_its_own_name() -> None:
    heard = Heard(1, 2, 3.0, 4, 5, 6, 7, 8, 9, 10, 11, 12, waiting=13)
    rank = rank_view(
        "a",
        rank=3,
        trust=Trust.PARTIAL,
        trust_reason="no replay",
        blocks=21,
        approximate_blocks=22,
        expected_blocks=23,
        orphans=24,
        heard=heard,
        event_age=1.23456,
        event_rate=7.6543,
        waiting_age=0.12345,
        verdict=Verdict.BLIND,
        policy=Policy.APPROXIMATE,
        policy_reason="blind",
        correction=0.98765,
        requests=25,
        hits=26,
        predicted_tokens=27,
        reported_tokens=28,
        prompt_tokens=29,
    )
    (told,) = shown(rank)
    assert json.loads(msgspec.json.encode(told)) == {
        "rank": 3,
        "trust": "partial",
        "trust_reason": "no replay",
        "policy": "approximate",
        "policy_reason": "blind",
        "block_size": 16,
        "block_sizes_disagree": False,
        "blocks": 21,
        "approximate_blocks": 22,
        "expected_blocks": 23,
        "event_age_seconds": 1.235,
        "waiting_batches": 13,
        "waiting_seconds": 0.123,
        "events_per_second": 7.65,
        "batches": 1,
        "events": 2,
        "malformed": 4,
        "ignored": 5,
        "misdirected": 6,
        "duplicates": 7,
        "gaps": 8,
        "lost": 9,
        "replays": 10,
        "restarts": 11,
        "overflows": 12,
        "orphans": 24,
        "verdict": "blind",
        "correction": 0.988,
        "requests": 25,
        "hits": 26,
        "prompt_tokens": 29,
        "predicted_cached_tokens": 27,
        "reported_cached_tokens": 28,
    }


def test_k2_each_incarnation_has_its_own() -> None:
    view = known(rank_view("a", blocks=1), rank_view("a", incarnation=2, blocks=2), rank_view("b", blocks=3))
    assert [rank["blocks"] for rank in kv_page.of_engine(view, "a", 2)] == [2]
    assert kv_page.of_engine(view, "c", 1) == []


def test_the_page_has_it_only_where_the_policy_asks() -> None:
    async def without(edge: Edge) -> None:
        body = (await edge.client.get("/engines")).json()
        assert body["kv_index"] is None
        assert [e["kv"] for e in body["engines"]] == [None]

    run(without)

    seen: list[KvView] = [known()]

    async def scenario(edge: Edge) -> None:
        member = edge.fleet.serving.get()[0]
        seen[0] = known(rank_view(member.engine_id, incarnation=member.incarnation, blocks=5), blocks=5, memory=400)
        body = (await edge.client.get("/engines")).json()
        assert body["kv_index"] == {"blocks": 5, "limit_blocks": 1000, "memory_bytes": 400, "evicted_blocks": 0}
        assert [rank["blocks"] for rank in body["engines"][0]["kv"]] == [5]
        lines = await asyncio.to_thread(render, body)
        assert any(line.startswith("NAME") and " KV " in line for line in lines)

    run(scenario, kv=lambda: seen[0])


def test_the_cell_says_it_in_a_few_words() -> None:
    assert kv_cell([]) == "-"
    assert kv_cell(shown(rank_view("a", blocks=1200))) == "synced 1200"
    lost = rank_view("a", rank=1, trust=Trust.GAP, policy=Policy.APPROXIMATE, policy_reason="lost", blocks=0)
    assert kv_cell(shown(lost)) == "approximate"
    partial = rank_view("a", rank=2, trust=Trust.PARTIAL, blocks=5)
    assert kv_cell(shown(rank_view("a", blocks=7), lost, partial)) == "partial/synced 12, 2 of 3"


def test_k6_what_is_not_as_it_should_be_has_its_reason() -> None:
    ranks = [
        rank_view("a"),
        rank_view("a", rank=1, trust=Trust.NONE, policy=Policy.APPROXIMATE, policy_reason="cannot be reached"),
        rank_view("a", rank=2, trust=Trust.PARTIAL, trust_reason="its history was cut"),
        rank_view("a", rank=3, block_size=32, block_sizes_disagree=True),
        rank_view("a", rank=4, heard=Heard(misdirected=2)),
    ]
    notes = list(kv_notes({"name": "pod-a", "kv": shown(*ranks)}))
    assert [note[:3] for note in notes] == [
        ("pod-a", "1", "none"),
        ("pod-a", "2", "partial"),
        ("pod-a", "3", "synced"),
        ("pod-a", "4", "synced"),
    ]
    assert [note[3] for note in notes[:2]] == ["cannot be reached", "its history was cut"]
    assert "blocks of 32" in notes[2][3]
    assert "2 batches name another rank" in notes[3][3]


def test_the_table_has_a_column_for_it_and_the_index_a_line() -> None:
    sick = rank_view("a", trust=Trust.GAP, policy=Policy.APPROXIMATE, policy_reason="batches 7-9 are lost")
    body = page(
        engine(name="a", kv=shown(sick)),
        engine(name="b", kv=shown(rank_view("a", blocks=40))),
        engine(name="c", state="failed", kv=[]),
        policy="kv",
        kv_index={"blocks": 40, "limit_blocks": 1000, "memory_bytes": 3_200_000, "evicted_blocks": 2},
    )
    lines = render(body)
    rows = {line.split()[0]: line for line in reversed(lines) if line}
    column = lines[2].index("KV")
    assert rows["a"][column:].split()[0] == "approximate"
    assert rows["b"][column:].split()[:2] == ["synced", "40"]
    assert rows["c"][column:].split()[0] == "-"
    assert "KV index: 40 of 1000 blocks, 3.2 MB, 2 evicted" in lines
    assert any(line.split()[:3] == ["a", "0", "gap"] and line.endswith("batches 7-9 are lost") for line in lines)
