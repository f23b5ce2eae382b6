"""Which parsers a model's chat template speaks for: it writes calls and thinking of earlier turns as the model does."""

from __future__ import annotations

from typing import Final

_TOOLS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    # (tool parser, what its templates have in them); the first one counts
    ("openai", ("<|start|>", "<|channel|>")),
    ("kimi_k3", ("<|open|>", "<|sep|>")),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v41", ("｜DSML｜ calls",)),
    ("deepseek_v4", ("｜DSML｜", "tool_calls>")),
    ("deepseek_v32", ("｜DSML｜",)),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("minimax_m2", ("<minimax:tool_call>", "<invoke name=")),
    ("gemma4", ("<|tool_call>", "call:")),
    ("seed_oss", ("<seed:tool_call>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("nemotron_json", ("<TOOLCALL>",)),
    ("phi4_mini_json", ("<|/tool_call|>",)),
    ("granite", ("<|tool_call|>",)),
    ("interns1", ("<|action_start|>", "<|plugin|>")),
    ("jamba", ("<tool_calls>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("glm47", ("<tool_call>", "<arg_key>")),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("hermes", ("<tool_call>", "arguments")),
    ("llama4_pythonic", ("<|header_start|>", "[func_name1(")),
    ("llama4_json", ("<|header_start|>", '"parameters"')),
    ("llama3_json", ("<|start_header_id|>", '"parameters"')),
)

_REASONING: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("openai_gptoss", ("<|start|>", "<|channel|>")),
    ("kimi_k3", ("<|open|>", "<|sep|>")),
    ("gemma4", ("<|channel>",)),
    ("mistral", ("[THINK]",)),
    ("minimax_m3", ("<mm:think>",)),
    ("minimax_m2", ("<minimax:tool_call>", "<think>")),
    ("seed_oss", ("<seed:think>",)),
    ("kimi", ("◁think▷",)),
    ("granite", ("Here is my thought process:",)),
    ("qwen3", ("</think>",)),
)


def tool_parser(template: str) -> str | None:
    """The tool parser's name; None: nothing known is in it."""
    return _first(_TOOLS, template)


def reasoning_parser(template: str) -> str | None:
    """The reasoning parser's name; None: nothing known is in it."""
    return _first(_REASONING, template)


def _first(signs: tuple[tuple[str, tuple[str, ...]], ...], template: str) -> str | None:
    return next((name for name, parts in signs if all(part in template for part in parts)), None)
