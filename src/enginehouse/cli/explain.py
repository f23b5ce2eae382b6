"""`enginehouse explain`: asks a running frontend where a request would go, and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from enginehouse.cli.ask import NoPage, ask, bad_timeout, base, failed
from enginehouse.cli.output import say
from enginehouse.http.decision_table import render
from enginehouse.http.fleet_table import NotAPage, printable


def explain(
    body: Annotated[str | None, Parameter(name="FILE", allow_leading_hyphen=True)] = None,
    /,
    *,
    prompt: str | None = None,
    model: str | None = None,
    url: str = "http://127.0.0.1:8000",
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    timeout: float = 10.0,
) -> int:
    """Say where a request would go now, and what it would cost on each engine.

    Nothing is sent to an engine. The answer holds numbers and names of engines, nothing of the request.

    Parameters
    ----------
    body:
        File with the JSON of a request as /v1/chat/completions or /v1/completions takes it; - for standard input.
    prompt:
        A text to complete, instead of such a file.
    model:
        Model of the prompt. Default: the first that the frontend serves.
    url:
        Where the frontend listens; HOST:PORT will do.
    as_json:
        Print the answer as it came instead of a table.
    timeout:
        Seconds to wait for it.
    """
    if bad_timeout(timeout):
        return 2
    if body is not None and body != "-" and body.startswith("-"):
        print(
            f"enginehouse: {printable(body)} is no option of explain; a FILE of that name is ./{printable(body)}",
            file=sys.stderr,
        )
        return 2
    if (body is None) == (prompt is None):
        print("enginehouse: give a FILE (- for standard input) or --prompt TEXT", file=sys.stderr)
        return 2
    where = base(url)
    try:
        if prompt is not None:
            asked = json.dumps({"model": model or _first_model(where, timeout), "prompt": prompt}).encode()
        elif model is not None:
            print("enginehouse: --model goes with --prompt; a FILE names its own", file=sys.stderr)
            return 2
        else:
            asked = sys.stdin.buffer.read() if body == "-" else Path(str(body)).read_bytes()
    except OSError as error:
        return failed(str(body), str(error.strerror or error))
    except NoPage as error:
        return failed(f"{where}/v1/models", str(error))
    address = f"{where}/explain"
    try:
        told = ask(address, timeout, asked)
        lines = render(told)
    except NoPage as error:
        return failed(address, str(error))
    except NotAPage:
        return failed(address, "answers with something else than a decision; is it a frontend?")
    return say([json.dumps(told, indent=2)] if as_json else lines)


def _first_model(where: str, timeout: float) -> str:
    page: Any = ask(f"{where}/v1/models", timeout)
    try:
        return str(page["data"][0]["id"])
    except (LookupError, TypeError):
        raise NoPage("lists no model yet; name one with --model") from None
