"""`serve` with an engines file that is none: it says so, goes on, and ends when it is told to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.support import Engine, Front, ask, chat
from tests.support import until

pytestmark = pytest.mark.e2e


def test_a_fifo_as_engines_file_holds_up_neither_the_frontend_nor_its_end(
    tmp_path: Path, engine: Callable[..., Engine], front: Callable[..., Front]
) -> None:
    os.mkfifo(tmp_path / "engines.yaml")
    one = engine("a").run()
    frontend = front("--engines-file", tmp_path / "engines.yaml", "--engine", one.url, ready=False)
    until(lambda: b"not a regular file" in frontend.get("/engines")[1])
    frontend.wait_state(one, "serving")
    (tmp_path / "engines.yaml").unlink()
    (tmp_path / "engines.yaml").write_text("[]")
    frontend.wait_ready()
    assert ask(frontend, chat()).whole
    (tmp_path / "engines.yaml").unlink()
    os.mkfifo(tmp_path / "engines.yaml")
    until(lambda: b"not a regular file" in frontend.get("/engines")[1])
    frontend.child.signal(signal.SIGTERM)
    assert frontend.child.process.wait(20) == 0
