"""What every measurement needs: CPU time of a process and its children, order statistics, rounds taken in turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of one process, its threads included and its children not."""
    # The command's name may hold spaces and brackets; the numbers begin after its last bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def tree_of(pid: int) -> list[int]:
    """A process and all that descend from it now."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += tree_of(int(child))
    return found


def cpu_seconds_of_tree(pid: int) -> float:
    """User and system time of a process and its living descendants."""
    return sum(cpu_seconds(one) for one in tree_of(pid))


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def percentile(values: Sequence[float], percent: float) -> float:
    """Order statistic, linear between neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def interleave(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure each contestant once per round, first one and then the other first, so that drift hits all alike."""
    results: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds):
        names = list(contestants)
        for name in names if turn % 2 == 0 else reversed(names):
            results[name].append(contestants[name]())
    return results


def ratio_of_medians(mine: Sequence[float], other: Sequence[float]) -> float:
    """How much of the other's cost is mine."""
    return statistics.median(mine) / statistics.median(other)


def spawn(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Run `python -m module arguments` with its standard output to be read, in this interpreter's environment."""
    return subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    """What a child says first; it must say something."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"{process.args} ended with {process.wait()} and said nothing")
    return line
