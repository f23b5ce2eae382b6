"""Asks a running frontend for a page: its JSON, or one sentence that says why there is none."""

from __future__ import annotations

import http.client
import json
import sys
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from enginehouse.http.fleet_table import printable

_LONGEST = 86400
_LONGEST_ERROR = 64 * 1024


class NoPage(Exception):
    """The frontend did not answer with what was asked for; the text is for people."""


def base(url: str) -> str:
    """HOST:PORT will do for an URL."""
    return f"{url if '://' in url else f'http://{url}'}".rstrip("/")


def bad_timeout(timeout: float) -> bool:
    """Say so on standard error when this is no time to wait."""
    if 0 < timeout <= _LONGEST:
        return False
    wrong = f"--timeout: {timeout:g} is not a time to wait; more than 0, up to {_LONGEST} s are"
    print(f"enginehouse: {wrong}", file=sys.stderr)
    return True


def ask(address: str, timeout: float, body: bytes | None = None) -> Any:
    """The JSON at this address; with a body it is posted. Raises NoPage."""
    if not _askable(address):
        raise NoPage("not of the form http://HOST:PORT")
    request = urllib.request.Request(address, body, {"content-type": "application/json"} if body is not None else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:  # an operator's own URL
            return json.load(answer)
    except http.client.HTTPException as error:  # such as a port that speaks HTTP/2 alone
        kind = type(error).__name__
        raise NoPage(f"does not answer in HTTP/1.1 ({kind}); is it a frontend's HTTP port?") from error
    except urllib.error.HTTPError as error:
        raise NoPage(_refusal(error)) from error
    except (ValueError, RecursionError) as error:
        raise NoPage("answers with something else than JSON; is it a frontend?") from error
    except OSError as error:
        raise NoPage(str(error.reason if isinstance(error, urllib.error.URLError) else error)) from error


def failed(address: str, reason: str) -> int:
    """Say why there is no page; returns the exit status."""
    print(f"enginehouse: {printable(address)}: {printable(reason)}", file=sys.stderr)
    return 1


def _refusal(error: urllib.error.HTTPError) -> str:
    """What the frontend itself says, where it is one."""
    with error:
        try:
            return str(json.loads(error.read(_LONGEST_ERROR))["error"]["message"])
        except (LookupError, TypeError, ValueError, RecursionError, OSError, http.client.HTTPException):
            return f"answers {error.code} {error.reason}; is it a frontend?"


def _askable(address: str) -> bool:
    try:
        parts = urlsplit(address)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return named and parts.scheme in ("http", "https") and address.isprintable() and " " not in address
