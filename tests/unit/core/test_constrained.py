"""Whose failure it is where an answer is to be held to a constraint, as a table."""

from __future__ import annotations

import pytest

from enginehouse.core.constrained import told
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
    ("error", "field", "begun", "the_constraints"),
    [
        (errors.EngineFailed("x"), "guided_grammar", False, True),
        (errors.EngineFailed("x"), "guided_grammar", True, False),
        (errors.EngineFailed("x"), None, False, False),
        (presumed(), "guided_grammar", False, True),
        (presumed(), "guided_grammar", True, False),
        (presumed(), None, False, False),
        (reported(), "guided_grammar", False, False),
        (errors.HandoverFailed("x"), "guided_grammar", False, False),
        (errors.HandoverTimeout("x"), "guided_grammar", False, False),
        (errors.EngineUnavailable("x"), "guided_grammar", False, False),
        (errors.EngineBroken("x"), "guided_grammar", False, False),
        (errors.EngineTimeout("x"), "guided_grammar", False, False),
        (errors.EngineOverloaded("x"), "guided_grammar", False, False),
        (errors.EngineCancelled("x"), "guided_grammar", False, False),
        (errors.AdapterNotLoaded("x", param="model"), "guided_grammar", False, False),
    ],
)
def test_whose_failure_it_is(error: errors.EngineError, field: str | None, begun: bool, the_constraints: bool) -> None:
    found = told(error, field, begun=begun)
    if not the_constraints:
        assert found is error
        assert found.param == ("model" if isinstance(error, errors.AdapterNotLoaded) else None)
        return
    assert isinstance(found, errors.ConstraintFailed)
    assert (found.status, found.type, found.code, found.param) == (
        400,
        "invalid_request_error",
        "invalid_constraint",
        field,
    )
    assert found.message.startswith(f"'{field}' ")
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
    assert told(error, field, begun=False) is error
    assert error.param == param
