"""How log lines look and where they go: one event a line on standard error, text or JSON, nothing secret.

It does not decide what is logged: shells do, through `structlog.get_logger("enginehouse.<part>")`. Libraries that use
the standard `logging` come out in the same shape, from warnings up, so that one reader of the log is enough.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, TextIO

import structlog

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

HIDDEN = frozenset(
    {
        "api_key",
        "authorization",
        "body",
        "cookie",
        "headers",
        "input_ids",
        "messages",
        "password",
        "prompt",
        "server_info",
        "token",
        "token_ids",
    }
)
"""Field names whose values never reach a log. No code of ours passes them; this holds when some day one does."""

_CHATTY = ("httpcore", "httpx", "hpack", "asyncio", "uvicorn.access")
"""Libraries that narrate every request at levels an operator asks for."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is logged and in which shape."""

    log_level: LogLevel = "info"
    """Least level that is logged. `debug` adds watch events and probe attempts; prompts and headers are in none."""
    log_format: LogFormat = "text"
    """`text` for people, `json` (one object a line) for collectors."""


def setup_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send this process's logs to `stream` (standard error unless given) as the settings say. May be called again."""
    out = stream if stream is not None else sys.stderr
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        _hide,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    end: list[structlog.typing.Processor]
    if settings.log_format == "json":
        end = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        end = [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[*shared, *end],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *names: _Lines(names[0] if names else "enginehouse", out),
        cache_logger_on_first_use=False,  # a second call (tests, demo) must reach loggers made at import
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *end],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING if level < logging.WARNING else level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("uvicorn", "uvicorn.error"):  # with handlers of their own they would speak twice
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True


def _hide(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key in HIDDEN.intersection(event):
        event[key] = "[hidden]"
    return event


class _Lines:
    """The end of the chain: writes finished lines. Carries the name that `get_logger` was given."""

    def __init__(self, name: str, out: TextIO) -> None:
        self.name = name
        self._out = out

    def msg(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()

    debug = info = warning = error = critical = exception = fatal = log = msg
