"""`enginehouse demo` shows what it says: an answer, a join that gets work, a leave that cuts nothing."""

from __future__ import annotations

import re
import signal
import urllib.request

import pytest

from tests.e2e.support import Start
from tests.support import PYTHON

pytestmark = pytest.mark.e2e
DEMO = [PYTHON, "-m", "enginehouse", "demo", "--port", "0"]


def spread(line: str) -> list[int]:
    return [int(count) for count in re.findall(r"got (\d+)", line)]


def test_the_show_ends_well(start: Start) -> None:
    demo = start([*DEMO, "--once"])
    assert demo.process.wait(50) == 0, demo.output
    demo.end()
    shown = demo.output
    assert "curl -N http://127.0.0.1:" in shown
    assert re.search(r"^< +\S+", shown, re.MULTILINE), "an answer in words"
    first, joined, left = (spread(line) for line in demo.lines if " got " in line)
    assert first == [6, 6]
    assert joined == [4, 4, 4], "the newcomer serves"
    assert sorted(left) == [0, 6, 6], "the leaver gets nothing new"
    assert "Its stream ended whole: 100 pieces of text, finish_reason length." in shown
    leaver = next(line for line in demo.lines if " leaves " in line).split()[0]
    during, after = shown.split("Its stream ended whole")
    assert re.search(rf"{re.escape(leaver)} +draining +aggregated +1 ", during)
    assert leaver not in after
    assert "Traceback" not in shown


def test_it_serves_on_until_interrupted(start: Start) -> None:
    demo = start([*DEMO, "--engines", "1", "--policy", "least-loaded"])
    url = demo.wait_line("until Ctrl-C", within=50).split()[2]
    with urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:
        assert answer.status == 200
    demo.signal(signal.SIGINT)
    assert demo.process.wait(20) == 0, demo.output
    demo.end()
    assert "Traceback" not in demo.output
