"""`enginehouse engines`: asks a running frontend for its `/engines` page."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from typing import Annotated

from cyclopts import Parameter

from enginehouse.http.fleet_table import render


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
        Where the frontend listens.
    as_json:
        Print the page as it came instead of a table.
    timeout:
        Seconds to wait for it.
    """
    address = f"{url.rstrip('/')}/engines"
    try:
        with urllib.request.urlopen(address, timeout=timeout) as answer:  # an operator's own URL
            page = json.load(answer)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        print(f"enginehouse: {address}: {reason}", file=sys.stderr)
        return 1
    print(json.dumps(page, indent=2) if as_json else "\n".join(render(page)))
    return 0
