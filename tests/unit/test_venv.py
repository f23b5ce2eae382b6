"""`scripts/venv`: when it installs and when it need not, and that nothing it installs is unpinned."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT

_PYTHON = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/asked"
"""
"""Stands for the environment's interpreter, and notes what it is asked to do."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("scripts/venv", "requirements/run.txt", "requirements/dev.txt", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(_PYTHON)
    python.chmod(0o755)
    return tmp_path


def installs(copy: Path, kind: str) -> list[str]:
    """What a run of the script installs."""
    asked = copy / ".venv/bin/asked"
    asked.unlink(missing_ok=True)
    subprocess.run([copy / "scripts/venv", kind], check=True, capture_output=True, timeout=50)
    lines = asked.read_text().splitlines() if asked.exists() else []
    return [line for line in lines if " install " in line]


def stamps(copy: Path) -> set[str]:
    return {path.name for path in (copy / ".venv").glob("stamp-*")}


def test_it_installs_once_and_again_when_the_requirements_change(copy: Path) -> None:
    for kind in ("run", "dev"):
        assert len(installs(copy, kind)) == 2
        assert installs(copy, kind) == []
        with (copy / "requirements" / f"{kind}.txt").open("a") as file:
            file.write("# another\n")
        assert len(installs(copy, kind)) == 2


def test_what_is_current_for_dev_is_current_for_run_and_what_is_stale_is_not(copy: Path) -> None:
    installs(copy, "dev")
    assert installs(copy, "run") == []
    with (copy / "pyproject.toml").open("a") as file:
        file.write("# another\n")
    assert any("requirements/run.txt" in line for line in installs(copy, "run"))
    assert stamps(copy) == {"stamp-run"}, "other versions than those of the stamp may be there now"
    assert any("requirements/dev.txt" in line for line in installs(copy, "dev"))


def test_an_interrupted_installation_leaves_no_stamp(copy: Path) -> None:
    installs(copy, "run")
    with (copy / "pyproject.toml").open("a") as file:
        file.write("# another\n")
    (copy / ".venv/bin/python").write_text(_PYTHON + 'case "$*" in *-r*) exit 1;; esac\n')
    with pytest.raises(subprocess.CalledProcessError):
        installs(copy, "run")
    assert stamps(copy) == set()


def test_every_installation_is_pinned(copy: Path) -> None:
    for line in installs(copy, "run") + installs(copy, "dev"):
        assert "--require-hashes" in line or {"--no-deps", "--no-build-isolation", "--no-index"} <= set(line.split())
    for kind in ("run", "dev"):
        text = (ROOT / "requirements" / f"{kind}.txt").read_text()
        assert re.search(r"^setuptools==\S+ \\\n +--hash=", text, re.MULTILINE), "the build has its pin too"
        assert "://" not in text
