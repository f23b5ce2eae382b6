"""Thinking between two tags at the beginning of an answer, by the names that engines give to it.

    <think>The user wants …</think>The capital of France is Paris.

The opening tag is the model's, or the prompt's own end; templates that switch thinking off write both. So the prompt
tells where an answer begins, except with models whose prompts do not show that they think.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from enginehouse.core.output.family import Thinking

THINK: Final = Thinking("<think>", "</think>")
"""DeepSeek V3.1 and later, Qwen3, GLM 4.5 and later, Kimi K2 Thinking and later, Nemotron 3, MiMo, OLMo 3."""

ALWAYS: Final = Thinking("<think>", "</think>", inside=True)
"""DeepSeek R1 (0528 writes the tag, the first one did not), QwQ, MiniMax M2, Step 3."""

KEPT: Final = Thinking("<think>", "</think>", kept=True)
"""MiniMax M2 for clients that send the thinking back within the content, as that model wants it."""

GRANITE: Final = Thinking(
    "Here is my thought process:",
    "Here is my response:",
    other=Thinking("Here's my thought process:", "Here's my response:"),
)
"""IBM Granite 3.2."""

MINIMAX_M3: Final = Thinking("<mm:think>", "</mm:think>")

TAGS: Final = Thinking(
    "<think>",
    "</think>",
    other=Thinking("<thinking>", "</thinking>", other=Thinking("<reasoning>", "</reasoning>")),
)
"""Models of no name, that were taught one of these."""

THINKING: Final[Mapping[str, Thinking]] = {
    "deepseek_v3": THINK,
    "deepseek-v3": THINK,
    "deepseek_v4": THINK,
    "deepseek-v4": THINK,
    "deepseek_v41": THINK,
    "glm45": THINK,
    "glm47": THINK,
    "holo2": THINK,
    "interns1": THINK,
    "kimi_k2": THINK,
    "ling3": THINK,
    "mimo": THINK,
    "nemotron_3": THINK,
    "nemotron_v3": THINK,
    "nano_v3": THINK,
    "olmo3": THINK,
    "qwen3": THINK,
    "deepseek_r1": ALWAYS,
    "deepseek-r1": ALWAYS,
    "minimax": ALWAYS,
    "minimax_m2": ALWAYS,
    "qwen3-thinking": ALWAYS,
    "step3": ALWAYS,
    "step3p5": ALWAYS,
    "minimax-append-think": KEPT,
    "minimax_m2_append_think": KEPT,
    "granite": GRANITE,
    "granite_thinking_parser": THINK,
    "kimi": Thinking("◁think▷", "◁/think▷"),
    "minimax-m3": MINIMAX_M3,
    "minimax_m3": MINIMAX_M3,
    "seed_oss": Thinking("<seed:think>", "</seed:think>"),
    "tags": TAGS,
}
