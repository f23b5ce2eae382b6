"""Whose failure it is where an answer is to be held to a constraint, as a table."""

from __future__ import annotations

import pytest

from enginehouse.core.constrained import told, unheld
from enginehouse.domain import errors
from enginehouse.domain.link import LinkError, LinkErrorKind


def caused(error: errors.EngineError, cause: Exception) -> errors.EngineError:
    error.__cause__ = cause
    return error


def presumed() -> errors.EngineError:
    """A hand-over of which the engine said no more than that it failed."""
    return caused(errors.HandoverFailed("x"), errors.EngineFailed("x"))


def reported() -> errors.EngineError:
    return caused(errors.HandoverFailed("x"), RuntimeError("KVTransferError"))


@pytest.mark.parametrize(
    ("error", "field", "expected"),
    [
        (errors.EngineFailed("x"), "guided_grammar", True),
        (errors.EngineFailed("x"), None, False),
        (presumed(), "guided_grammar", True),
        (presumed(), None, False),
        (reported(), "guided_grammar", False),
        (errors.HandoverFailed("x"), "guided_grammar", False),
        (errors.HandoverTimeout("x"), "guided_grammar", False),
        (errors.EngineUnavailable("x"), "guided_grammar", False),
        (errors.EngineBroken("x"), "guided_grammar", False),
        (errors.EngineTimeout("x"), "guided_grammar", False),
        (errors.EngineOverloaded("x"), "guided_grammar", False),
        (errors.EngineCancelled("x"), "guided_grammar", False),
        (errors.AdapterNotLoaded("x", param="model"), "guided_grammar", False),
        (None, "guided_grammar", False),
    ],
)
def test_which_failures_say_nothing_against_the_engine(
    error: errors.EngineError | None, field: str | None, expected: bool
) -> None:
    assert unheld(error, field) is expected
    if error is not None and not expected:
        assert told(error, field, tokens=0, engines=2) is error
        assert error.param == ("model" if isinstance(error, errors.AdapterNotLoaded) else None)


@pytest.mark.parametrize("error", [errors.EngineFailed("x"), presumed()])
@pytest.mark.parametrize(
    ("tokens", "engines", "the_constraints"),
    [(0, 1, True), (0, 2, True), (1, 1, True), (2, 1, False), (2, 2, True)],
)
def test_whose_failure_it_is(error: errors.EngineError, tokens: int, engines: int, the_constraints: bool) -> None:
    found = told(error, "guided_grammar", tokens=tokens, engines=engines)
    if not the_constraints:
        assert found is error
        return
    assert isinstance(found, errors.ConstraintFailed)
    assert (found.status, found.type) == (400, "invalid_request_error")
    assert (found.code, found.param) == ("invalid_constraint", "guided_grammar")
    assert found.message.startswith("'guided_grammar' ")
    assert "failed while it held the answer to it" in found.message
    assert not found.suspect
    assert found.__cause__ is error


@pytest.mark.parametrize(
    ("error", "field", "param"),
    [
        (errors.EngineRejected("x"), "response_format", "response_format"),
        (errors.EngineRejected("x"), None, None),
        (errors.EngineRejected("x", param="messages"), "response_format", "messages"),
        (
            caused(errors.EngineRejected("x"), LinkError(LinkErrorKind.TOO_LARGE, "", may_have_been_processed=False)),
            "response_format",
            None,
        ),
        (
            caused(errors.EngineRejected("x"), LinkError(LinkErrorKind.STATUS, "", may_have_been_processed=True)),
            "response_format",
            "response_format",
        ),
    ],
)
def test_what_an_engine_refuses_names_the_field(
    error: errors.EngineError, field: str | None, param: str | None
) -> None:
    assert told(error, field, tokens=0, engines=0) is error
    assert error.param == param
