"""Log lines: one shape for ours and for libraries, levels hold, secrets never come out."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from enginehouse.adapters.logs import HIDDEN, LogSettings, setup_logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_lines_carry_event_level_logger_and_fields() -> None:
    out = io.StringIO()
    log = structlog.get_logger("enginehouse.fleet")
    setup_logs(LogSettings(log_format="json"), out)
    log.info("engine_admitted", engine="pod-a:30001", incarnation=3)
    (line,) = lines(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "engine_admitted",
        "level": "info",
        "logger": "enginehouse.fleet",
        "engine": "pod-a:30001",
        "incarnation": 3,
    }


def test_text_lines_are_one_line_without_escape_codes_when_not_on_a_terminal() -> None:
    out = io.StringIO()
    setup_logs(LogSettings(), out)
    structlog.get_logger("enginehouse.fleet").info("engine_admitted", engine="a b")
    text = out.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "engine_admitted" in text
    assert "engine='a b'" in text


def test_level_holds_and_a_second_setup_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    log = structlog.get_logger("enginehouse.fleet")
    setup_logs(LogSettings(log_level="warning"), first)
    log.info("quiet")
    assert first.getvalue() == ""
    setup_logs(LogSettings(log_level="info", log_format="json"), second)
    log.info("heard")
    assert first.getvalue() == ""
    assert [line["event"] for line in lines(second)] == ["heard"]


def test_libraries_come_out_in_the_same_shape_from_warnings_up() -> None:
    out = io.StringIO()
    setup_logs(LogSettings(log_level="debug", log_format="json"), out)
    logging.getLogger("uvicorn.error").info("started")
    logging.getLogger("uvicorn.error").warning("trouble %s", 7)
    logging.getLogger("httpx").warning("HTTP Request: GET https://api/token")
    logging.getLogger("uvicorn.access").warning('127.0.0.1 - "GET /v1/models"')
    assert [(line["event"], line["logger"]) for line in lines(out)] == [("trouble 7", "uvicorn.error")]


@pytest.mark.parametrize("name", sorted(HIDDEN))
@pytest.mark.parametrize("shape", ["text", "json"])
def test_fields_that_may_hold_secrets_or_prompts_are_hidden(name: str, shape: Any) -> None:
    out = io.StringIO()
    setup_logs(LogSettings(log_format=shape), out)
    structlog.get_logger("enginehouse.http").error("oops", **{name: "s3cret"})
    assert "s3cret" not in out.getvalue()
    assert "[hidden]" in out.getvalue()


def test_request_id_is_taken_from_the_context() -> None:
    out = io.StringIO()
    setup_logs(LogSettings(log_format="json"), out)
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        structlog.get_logger("enginehouse.http").info("begun")
    structlog.get_logger("enginehouse.http").info("outside")
    assert [line.get("request_id") for line in lines(out)] == ["r-1", None]


def test_a_traceback_is_one_json_line() -> None:
    out = io.StringIO()
    setup_logs(LogSettings(log_format="json"), out)
    try:
        raise RuntimeError("bug")
    except RuntimeError:
        structlog.get_logger("enginehouse.app").exception("failed")
        logging.getLogger("uvicorn.error").exception("failed too")
    ours, theirs = lines(out)
    assert "RuntimeError: bug" in ours["exception"]
    assert "RuntimeError: bug" in theirs["exception"]
