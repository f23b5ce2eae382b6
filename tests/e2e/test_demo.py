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
    assert "Its stream ended whole: 100 tokens, finish_reason length." in shown
    leaver = next(line for line in demo.lines if " leaves " in line).split()[0]
    during, after = shown.split("Its stream ended whole")
    assert re.search(rf"{re.escape(leaver)} +draining +aggregated +1 ", during)
    assert leaver not in after
    assert "Traceback" not in shown


def test_a_second_turn_lands_on_the_engine_that_holds_the_first(start: Start) -> None:
    demo = start([*DEMO, "--policy", "kv", "--once"])
    assert demo.process.wait(55) == 0, demo.output
    demo.end()
    first = re.search(r"A chat begins: (\d+) prompt tokens go to (\S+), which had 0 of them", demo.output)
    assert first is not None, demo.output
    told = re.search(rf"^ +{re.escape(first[2])}, by policy kv among 2: best", demo.output, re.MULTILINE)
    assert told is not None, demo.output
    row = next(line.split() for line in demo.lines if line.split()[:2] == ["*", first[2]])
    held = int(row[7])
    assert held > int(first[1]) // 2, "the first turn's blocks"
    second = re.search(
        rf"It goes to {re.escape(first[2])}, the same engine: (\d+) of (\d+) tokens predicted in its cache, "
        r"(\d+) reported",
        demo.output,
    )
    assert second is not None, demo.output
    predicted, prompt, reported = map(int, second.groups())
    assert held <= predicted <= reported < prompt, "events may still have come between"
    spreads = [spread(line) for line in demo.lines if " got " in line]
    assert all(sum(counts) == 12 for counts in spreads)
    assert spreads[1][2] > 0, "the newcomer serves"
    assert 0 in spreads[2], "the leaver gets nothing new"
    assert "Its stream ended whole: 100 tokens" in demo.output
    assert re.search(r"synced \d+", demo.output), "the table tells of caches"
    assert "Traceback" not in demo.output


def test_two_pools_prefill_and_decode(start: Start) -> None:
    demo = start([*DEMO, "--disaggregated", "--once"])
    assert demo.process.wait(50) == 0, demo.output
    demo.end()
    shown = demo.output
    pair = re.search(r"One more: (\S+) prefills it, (\S+) fetches the KV cache from there and answers", shown)
    assert pair is not None
    assert pair[1] != pair[2]
    first, joined, left = (spread(line) for line in demo.lines if " got " in line)
    assert first[:2] == [6, 6], "each is prefilled once"
    assert sum(first[2:]) == 12, "and decoded once"
    assert (joined[0], joined[1], joined[4]) == (4, 4, 4), "the newcomer prefills"
    assert sorted(left[2:4]) == [0, 12], "the leaver gets nothing new"
    assert "prefill pool: 3 serve" in shown
    assert "serving pool: 1 serve" in shown
    assert "Its stream ended whole: 100 tokens, finish_reason length." in shown
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
