import pytest

from enginehouse.core.forms import constraint_of
from enginehouse.core.openai.tools import Offer, read_tools
from enginehouse.domain.constraint import Constraint, JsonObject, JsonSchema
from enginehouse.domain.errors import InvalidRequest

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
NAMED = {"type": "function", "function": {"name": "f"}}
CALL = JsonSchema('{"type":"object"}')


@pytest.mark.parametrize(
    ("form", "offer", "expected"),
    [
        (None, read_tools(None, None), (None, "form")),
        (JsonObject(), read_tools(None, None), (JsonObject(), "form")),
        (None, read_tools(TOOLS, None), (None, "form")),
        (None, read_tools(TOOLS, NAMED), (CALL, "tool_choice")),
        (JsonObject(), read_tools(TOOLS, NAMED), (CALL, "tool_choice")),
        (JsonObject(), read_tools(TOOLS, "none"), (JsonObject(), "form")),
    ],
)
def test_what_the_answer_must_be(
    form: Constraint | None, offer: Offer, expected: tuple[Constraint | None, str]
) -> None:
    assert constraint_of(form, "form", offer, True) == expected


def test_a_form_leaves_no_way_to_call_a_tool() -> None:
    with pytest.raises(InvalidRequest, match="'form' holds all of the answer to a form") as caught:
        constraint_of(JsonObject(), "form", read_tools(TOOLS, "auto"), True)
    assert (caught.value.param, caught.value.code) == ("form", "unsupported_value")
