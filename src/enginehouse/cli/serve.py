"""`enginehouse serve`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from enginehouse.settings import Settings


def serve(*, settings: Annotated[Settings, Parameter(name="*")] | None = None) -> int:
    """Serve OpenAI requests from engines that are given, listed in a file, or found as pods.

    Each option is also an environment variable (--drain-timeout: ENGINEHOUSE_DRAIN_TIMEOUT) and a key of the file that
    --config names (drain-timeout). What stands on the command line wins, then the environment, then the file.
    """
    from enginehouse.app import run

    chosen = settings if settings is not None else Settings()
    chosen.validate()
    chosen.check_files()
    return run(chosen)
