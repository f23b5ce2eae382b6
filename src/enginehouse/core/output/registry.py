"""The names that engines give to their parsers, and the formats that they stand for.

Names are vLLM's and SGLang's (`--tool-call-parser`, `--reasoning-parser`), so that what an engine reports, and what its
operator knows, needs no translation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from enginehouse.core.output import detect
from enginehouse.core.output.families.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from enginehouse.core.output.families.deepseek_dsml import DEEPSEEK_DSML
from enginehouse.core.output.families.gemma4 import GEMMA4, GEMMA4_THINKING
from enginehouse.core.output.families.glm import GLM
from enginehouse.core.output.families.harmony import HARMONY
from enginehouse.core.output.families.hermes import HERMES
from enginehouse.core.output.families.json_calls import (
    GRANITE,
    GRANITE_20B,
    INTERN,
    LONGCAT,
    NEMOTRON,
    PHI4_MINI,
    TOOL_CALLS,
)
from enginehouse.core.output.families.kimi import KIMI_K2
from enginehouse.core.output.families.kimi_k3 import KIMI_K3
from enginehouse.core.output.families.llama import LLAMA3
from enginehouse.core.output.families.minimax import MINIMAX
from enginehouse.core.output.families.mistral import MISTRAL, MISTRAL_THINKING
from enginehouse.core.output.families.pythonic import LFM2, PYTHONIC
from enginehouse.core.output.families.qwen_xml import QWEN_XML, SEED_OSS
from enginehouse.core.output.families.thinking import THINKING
from enginehouse.core.output.family import Family, Thinking, ToolFormat

T = TypeVar("T")

AUTO: Final = "auto"
NONE: Final = "none"

TOOLS: Final[Mapping[str, ToolFormat | Family]] = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseekv3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseekv31": DEEPSEEK_V31,
    "deepseek_v32": DEEPSEEK_DSML,
    "deepseekv32": DEEPSEEK_DSML,
    "deepseek_v4": DEEPSEEK_DSML,
    "deepseekv4": DEEPSEEK_DSML,
    "deepseek_v41": DEEPSEEK_DSML,
    "deepseekv41": DEEPSEEK_DSML,
    "hermes": HERMES,
    "kimi_k2": KIMI_K2,
    "kimi_k3": KIMI_K3,
    "qwen": HERMES,
    "qwen25": HERMES,
    "qwen3_json": HERMES,
    "qwen3_coder": QWEN_XML,
    "qwen3_xml": QWEN_XML,
    "mimo": QWEN_XML,
    "step3p5": QWEN_XML,
    "nemotron_v3": QWEN_XML,
    "seed_oss": SEED_OSS,
    "glm": GLM,
    "glm45": GLM,
    "glm47": GLM,
    "ling3": GLM,
    "minimax_m2": MINIMAX,
    "minimax-m2": MINIMAX,
    "llama3": LLAMA3,
    "llama3_json": LLAMA3,
    "llama4_json": LLAMA3,
    "llama4_pythonic": PYTHONIC,
    "pythonic": PYTHONIC,
    "lfm2": LFM2,
    "mistral": MISTRAL,
    "gemma4": GEMMA4,
    "granite": GRANITE,
    "granite-20b-fc": GRANITE_20B,
    "hunyuan_a13b": TOOL_CALLS,
    "internlm": INTERN,
    "interns1": INTERN,
    "jamba": TOOL_CALLS,
    "llama_nemotron_json": NEMOTRON,
    "minimax": TOOL_CALLS,
    "longcat": LONGCAT,
    "nemotron_json": NEMOTRON,
    "phi4_mini_json": PHI4_MINI,
    "openai": HARMONY,
    "gpt-oss": HARMONY,
}
"""A Family reads all of an answer, thinking too."""

REASONING: Final[Mapping[str, Thinking | Family]] = {
    **THINKING,
    "kimi_k3": KIMI_K3,
    "mistral": MISTRAL_THINKING,
    "gemma4": GEMMA4_THINKING,
    "openai_gptoss": HARMONY,
    "gpt-oss": HARMONY,
}


def formats(tool_parser: str = AUTO, reasoning_parser: str = AUTO, template: str = "") -> Family:
    """What these names stand for; AUTO: what the chat template shows. Raises ValueError.

    A format that reads all of an answer takes the place of both, whichever of the two it was named for.
    """
    tools = _named("tool parser", tool_parser, TOOLS, detect.tool_parser(template))
    thinking = _named("reasoning parser", reasoning_parser, REASONING, detect.reasoning_parser(template))
    if isinstance(tools, Family):
        return tools.without(reasoning=reasoning_parser == NONE)
    if isinstance(thinking, Family):
        return thinking.without(tools=tool_parser == NONE)
    return Family(thinking, tools)


def _named(what: str, name: str, known: Mapping[str, T], shown: str | None) -> T | None:
    if name == NONE:
        return None
    if name == AUTO:
        return known[shown] if shown is not None else None
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}: known are {', '.join(sorted(known))}, and {AUTO} and {NONE}")
    return known[name]
