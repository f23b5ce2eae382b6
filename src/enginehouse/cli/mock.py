"""`enginehouse mock`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from enginehouse.mock.settings import MockSettings


def mock(*, settings: Annotated[MockSettings, Parameter(name="*")] | None = None) -> int:
    """Run a mock engine: the wire protocol of a real one, without model or GPU.

    Tokens are made by a rule from the prompt, so that a test knows the right answer whichever engine gave it.
    """
    from enginehouse.mock import run

    return run(settings if settings is not None else MockSettings())
