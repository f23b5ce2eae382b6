"""What an answer must be, where a client may both offer tools and give a form for the text."""

from __future__ import annotations

from enginehouse.core.openai.tools import Offer, forced_schema
from enginehouse.domain.constraint import Constraint
from enginehouse.domain.errors import InvalidRequest


def constraint_of(form: Constraint | None, source: str, offer: Offer, parallel: bool) -> tuple[Constraint | None, str]:
    """(the constraint, the field it comes of). source: the field that holds the form. Raises InvalidRequest."""
    forced = forced_schema(offer, parallel)
    if forced is not None:  # the form is that of text, and an answer that has to be calls has none
        return forced, "tool_choice"
    if form is not None and offer.tools:
        raise InvalidRequest(
            f"'{source}' holds all of the answer to a form, so that none of 'tools' could be called; leave one of them "
            "out, or let 'tool_choice' be none",
            param=source,
            code="unsupported_value",
        )
    return form, source
