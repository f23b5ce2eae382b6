"""`enginehouse engines`: asks a running frontend for its `/engines` page."""

from __future__ import annotations

import json
from typing import Annotated

from cyclopts import Parameter

from enginehouse.cli.ask import NoPage, ask, bad_timeout, base, failed
from enginehouse.cli.output import say
from enginehouse.http.fleet_table import NotAPage, render


def engines(
    *,
    url: str = "http://127.0.0.1:8000",
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    timeout: float = 10.0,
) -> int:
    """Print what a running frontend knows of its engines.

    Parameters
    ----------
    url:
        Where the frontend listens; HOST:PORT will do.
    as_json:
        Print the page as it came instead of a table.
    timeout:
        Seconds to wait for it.
    """
    if bad_timeout(timeout):
        return 2
    address = f"{base(url)}/engines"
    try:
        page = ask(address, timeout)
        lines = render(page)
    except NoPage as error:
        return failed(address, str(error))
    except NotAPage:
        return failed(address, "answers with something else than a list of engines; is it a frontend?")
    return say([json.dumps(page, indent=2)] if as_json else lines)
