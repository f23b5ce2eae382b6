"""The command line: which command runs what. No logic: parsing is in settings, work is in app, mock and demo.

Commands are named by import path, so that `enginehouse engines` never loads a tokenizer or a Kubernetes client.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import cyclopts
from cyclopts.argument import ArgumentCollection

import enginehouse
from enginehouse.cli.strict import bad_numbers
from enginehouse.cli.words import in_flags

COMMANDS = {
    "serve": "Serve OpenAI requests from engines that are given, listed in a file, or found as pods.",
    "mock": "Run a mock engine: the wire protocol of a real one, without model or GPU.",
    "demo": "Mock engines and the frontend in one command; watch an engine join and one leave.",
    "check": "Validate the configuration of serve, say what it would do, and touch nothing.",
    "engines": "Print what a running frontend knows of its engines.",
    "explain": "Say where a request would go now, and what it would cost on each engine.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done, 1: failed, 2: not understood, 130: interrupted."""
    try:
        command, bound, _ = application().parse_args(
            list(sys.argv[1:] if argv is None else argv), exit_on_error=False, print_error=False
        )
    except ValueError as problem:  # a settings class refuses a value
        return _refused(in_flags(problem))
    except cyclopts.CycloptsError as problem:
        return _refused(str(problem))
    try:
        result = command(*bound.args, **bound.kwargs)
    except cyclopts.CycloptsError as problem:  # settings that do not go together
        return _refused(str(problem))
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


def _refused(problem: str) -> int:
    for line in problem.splitlines():
        print(f"enginehouse: {line}", file=sys.stderr)
    return 2


def application() -> cyclopts.App:
    """Commands and their options."""
    app = cyclopts.App(
        name="enginehouse",
        help=enginehouse.__doc__,
        help_format="markdown",
        version=enginehouse.__version__,
        config=_more_sources,
        default_parameter=cyclopts.Parameter(negative_iterable=()),
    )
    for name, text in COMMANDS.items():
        app.command(f"enginehouse.cli.{name}:{name}", name=name, help=text)
    return app


def _more_sources(app: cyclopts.App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    problems: list[str] = []
    if commands in (("serve",), ("check",)):
        from enginehouse.settings import fill

        problems += fill(app, commands, arguments)
    problems += bad_numbers(arguments)
    if problems:  # all at once: whoever has made three mistakes need not start three times
        raise cyclopts.CycloptsError(msg="\n".join(problems))
