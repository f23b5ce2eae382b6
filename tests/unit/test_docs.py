"""What the pages say agrees with the code: settings, metrics, layers, paths, flags, versions, fault table, links."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import pytest

import enginehouse
from enginehouse.adapters.metrics.table import TABLE
from enginehouse.cli import COMMANDS
from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.ledger import Ledger
from enginehouse.core.routing.policy import Router
from enginehouse.core.routing.settings import RoutingSettings
from enginehouse.domain import errors
from enginehouse.domain.kv import Trust
from enginehouse.settings import docs, setting_rows
from tests import faults
from tests.support import ROOT
from tests.unit.core.routing.fakes import FakePrompt

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "deploy/README.md"]
OF_OTHERS = {
    "--disaggregated",
    "--disaggregation-bootstrap-port",
    "--disaggregation-mode",
    "--disaggregation-transfer-backend",
    "--enable-metrics",
    "--enable-priority-scheduling",
    "--grammar-backend",
    "--kv-events",
    "--kv-events-config",
    "--kv-transfer-config",
    "--max-logprobs",
    "--page-size",
    "--prompt",
    "--grpc",
    "--grpc-port",
    "--help",
    "--host",
    "--incremental-streaming-output",
    "--json",
    "--rounds",
    "--smooth",
    "--url",
}
"""Flags on our pages that are not settings of `serve`: those of engines, of other commands, of benchmarks."""


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def project() -> Any:
    return tomllib.loads(text("pyproject.toml"))


def test_the_settings_page_is_current() -> None:
    assert text("docs/settings.md") == docs.page(), "run scripts/settings-docs"


def test_versions_agree() -> None:
    newest = re.search(r"^## \[(.+?)\] - (unreleased|\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == enginehouse.__version__ == project()["project"]["version"]


def test_the_metrics_page_is_the_table() -> None:
    expected = ["| Name | Type | Labels | Meaning |", "|---|---|---|---|"]
    for row in TABLE:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        expected.append(f"| `{row.exposed}` | {row.kind} | {labels} | {row.meaning} |")
    between = text("docs/operations.md").partition("<!-- metrics -->\n")[2].partition("<!-- /metrics -->")[0]
    assert between.splitlines() == expected, "the table should be:\n" + "\n".join(expected)


def test_the_worked_example_is_what_the_code_says() -> None:
    ledger = Ledger()
    held = {"a": 1600, "b": 0, "c": 1600, "d": 1984}
    busy = {"a": (6, 30_000, 3_000), "b": (0, 0, 0), "c": (2, 8_000, 0), "d": (20, 99_000, 0)}
    ranks = []
    for name, (requests, tokens, queued) in busy.items():
        load = ledger.load(name, 1, None)
        load.requests, load.tokens, load.prefill_tokens = requests, tokens, queued
        ranks.append(Candidate(name, 1, name, None, load, len(ranks), capacity_tokens=100_000))
    router = Router(RoutingSettings(policy="kv"), Random(0))
    told = router.choose(ranks, prompt=FakePrompt(2000, held), explain=True)
    lines = [
        "| Engine | Holds | To prefill | Queued there | In flight there | Prefill | Queue | Decode | Wait | Cost |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for part in told.parts:
        costs = (part.prefill_cost, part.queue_cost, part.decode_cost, part.wait_cost, part.cost)
        name = f"**{part.engine}**" if part.chosen else part.engine
        amounts = [f"{number:,.0f}" for number in (part.held, part.prefill, part.queued, *costs)]
        amounts.insert(3, f"{part.tokens:,} in {part.requests}")
        lines.append(f"| {name} | {' | '.join(amounts)} |")
    between = text("docs/kv-routing.md").partition("<!-- example -->\n")[2].partition("<!-- /example -->")[0]
    assert between.splitlines() == lines, "the table should be:\n" + "\n".join(lines)
    assert told.chosen.name == "c", "as the page tells it"


def test_the_trust_states_on_the_page_are_those_of_the_code() -> None:
    page = text("docs/kv-routing.md").partition("## Trust")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [trust.value for trust in Trust]


def test_metrics_named_for_alerts_exist() -> None:
    exposed = {row.exposed for row in TABLE}
    for path in (ROOT / "docs").glob("*.md"):
        named = set(re.findall(r"enginehouse_[a-z_]+", path.read_text(encoding="utf-8")))
        assert named <= exposed, path.name


def test_every_required_fault_has_a_test_on_the_page() -> None:
    known = set(faults.node_ids())
    listed: dict[str, list[str]] = {}
    for line in text("docs/faults.md").splitlines():
        if match := re.match(r"\| ([A-Z]\d+) \|", line):
            listed[match[1]] = re.findall(r"`(tests/[^`]+)`", line)
    for fault in faults.WANT:
        assert listed.get(fault), f"{fault} has no test: name one test_{fault.lower()}_… and run scripts/faults-docs"
        missing = [node for node in listed[fault] if node not in known]
        assert not missing, f"{fault}: run scripts/faults-docs; gone: {missing}"
    assert set(faults.ELSEWHERE) <= set(listed)
    assert not set(faults.WANT) & set(faults.ELSEWHERE)


def test_the_page_of_faults_is_the_one_that_the_tests_make() -> None:
    assert text("docs/faults.md") == faults.page(), "run scripts/faults-docs"


def test_the_layers_on_the_page_are_those_of_the_contract() -> None:
    (contract,) = (c for c in project()["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    page = text("docs/architecture.md").partition("## Layers")[2].partition("\n## ")[0]
    told = [re.findall(r"`([a-z_]+)`", line.split("|")[2]) for line in page.splitlines() if line.startswith("| ")][1:]
    assert told == [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def test_the_paths_on_the_page_are_those_of_the_server() -> None:
    routes = text("src/enginehouse/http/routes.py") + text("src/enginehouse/http/shapes.py")
    served = set(re.findall(r'"(/[a-z0-9/]+)"', routes))
    page = text("docs/operations.md").partition("## Paths")[2].partition("\n## ")[0]
    told = {path for line in page.splitlines() for path in re.findall(r"`(/[a-z0-9/]+)`", line.split(" | ")[0])}
    assert told == served


def test_the_statuses_on_the_page_are_those_of_the_errors() -> None:
    page = text("docs/operations.md").partition("## Errors that clients see")[2].partition("\n## ")[0]
    told = {int(status) for status in re.findall(r"^\| (\d{3}) \|", page, re.MULTILINE)}
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ours = {kind.status for kind in classes if issubclass(kind, errors.EnginehouseError)}
    assert told == ours - {405, 499}, "405 needs no explanation, 499 nobody sees"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_flags_commands_links_and_scripts_exist(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    flags = {row.flag for row in setting_rows()}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page)) - flags - OF_OTHERS == set()
    for command in re.findall(r"`enginehouse ([a-z]+)", page):
        assert command in COMMANDS
    for link in re.findall(r"\]\(([^)#]+)\)", page):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), link
    for script in re.findall(r"`?(scripts/[a-z-]+)", page):
        assert (ROOT / script).exists(), script
    for module in re.findall(r"`(?:python -m )?bench\.([a-z_]+)", page):
        assert (ROOT / f"bench/{module}.py").exists(), module
    for source in re.findall(r"`((?:core|http|service|adapters|wire|domain|settings|mock)/[\w/.]+)`", page):
        assert (ROOT / "src/enginehouse" / source).exists(), source


def test_the_readme_names_what_the_scripts_do() -> None:
    for script in ("scripts/demo", "scripts/test"):
        assert f"    {script}\n" in text("README.md")


def test_no_page_or_source_names_a_machine() -> None:
    bad = re.compile("/(work|home|root)/|/tmp/[a-z]")
    for path in [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "bench").glob("*.py"), *(ROOT / "scripts").iterdir()]:
        found = bad.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found}"
