"""`enginehouse check`: what `serve` would make of the same options. Reads the files that they name, nothing else."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from enginehouse.cli.output import say
from enginehouse.settings import Settings, missing_files, moot, plan, unknown


def check(*, settings: Annotated[Settings, Parameter(name="*")] | None = None) -> int:
    """Validate the configuration of serve, say what it would do, and touch nothing.

    Takes the options of serve. Exits with 0 if serve would take them, with 2 if not. Files that are missing on this
    machine are warnings, but for those of TLS. It opens no connection: that ports are free, or that engines and the
    API server can be reached, only a start shows.
    """
    chosen = settings if settings is not None else Settings()
    chosen.validate()
    chosen.check_files()
    warnings = (*missing_files(chosen), *moot(chosen), *unknown(dict(os.environ)))
    return say((*plan(chosen), *(f"warning: {text}" for text in warnings)))
