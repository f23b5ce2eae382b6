"""`enginehouse check`: what `serve` would make of the same options. Reads the `--config` file only."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from enginehouse.settings import Settings, plan, unknown


def check(*, settings: Annotated[Settings, Parameter(name="*")] | None = None) -> int:
    """Validate the configuration of serve, say what it would do, and touch nothing.

    Takes the options of serve. Exits with 0 if serve would start with them, with 2 if not.
    """
    chosen = settings if settings is not None else Settings()
    chosen.validate()
    for line in (*plan(chosen), *(f"warning: {text}" for text in unknown(dict(os.environ)))):
        print(line)
    return 0
