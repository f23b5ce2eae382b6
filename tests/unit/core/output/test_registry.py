import re

import pytest

from enginehouse.core.output import detect
from enginehouse.core.output.families.glm import GLM
from enginehouse.core.output.families.harmony import HARMONY
from enginehouse.core.output.families.hermes import HERMES
from enginehouse.core.output.families.kimi_k3 import KIMI_K3
from enginehouse.core.output.families.qwen_xml import QWEN_XML
from enginehouse.core.output.families.thinking import THINK
from enginehouse.core.output.family import Family
from enginehouse.core.output.pieces import Content, Reasoning, ToolCall
from enginehouse.core.output.registry import AUTO, NONE, REASONING, TOOLS, formats
from tests.support import ROOT
from tests.unit.core.output.readings import read
from tests.unit.core.output.replay import EXPECTATIONS_NOT_OURS, FIXTURES, MODELS, SUITES, parsers_of

VLLM = """deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 gemma4 glm45 glm47 hermes kimi_k2 kimi_k3
    llama3_json llama4_json llama4_pythonic minimax_m2 mistral openai pythonic qwen3_coder qwen3_json qwen3_xml"""
SGLANG = """deepseekv3 deepseekv31 deepseekv32 deepseekv4 gemma4 glm glm45 glm47 gpt-oss hermes kimi_k2 kimi_k3 llama3
    minimax-m2 mistral pythonic qwen qwen25 qwen3_coder"""


def test_every_name_of_the_engines_for_our_families_is_known() -> None:
    assert {*VLLM.split(), *SGLANG.split()} <= set(TOOLS)
    assert {"openai_gptoss", "gpt-oss", "kimi_k3", "mistral", "gemma4"} <= set(REASONING)


def test_names_are_put_together_freely() -> None:
    assert formats("glm45", "qwen3") == Family(THINK, GLM)
    assert formats("hermes", NONE) == Family(None, HERMES)
    assert formats(NONE, "qwen3") == Family(THINK, None)
    assert formats(NONE, NONE) == Family()
    assert formats() == Family()


def test_none_lets_everything_through() -> None:
    text = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    assert read(formats(NONE, NONE), text) == (Content(text),)


@pytest.mark.parametrize(("tools", "thinking"), [("hermess", NONE), (NONE, "qwen"), ("", NONE), (NONE, "Qwen3")])
def test_an_unknown_name_is_refused_with_those_that_are_known(tools: str, thinking: str) -> None:
    with pytest.raises(ValueError, match=r"unknown .* known are .*qwen3.* auto and none"):
        formats(tools, thinking)


def test_a_format_of_whole_answers_takes_the_place_of_both() -> None:
    assert formats("openai", AUTO) is HARMONY
    assert formats(AUTO, "openai_gptoss") is HARMONY
    assert formats("openai", "openai_gptoss") is HARMONY
    assert formats("kimi_k3", "qwen3") is KIMI_K3
    assert formats("hermes", "kimi_k3") is KIMI_K3


ANSWER = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.look<|message|>{"a": 1}'
)


def test_half_of_a_format_of_whole_answers() -> None:
    prompt = "<|start|>assistant"
    call = ToolCall("look", '{"a": 1}')
    assert read(formats("openai", AUTO), ANSWER, prompt=prompt) == (Reasoning("Hm."), Content("So."), call)
    assert read(formats("openai", NONE), ANSWER, prompt=prompt) == (Content("Hm.So."), call)
    assert not any(isinstance(piece, ToolCall) for piece in read(formats(NONE, "gpt-oss"), ANSWER, prompt=prompt))
    assert formats("openai", NONE).shown == HARMONY.shown


TEMPLATES = (
    # (what is in a chat template, tool parser, reasoning parser)
    ("", None, None),
    ("{% for message in messages %}<|im_start|>{{ message.role }}", None, None),
    ('<tool_call>\\n{"name": "\' + call.name + \'", "arguments": ', "hermes", None),
    ('<tool_call>\\n{"name": … "arguments": … reasoning_content … </think>', "hermes", "qwen3"),
    ("<tool_call>\\n<function=' … <parameter=' … <think>\\n\\n</think>", "qwen3_coder", "qwen3"),
    ("<tool_call>' … <arg_key>{{ k }}</arg_key> … </think>", "glm47", "qwen3"),
    ("<minimax:tool_call>' … <invoke name=' … <think>", "minimax_m2", "minimax_m2"),
    ("]<]minimax[>[<tool_call> … <invoke name= … <mm:think>", None, "minimax_m3"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "openai", "openai_gptoss"),
    ("<｜tool▁calls▁begin｜> … ```json", "deepseek_v3", None),
    ("<｜tool▁calls▁begin｜> … <｜tool▁sep｜> … </think>", "deepseek_v31", "qwen3"),
    ("<｜DSML｜function_calls>", "deepseek_v32", None),
    ("<｜DSML｜tool_calls> … </think>", "deepseek_v4", "qwen3"),
    ("<｜DSML｜ calls>", "deepseek_v41", None),
    ("<|tool_calls_section_begin|> … <think></think>", "kimi_k2", "qwen3"),
    ("<|open|>think<|sep|>", "kimi_k3", "kimi_k3"),
    ("<|start_header_id|> … <|python_tag|> … \"parameters\": ", "llama3_json", None),
    ("<|header_start|>assistant … [func_name1(params_name1=", "llama4_pythonic", None),
    ('<|header_start|>assistant … {"name": "f", "parameters": {}}', "llama4_json", None),
    ("[TOOL_CALLS] … [THINK]", "mistral", "mistral"),
    ("[TOOL_CALLS]", "mistral", None),
    ("<|tool_call>call:' … <|channel>thought", "gemma4", "gemma4"),
    ("Here is my thought process:", None, "granite"),
)  # fmt: skip


@pytest.mark.parametrize(("template", "tools", "thinking"), TEMPLATES)
def test_auto_takes_what_the_template_shows(template: str, tools: str | None, thinking: str | None) -> None:
    assert (detect.tool_parser(template), detect.reasoning_parser(template)) == (tools, thinking)
    assert formats(template=template) == formats(tools or NONE, thinking or NONE)


def test_what_is_said_goes_before_what_the_template_shows() -> None:
    template = "<tool_call> <arg_key> </think>"
    assert formats("hermes", NONE, template) == Family(None, HERMES)
    assert formats("qwen3_coder", AUTO, template) == Family(THINK, QWEN_XML)
    assert formats(NONE, AUTO, template) == Family(THINK, None)


def test_the_fixtures_meet_every_format() -> None:
    met = {id(TOOLS[parsers_of(fixture.reference_model)[0]]) for fixture in FIXTURES}
    missed = {name for name, found in TOOLS.items() if id(found) not in met}
    # Of these the suite has none: see test_tagged.py, test_json_calls.py and test_pythonic.py.
    assert missed == {
        *("minimax_m2", "minimax-m2", "minimax", "seed_oss"),
        *("granite", "granite-20b-fc", "hunyuan_a13b", "internlm", "interns1", "jamba", "llama_nemotron_json"),
        *("lfm2", "longcat", "nemotron_json", "phi4_mini_json"),
    }
    assert all(tools in TOOLS and thinking in (NONE, *REASONING) for _, tools, thinking in MODELS)
    assert set(EXPECTATIONS_NOT_OURS) <= {fixture.id for fixture in FIXTURES}


def test_the_page_on_families_has_every_name_and_every_exception() -> None:
    page = (ROOT / "docs/openai.md").read_text(encoding="utf-8")
    section = page.partition("\n## Model families\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([\w./-]+)`", section))
    assert {*TOOLS, *REASONING} <= named
    assert {name for name in named if "/" in name and (name.partition("/")[0] in SUITES)} >= set(EXPECTATIONS_NOT_OURS)
    tests = {name for name in named if name.startswith("test_")}
    assert tests == {name for name in tests if (ROOT / "tests/unit/core/output" / name).is_file()}
