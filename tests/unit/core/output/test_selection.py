"""Whose word counts on how a model's answers are read: the operator's, the engines', the template's."""

import pytest

from enginehouse.core.output.families.harmony import HARMONY
from enginehouse.core.output.families.hermes import HERMES
from enginehouse.core.output.families.thinking import THINK
from enginehouse.core.output.family import Family
from enginehouse.core.output.registry import AUTO, NONE, REASONING, TOOLS
from enginehouse.core.output.selection import FormatSettings, Parser, format_problems, select

TEMPLATE = (
    '{% if tools %}<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>{% endif %}'
    "{{ '<think>\n' }}{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)


@pytest.mark.parametrize(
    ("told", "reported", "template", "tools", "thinking"),
    [
        ((AUTO, AUTO), (None, None), None, None, None),
        ((AUTO, AUTO), ("glm45", "qwen3"), None, "glm45", "qwen3"),
        (("hermes", AUTO), ("glm45", "qwen3"), None, "hermes", "qwen3"),
        ((NONE, NONE), ("glm45", "qwen3"), TEMPLATE, None, None),
        ((AUTO, AUTO), (None, None), TEMPLATE, "hermes", "qwen3"),
        ((AUTO, NONE), ("glm45", None), TEMPLATE, "glm45", None),
        ((AUTO, AUTO), ("", ""), TEMPLATE, "hermes", "qwen3"),
    ],
)
def test_the_operators_word_counts_then_the_engines_then_the_template(
    told: tuple[str, str],
    reported: tuple[str | None, str | None],
    template: str | None,
    tools: str | None,
    thinking: str | None,
) -> None:
    selected = select(FormatSettings(*told), *reported, template)
    found, unknown = selected.formats, selected.unknown
    assert found.tools == (TOOLS[tools] if tools else None)
    assert found.thinking == (REASONING[thinking] if thinking else None)
    assert unknown == ()


def test_a_name_that_nobody_knows_is_told_and_the_template_looked_at() -> None:
    selected = select(FormatSettings(), "brand_new", "newer", TEMPLATE)
    assert selected.formats.tools == TOOLS["hermes"]
    assert selected.tools == Parser("hermes", "template")
    assert selected.unknown == (
        "the engines' tool parser 'brand_new' is not known here",
        "the engines' reasoning parser 'newer' is not known here",
    )
    assert select(FormatSettings("glm45", "qwen3"), "brand_new", "newer", TEMPLATE).unknown == ()


@pytest.mark.parametrize(
    ("told", "reported", "template", "expected"),
    [
        (("hermes", AUTO), (None, "openai_gptoss"), None, Family(None, HERMES)),
        (("hermes", AUTO), (None, None), "<|start|><|channel|>", Family(None, HERMES)),
        ((AUTO, "qwen3"), ("openai", None), None, Family(THINK, None)),
        # The operator says nothing of it.
        ((AUTO, AUTO), ("openai", "qwen3"), None, HARMONY),
        ((AUTO, AUTO), ("hermes", "openai_gptoss"), None, HARMONY),
        (("openai", AUTO), (None, "qwen3"), None, HARMONY),
    ],
)
def test_a_format_of_whole_answers_does_not_override_the_operator(
    told: tuple[str, str], reported: tuple[str | None, str | None], template: str | None, expected: Family
) -> None:
    selected = select(FormatSettings(*told), *reported, template)
    assert (selected.formats, selected.unknown) == (expected, ())


@pytest.mark.parametrize(
    ("told", "reported", "template", "tools", "reasoning"),
    [
        ((AUTO, AUTO), (None, None), None, "none", "none"),
        ((NONE, NONE), ("hermes", "qwen3"), TEMPLATE, "none (by flag)", "none (by flag)"),
        (("glm45", AUTO), ("hermes", "qwen3"), TEMPLATE, "glm45 (by flag)", "qwen3 (by engine)"),
        ((AUTO, AUTO), (None, "qwen3"), TEMPLATE, "hermes (by template)", "qwen3 (by engine)"),
        ((AUTO, AUTO), (None, None), TEMPLATE, "hermes (by template)", "qwen3 (by template)"),
        # One that reads all of an answer is told for both.
        ((AUTO, AUTO), ("openai", "qwen3"), None, "openai (by engine)", "openai (by engine)"),
        ((AUTO, AUTO), ("hermes", "openai_gptoss"), None, "openai_gptoss (by engine)", "openai_gptoss (by engine)"),
        (("openai", AUTO), (None, "qwen3"), None, "openai (by flag)", "openai (by flag)"),
        (("openai", NONE), (None, "qwen3"), None, "openai (by flag)", "none (by flag)"),
        ((NONE, AUTO), (None, "openai_gptoss"), None, "none (by flag)", "openai_gptoss (by engine)"),
        (("hermes", AUTO), (None, "openai_gptoss"), None, "hermes (by flag)", "none (by flag)"),
    ],
)
def test_what_was_chosen_is_told_with_who_has_named_it(
    told: tuple[str, str], reported: tuple[str | None, str | None], template: str | None, tools: str, reasoning: str
) -> None:
    selected = select(FormatSettings(*told), *reported, template)
    assert (str(selected.tools), str(selected.reasoning)) == (tools, reasoning)
    for parser, formats in ((selected.tools, selected.formats.tools), (selected.reasoning, selected.formats.thinking)):
        assert (parser.name is None) == (formats is None) or selected.formats.whole is not None


@pytest.mark.parametrize(
    ("tools", "thinking"), [("gpt-oss", "openai_gptoss"), ("kimi_k3", "kimi_k3"), ("openai", NONE)]
)
def test_a_format_of_whole_answers_may_be_named_twice(tools: str, thinking: str) -> None:
    assert list(format_problems(FormatSettings(tools, thinking))) == []


@pytest.mark.parametrize("name", [*TOOLS, AUTO, NONE])
def test_every_name_of_a_tool_parser_is_taken(name: str) -> None:
    assert list(format_problems(FormatSettings(name))) == []


@pytest.mark.parametrize("name", [*REASONING, AUTO, NONE])
def test_every_name_of_a_reasoning_parser_is_taken(name: str) -> None:
    assert list(format_problems(FormatSettings(AUTO, name))) == []


@pytest.mark.parametrize(
    ("settings", "begins", "holds"),
    [
        (FormatSettings("qwen9"), "--tool-parser: 'qwen9' is not known; auto, none and these are: ", "hermes"),
        (FormatSettings(AUTO, "hermes"), "--reasoning-parser: 'hermes' is not known; ", "deepseek_r1"),
        (
            FormatSettings("gpt-oss", "qwen3"),
            "--reasoning-parser: 'qwen3' cannot be beside --tool-parser 'gpt-oss', ",
            "auto",
        ),
        (
            FormatSettings("hermes", "kimi_k3"),
            "--tool-parser: 'hermes' cannot be beside --reasoning-parser 'kimi_k3', ",
            "auto",
        ),
        (
            FormatSettings("openai", "kimi_k3"),
            "--reasoning-parser: 'kimi_k3' cannot be beside --tool-parser 'openai', ",
            "auto",
        ),
        (FormatSettings(reasoning_field="content"), "--reasoning-field: 'content' cannot be it; ", "reasoning_content"),
        (FormatSettings(reasoning_field=""), "--reasoning-field: '' cannot be it; ", "reasoning_content"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(settings: FormatSettings, begins: str, holds: str) -> None:
    (problem,) = format_problems(settings)
    assert problem.startswith(begins)
    assert holds in problem
