"""What an answer must be, where a client may both offer tools and give a form for the text."""

from __future__ import annotations

from enginehouse.core.openai.either import either_schema
from enginehouse.core.openai.tools import Offer, forced_schema
from enginehouse.domain.constraint import Constraint, JsonObject, JsonSchema, StructuralTag
from enginehouse.domain.errors import InvalidRequest


def constraint_of(form: Constraint | None, source: str, offer: Offer, parallel: bool) -> tuple[Constraint | None, str]:
    """(the constraint, the field it comes of). source: the field that holds the form. Raises InvalidRequest."""
    forced = forced_schema(offer, parallel)
    if forced is not None:  # the form is that of text, and an answer that has to be calls has none
        return forced, "tool_choice"
    if form is None or not offer.tools or isinstance(form, StructuralTag):  # which may leave text and calls free
        return form, source
    if isinstance(form, JsonSchema | JsonObject):
        return either_schema(form, offer, parallel, source), source
    raise InvalidRequest(
        f"'{source}' holds all of the answer to a form, so that none of 'tools' could be called; leave one of them "
        "out, or let 'tool_choice' be none",
        param=source,
        code="unsupported_value",
    )
