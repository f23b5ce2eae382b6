"""`enginehouse engines`: asks a running frontend for its `/engines` page."""

from __future__ import annotations

import http.client
import json
import sys
import urllib.error
import urllib.request
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from enginehouse.cli.output import say
from enginehouse.http.fleet_table import NotAPage, printable, render

_LONGEST = 86400


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
    address = f"{url if '://' in url else f'http://{url}'}".rstrip("/") + "/engines"
    if not 0 < timeout <= _LONGEST:
        print(
            f"enginehouse: --timeout: {timeout:g} is not a time to wait; more than 0, up to {_LONGEST} s are",
            file=sys.stderr,
        )
        return 2
    if not _askable(address):
        return _failed(address, "not of the form http://HOST:PORT")
    try:
        with urllib.request.urlopen(address, timeout=timeout) as answer:  # an operator's own URL
            page = json.load(answer)
    except http.client.HTTPException as error:  # such as a port that speaks HTTP/2 alone
        return _failed(address, f"does not answer in HTTP/1.1 ({type(error).__name__}); is it a frontend's HTTP port?")
    except (ValueError, RecursionError):
        return _failed(address, "answers with something else than JSON; is it a frontend?")
    except OSError as error:
        return _failed(address, str(error.reason if isinstance(error, urllib.error.URLError) else error))
    try:
        lines = list(render(page))
    except NotAPage:
        return _failed(address, "answers with something else than a list of engines; is it a frontend?")
    return say([json.dumps(page, indent=2)] if as_json else lines)


def _askable(address: str) -> bool:
    try:
        parts = urlsplit(address)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return named and parts.scheme in ("http", "https") and address.isprintable() and " " not in address


def _failed(address: str, reason: str) -> int:
    print(f"enginehouse: {printable(address)}: {printable(reason)}", file=sys.stderr)
    return 1
