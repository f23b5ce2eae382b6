import pytest

from enginehouse.core.openai.forms import constraint_of
from enginehouse.core.openai.tools import Offer, read_tools
from enginehouse.domain.constraint import Constraint, Grammar, JsonObject, JsonSchema, OneOf, Regex, StructuralTag
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
        (StructuralTag("{}"), read_tools(TOOLS, "auto"), (StructuralTag("{}"), "form")),
    ],
)
def test_what_the_answer_must_be(
    form: Constraint | None, offer: Offer, expected: tuple[Constraint | None, str]
) -> None:
    assert constraint_of(form, "form", offer, True) == expected


@pytest.mark.parametrize("form", [Regex("a"), OneOf(("a", "b")), Grammar("root ::= a")])
def test_a_form_that_is_no_json_leaves_no_way_to_call_a_tool(form: Constraint) -> None:
    with pytest.raises(InvalidRequest, match="'form' holds all of the answer to a form") as caught:
        constraint_of(form, "form", read_tools(TOOLS, "auto"), True)
    assert (caught.value.param, caught.value.code) == ("form", "unsupported_value")
