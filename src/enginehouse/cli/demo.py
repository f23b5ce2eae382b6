"""`enginehouse demo`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from enginehouse.demo import DemoSettings, run


def demo(*, settings: Annotated[DemoSettings, Parameter(name="*")] | None = None) -> int:
    """Mock engines and the frontend in one command: no cluster, no model, no GPU.

    Prints a request to copy, sends one itself, lets an engine join and one leave under traffic, and serves on. With
    --policy kv a chat comes first, whose second turn goes to the engine that holds the first; with --disaggregated each
    request is prefilled on one engine and decoded on another.
    """
    return run(settings if settings is not None else DemoSettings())
