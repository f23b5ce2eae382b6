"""Where thinking begins and ends, as a table, and the names by which engines ask for it."""

import pytest

from enginehouse.core.output.families.deepseek import DEEPSEEK_V31
from enginehouse.core.output.families.hermes import HERMES
from enginehouse.core.output.families.thinking import ALWAYS, GRANITE, KEPT, TAGS, THINK, THINKING
from enginehouse.core.output.family import Family, Thinking
from enginehouse.core.output.pieces import Content, Piece, Reasoning, ToolCall
from enginehouse.core.output.registry import REASONING
from tests.unit.core.output.readings import check_cuts, read

LOOK = '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>'
ONE = ToolCall("look", '{"a": 1}')
R, C = Reasoning("Hm, <b>."), Content("So.")


@pytest.mark.parametrize(
    ("thinking", "prompt", "text", "expected"),
    [
        # The prompt opens it.
        (THINK, "<think>", "Hm, <b>.</think>So.", [R, C]),
        (THINK, "<think>\n", "Hm, <b>.\n</think>\n\nSo.", [R, C]),
        (THINK, "<think>\n", "<think>\nHm, <b>.</think>So.", [R, C]),
        (THINK, "<think>\n", "\n</think>\n\nSo.", [C]),
        (THINK, "<think>", "Hm, <b>.", [R]),
        (THINK, "<think>", "\n Hm, <b>.\n", [Reasoning("Hm, <b>.\n")]),
        (THINK, "<think>", "", []),
        # The model opens it.
        (THINK, "", "<think>Hm, <b>.</think>So.", [R, C]),
        (THINK, "", "\n<think>\nHm, <b>.\n</think>\n\nSo.", [R, C]),
        (THINK, "", "<think></think>So.", [C]),
        (THINK, "", "<think>Hm, <b>.", [R]),
        # Nobody does.
        (THINK, "", "So.", [C]),
        (THINK, "", "\n So.\n", [Content("\n So.\n")]),
        (THINK, "", "<thing>So.", [Content("<thing>So.")]),
        (THINK, "", "So. <think>Hm.</think>", [Content("So. <think>Hm.</think>")]),
        (THINK, "What is <think>? Answer: ", "So.", [C]),
        # The prompt ends it.
        (THINK, "<think>\n\n</think>\n\n", "So.", [C]),
        (THINK, "</think>", "\nSo.", [C]),
        (THINK, "</think>", "</think>So.", [C]),
        (ALWAYS, "<think></think>", "So.", [C]),
        # It goes on to the end of its mark, and thinks once.
        (THINK, "<think>", "Hm, <b>.</think>So.</think>", [R, Content("So.</think>")]),
        (THINK, "<think>", "1 </thin> 2</think>So.", [Reasoning("1 </thin> 2"), C]),
        # Models that think though the prompt does not show it.
        (ALWAYS, "", "Hm, <b>.</think>So.", [R, C]),
        (ALWAYS, "", "<think>\nHm, <b>.\n</think>\n\nSo.", [R, C]),
        (ALWAYS, "", "Hm, <b>.", [R]),
        # Words for marks.
        (GRANITE, "", "Here is my thought process: Hm, <b>. Here is my response:\n\nSo.", [R, C]),
        (GRANITE, "", "Here's my thought process:\nHm, <b>.\nHere's my response: So.", [R, C]),
        (GRANITE, "", "Here's my thought process:\nHm, <b>.\nHere is my response: So.", [R, C]),
        (GRANITE, "", "Here is my response: So.", [C]),
        (GRANITE, "", "Here is a list", [Content("Here is a list")]),
        (TAGS, "", "<think>Hm, <b>.</think>So.", [R, C]),
        (TAGS, "", "<thinking>Hm, <b>.</thinking>So.", [R, C]),
        (TAGS, "<reasoning>\n", "Hm, <b>.</reasoning>So.", [R, C]),
        (TAGS, "", "<thinker>Hm.", [Content("<thinker>Hm.")]),
        (THINKING["kimi"], "", "◁think▷Hm, <b>.◁/think▷So.", [R, C]),
        (THINKING["seed_oss"], "", "<seed:think>Hm, <b>.</seed:think>So.", [R, C]),
        (THINKING["minimax_m3"], "<mm:think>", "Hm, <b>.</mm:think>So.", [R, C]),
        # It stays in the content.
        (KEPT, "<think>\n", "Hm.\n</think>\n\nSo.", [Content("<think>\nHm.\n</think>\n\nSo.")]),
        (KEPT, "", "<think>Hm.</think>So.", [Content("<think>Hm.</think>So.")]),
        (KEPT, "", "So.", [C]),
        # Calls behind it, and in it.
        (THINK, "<think>", f"Hm, <b>.\n</think>\n\n{LOOK}", [R, ONE]),
        (THINK, "<think>", f"Hm, <b>.</think>So.\n{LOOK}\n", [R, C, ONE]),
        (THINK, "<think>", f"Hm, <b>.\n{LOOK}", [R, ONE]),
        (THINK, "<think>", f"Hm, <b>.\n{LOOK}\n</think>\n\nSo.", [R, ONE, C]),
        (THINK, "<think>", f"Hm, <b>.\n{LOOK}\n{LOOK}", [R, ONE, ONE]),
        (THINK, "<think>", "Use <tool_call> here.</think>So.", [Reasoning("Use <tool_call> here."), C]),
        (KEPT, "<think>", f"Hm.</think>\n{LOOK}", [Content("<think>Hm.</think>"), ONE]),
        (KEPT, "<think>\n", LOOK, [Content("<think>\n"), ONE]),
        (Thinking("<think>", "</think>", alone=True), "<think>", f"{LOOK}</think>So.", [Reasoning(LOOK), C]),
    ],
)
def test_thinking_begins_and_ends(thinking: Thinking, prompt: str, text: str, expected: list[Piece]) -> None:
    assert list(read(Family(thinking, HERMES), text, prompt=prompt)) == expected


@pytest.mark.parametrize(
    ("thinking", "begun", "text", "expected"),
    [
        (THINK, "<think>\nI should", " say <b>.</think>So.", [Reasoning(" say <b>."), C]),
        (THINK, f"<think>{'I should look. ' * 99}", "So\n</think>\n\nSo.", [Reasoning("So"), C]),
        (THINK, "<think>\n", "Hm, <b>.</think>So.", [R, C]),
        (THINK, "<think>Hm.</think>It is", " so.", [Content(" so.")]),
        (THINK, "It is", " so.", [Content(" so.")]),
        (TAGS, "<think>1</think> <reasoning>2", " 3</reasoning>So.", [Reasoning(" 3"), C]),
        # A model that always thinks goes on with its answer all the same.
        (ALWAYS, "It is", " so.", [Content(" so.")]),
        (ALWAYS, "<think>Hm", ", <b>.</think>So.", [Reasoning(", <b>."), C]),
        # The rest of a thought may be its end alone.
        (THINK, "<think>Hm.", "\n</think>\n\nSo.", [C]),
    ],
)
def test_an_answer_that_goes_on_begins_where_it_was_left(
    thinking: Thinking, begun: str, text: str, expected: list[Piece]
) -> None:
    family = Family(thinking, HERMES)
    assert list(read(family, text, prompt=f"<think>{begun}"[-256:], begun=begun)) == expected


@pytest.mark.parametrize("thinking", [THINK, ALWAYS, KEPT, GRANITE])
def test_thinking_that_nobody_asked_to_tell_apart_is_content(thinking: Thinking) -> None:
    text = f"\n{thinking.open}\nHm.\n{thinking.close}\n\nSo."
    assert read(Family(thinking, None), text, prompt=thinking.open, reasoning=False) == (Content(text),)


def test_without_tools_a_call_in_thinking_is_thought() -> None:
    assert read(Family(THINK, HERMES), f"{LOOK}</think>So.", prompt="<think>", tools=()) == (Reasoning(LOOK), C)


@pytest.mark.parametrize(
    ("family", "prompt", "text"),
    [
        (Family(THINK, HERMES), "<think>\n", f"Hm.\n</think>\n\nSo.\n{LOOK}\n{LOOK}"),
        (Family(ALWAYS, DEEPSEEK_V31), "", "<think>\nHm.\n</think>\n\nSo."),
        (Family(GRANITE), "", "Here is my thought process: Hm. Here is my response: So."),
    ],
)
def test_o6_a_limit_at_any_place_leaves_no_mark(family: Family, prompt: str, text: str) -> None:
    check_cuts(family, text, prompt=prompt)


@pytest.mark.parametrize(
    "names",
    [
        "deepseek_r1 deepseek_v3 deepseek_v4 glm45 glm47 granite holo2 kimi_k2 kimi_k3 mimo minimax_m2 "
        "minimax_m2_append_think minimax_m3 nemotron_v3 olmo3 qwen3 seed_oss step3 step3p5",
        "deepseek-r1 deepseek-v3 deepseek-v4 glm45 interns1 kimi kimi_k2 kimi_k3 mimo minimax minimax-append-think "
        "minimax-m3 nemotron_3 qwen3 qwen3-thinking step3 step3p5",
    ],
    ids=["vllm", "sglang"],
)
def test_every_name_of_the_engines_for_tags_is_known(names: str) -> None:
    assert set(names.split()) <= set(REASONING)
    assert set(THINKING) <= set(REASONING)
