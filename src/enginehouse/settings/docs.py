"""docs/settings.md, written from the declarations: `python -m enginehouse.settings.docs [--check]`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from enginehouse.settings import setting_rows
from enginehouse.settings.table import Row

PAGE = Path("docs/settings.md")
HEAD = """\
# Settings

Written by `scripts/settings-docs` from the declarations in the code; a test keeps it current.

Each setting of `serve` and `check` is a flag (`--drain-timeout 60`), an environment variable
(`ENGINEHOUSE_DRAIN_TIMEOUT=60`) and a key of the YAML file that `--config` names (`drain-timeout: 60`). The
first of these that is given wins, in this order; then the default. In the file, keys stand flat, without dashes
in front; lists are YAML lists. In a variable a list is separated by spaces. A list from one source replaces
that of the next, they do not add up.

    # enginehouse.yaml
    pods: app=sglang
    pod-port: 30001
    policy: least-loaded
    drain-timeout: 600

An unknown key, one given twice, a value of another type or settings that do not go together stop the start with
exit code 2 and a line for each problem; `enginehouse check` tells them without starting anything. Variables that
begin with `ENGINEHOUSE_` and are no setting are told by `check` and else left alone; those that Kubernetes makes
for a Service of that name (`tcp://…`) are not taken for settings.
"""


def page() -> str:
    """The whole page."""
    return "\n".join((HEAD, *_groups()))


def _groups() -> Iterator[str]:
    for group, members in groupby(setting_rows(), key=lambda row: row.group):
        yield f"## {(inspect.getdoc(group) or group.__name__).split('.')[0]}\n"
        yield "| Flag and key | Variable | Type | Default | Meaning |"
        yield "|---|---|---|---|---|"
        yield from map(_line, members)
        yield ""


def _line(row: Row) -> str:
    default = f"`{row.shown_default}`" if row.shown_default else ""
    meaning = row.meaning.replace("|", "\\|")
    return f"| `{row.flag}` | `{row.variable}` | {row.kind} | {default} | {meaning} |"


def main(argv: list[str]) -> int:
    """Write the page, or say whether it is current."""
    current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if current == page():
        return 0
    if "--check" in argv:
        print(f"{PAGE} is not current; run scripts/settings-docs", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
