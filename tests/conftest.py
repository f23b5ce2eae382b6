"""Rigs for the tests that ask for one: set up once before the first test, so that no test's time limit pays for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import ROOT, Start, starter

_MISSING = pytest.StashKey[dict[str, str]]()
_SETUP = ROOT / "tests" / "rigs" / "setup"

# A slow machine is no failure, so no example has a deadline, and neither are examples that chance makes large. CI tries
# the same examples each time: what it finds there is what the change has done.
settings.register_profile(
    "enginehouse",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=os.environ.get("CI") == "true",
)
settings.load_profile("enginehouse")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vllm-cpu", action="store_true", help="also test against the real vLLM engine on the CPU (gigabytes)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--vllm-cpu"):
        return
    skip = pytest.mark.skip(reason="only with --vllm-cpu: see scripts/test-vllm-cpu")
    for item in items:
        if "vllm-cpu" in _rigs(item):
            item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Set up every rig that a selected test needs."""
    missing = session.config.stash.setdefault(_MISSING, {})
    if session.config.option.collectonly:
        return
    for rig in sorted({rig for item in session.items if not item.get_closest_marker("skip") for rig in _rigs(item)}):
        done = subprocess.run([_SETUP, rig], capture_output=True, text=True, check=False)
        if done.returncode:
            missing[rig] = (done.stderr.strip() or done.stdout.strip() or "setup failed").splitlines()[-1]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for rig in _rigs(item):
        reason = item.config.stash.get(_MISSING, {}).get(rig)
        if reason is not None and os.environ.get("CI") == "true":
            pytest.fail(f"rig {rig} cannot be set up: {reason}", pytrace=False)
        if reason is not None:
            pytest.skip(f"rig {rig} cannot be set up: {reason}")


def _rigs(item: pytest.Item) -> set[str]:
    return {str(name) for mark in item.iter_markers("rig") for name in mark.args}


@pytest.fixture
def start() -> Iterator[Start]:
    """start(command, env=…) -> Child: programs that end with the test."""
    with starter() as run:
        yield run
