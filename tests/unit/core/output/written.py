"""One call with one argument, as each format writes it."""

from collections.abc import Callable

DSML = "｜DSML｜"

CALLS: dict[str, Callable[[str], str]] = {
    "hermes": lambda a: f'<tool_call>\n{{"name": "f", "arguments": {{"a": "{a}"}}}}\n</tool_call>',
    "qwen3_coder": lambda a: f"<tool_call>\n<function=f>\n<parameter=a>\n{a}\n</parameter>\n</function>\n</tool_call>",
    "glm45": lambda a: f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{a}</arg_value>\n</tool_call>",
    "minimax_m2": lambda a: (
        f'<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">{a}</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "deepseek_v3": lambda a: (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        f'{{"a": "{a}"}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "deepseek_v31": lambda a: (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
        f'{{"a": "{a}"}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "deepseek_v32": lambda a: (
        f'<{DSML}function_calls>\n<{DSML}invoke name="f">\n<{DSML}parameter name="a" string="true">{a}'
        f"</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>"
    ),
    "kimi_k2": lambda a: (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        f'{{"a": "{a}"}}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "kimi_k3": lambda a: (
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>'
        f"{a}<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    "llama3_json": lambda a: f'{{"name": "f", "parameters": {{"a": "{a}"}}}}',
    "llama4_pythonic": lambda a: f"[f(a='{a}')]",
    "lfm2": lambda a: f"<|tool_call_start|>[f(a='{a}')]<|tool_call_end|>",
    "mistral": lambda a: f'[TOOL_CALLS]f[ARGS]{{"a": "{a}"}}',
    "gemma4": lambda a: f'<|tool_call>call:f{{a:<|"|>{a}<|"|>}}<tool_call|>',
    "seed_oss": lambda a: (
        f"<seed:tool_call>\n<function=f>\n<parameter=a>\n{a}\n</parameter>\n</function>\n</seed:tool_call>"
    ),
    "granite": lambda a: f'<|tool_call|>[{{"name": "f", "arguments": {{"a": "{a}"}}}}]',
    "granite-20b-fc": lambda a: f'<function_call> {{"name": "f", "arguments": {{"a": "{a}"}}}}',
    "phi4_mini_json": lambda a: f'functools[{{"name": "f", "arguments": {{"a": "{a}"}}}}]',
    "nemotron_json": lambda a: f'<TOOLCALL>[{{"name": "f", "arguments": {{"a": "{a}"}}}}]</TOOLCALL>',
    "jamba": lambda a: f'<tool_calls>[\n  {{"name": "f", "arguments": {{"a": "{a}"}}}}\n]</tool_calls>',
    "longcat": lambda a: f'<longcat_tool_call>\n{{"name": "f", "arguments": {{"a": "{a}"}}}}\n</longcat_tool_call>',
    "interns1": lambda a: f'<|action_start|><|plugin|>\n{{"name": "f", "parameters": {{"a": "{a}"}}}}\n<|action_end|>',
    "openai": lambda a: f'<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"a": "{a}"}}',
}
"""The function is `f`, the argument `a`."""
