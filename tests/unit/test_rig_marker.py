"""A test whose rig cannot be set up: skipped by name for people, a failure in CI."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import PYTHON, ROOT

TEST = """
import pytest

@pytest.mark.rig("no-such-rig")
def test_with_a_rig():
    raise AssertionError("must not run")

def test_without():
    pass
"""


@pytest.mark.parametrize(
    ("ci", "status", "words"),
    [("", 0, "1 passed, 1 skipped"), ("true", 1, "1 passed, 1 error")],
)
def test_a_missing_rig(tmp_path: Path, ci: str, status: int, words: str) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(TEST)
    options = ["-c", "pyproject.toml", "--rootdir", str(ROOT), "-p", "tests.conftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [PYTHON, "-m", "pytest", *options, str(file)],
        cwd=ROOT,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert words in done.stdout
    assert "rig no-such-rig cannot be set up: setup: unknown rig 'no-such-rig'" in done.stdout
