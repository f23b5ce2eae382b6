"""The parameters that are understood: their types, their limits, and the words that say what would be right."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Meta, Struct

from enginehouse.core.openai.bounds import MAX_MESSAGES, MAX_PROMPTS

MAX_STOPS: Final = 16
MAX_STOP_LENGTH: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 128
MAX_CHOICES: Final = 128
"""Answers to one prompt."""
MAX_BIASES: Final = 1024
MAX_TOP: Final = 20
"""Most likely tokens at one place."""
TOKEN_ID_MAX: Final = 2**31 - 1
_FLOAT32_MIN: Final = 2.0**-126
"""Engines take numbers as float32, in which smaller ones are 0: for a number above 0 that is another meaning."""

TokenId = Annotated[int, Meta(ge=0, le=TOKEN_ID_MAX)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Count = Annotated[int, Meta(ge=0, le=TOKEN_ID_MAX)]
_Length = Annotated[int, Meta(ge=1, le=TOKEN_ID_MAX)]
_Top = Annotated[int, Meta(ge=0, le=MAX_TOP)]
_Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]


class StreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """`stream_options`. Obfuscation pads chunks against eavesdroppers; a server is free not to.

    `continuous_usage_stats` is vLLM's, which then tells the usage in each chunk; load generators ask for both and read
    the last one, which is all that is given here.
    """

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class Fields(Struct, kw_only=True, frozen=True):
    """What both paths take; null is the same as absent."""

    model: Annotated[str, Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _Length | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=_FLOAT32_MIN, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=TOKEN_ID_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=_FLOAT32_MIN, le=10)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: _StopString | Annotated[list[_StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: _Count | None = None
    skip_special_tokens: bool | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    logit_bias: Any = None  # read_bias checks it
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    return_token_ids: bool | None = None
    priority: _Priority | None = None
    # read_constraint checks these
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    # What tells which requests belong together, where routing is set to heed it.
    user: str | None = None
    prompt_cache_key: str | None = None
    # Notes of the caller to its provider: taken, and without effect here. See IGNORED.
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class ChatFields(Fields, kw_only=True, frozen=True):
    """`/v1/chat/completions`."""

    messages: Any  # read_messages checks it
    max_completion_tokens: _Length | None = None
    logprobs: bool | None = None
    top_logprobs: _Top | None = None
    tools: Any = None  # read_tools checks both
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    separate_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionFields(Fields, kw_only=True, frozen=True):
    """`/v1/completions`."""

    prompt: Any  # read_prompts checks it
    logprobs: _Top | bool | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None


RIGHT: Final[dict[str, str]] = {
    "model": "the name of a model, as /v1/models lists it",
    "messages": f"a list of 1 to {MAX_MESSAGES} messages",
    "prompt": f"a string, a list of token ids, or a list of 1 to {MAX_PROMPTS} of either",
    "stream": "true or false",
    "stream_options": "an object, e.g. {'include_usage': true}",
    "stream_options.include_usage": "true or false",
    "stream_options.include_obfuscation": "true or false",
    "stream_options.continuous_usage_stats": "true or false",
    "max_tokens": f"a whole number from 1 to {TOKEN_ID_MAX}",
    "max_completion_tokens": f"a whole number from 1 to {TOKEN_ID_MAX}",
    "min_tokens": f"a whole number from 0 to {TOKEN_ID_MAX}",
    "temperature": "a number from 0 to 2",
    "top_p": f"a number above 0 (from {_FLOAT32_MIN:.2g}) and up to 1",
    "top_k": f"a whole number from 1 to {TOKEN_ID_MAX}, or -1 for no limit",
    "min_p": "a number from 0 to 1",
    "frequency_penalty": "a number from -2 to 2",
    "presence_penalty": "a number from -2 to 2",
    "repetition_penalty": f"a number above 0 (from {_FLOAT32_MIN:.2g}) and up to 10",
    "seed": "a whole number of at most 64 bits",
    "stop": f"a string of 1 to {MAX_STOP_LENGTH} characters, or a list of at most {MAX_STOPS} of them",
    "stop_token_ids": f"a list of at most {MAX_STOP_TOKEN_IDS} token ids from 0 to {TOKEN_ID_MAX}",
    "n": f"a whole number from 1 to {MAX_CHOICES}",
    "best_of": "as large as 'n', for every answer is given",
    "logprobs": f"true or false in a chat, a whole number from 0 to {MAX_TOP} in a completion",
    "top_logprobs": f"a whole number from 0 to {MAX_TOP}",
    "logit_bias": f"an object of at most {MAX_BIASES} token ids, as strings, with numbers from -100 to 100",
    "echo": "true or false",
    "include_stop_str_in_output": "true or false",
    "no_stop_trim": "true or false",
    "return_token_ids": "true or false",
    "priority": "a whole number of at most 32 bits",
    "response_format": "an object, e.g. {'type': 'json_object'}",
    "structured_outputs": "an object, e.g. {'regex': '...'}",
    **dict.fromkeys(("guided_json", "json_schema"), "a JSON Schema, as an object or as JSON text"),
    **dict.fromkeys(("guided_regex", "regex"), "a regular expression, which is a string"),
    **dict.fromkeys(("guided_grammar", "ebnf"), "a grammar in EBNF, which is a string"),
    "guided_choice": "a list of strings",
    "tools": "a list of tools",
    "tool_choice": "none, auto, required, or an object that names a tool",
    "parallel_tool_calls": "true or false",
    "reasoning_effort": f"one of {', '.join(get_args(Effort))}",
    "separate_reasoning": "true or false",
    "continue_final_message": "true or false",
    "documents": "a list of objects, e.g. [{'title': '...', 'text': '...'}]",
    "ignore_eos": "true or false",
    "skip_special_tokens": "true or false",
    "add_special_tokens": "true or false",
    "add_generation_prompt": "true or false",
    "chat_template_kwargs": "an object",
    "user": "a string",
    "metadata": "an object",
    "safety_identifier": "a string",
    "prompt_cache_key": "a string",
    "prompt_cache_retention": "a string",
    "prompt_cache_options": "an object",
}
"""For each field, and each field of an object in it, what would be right."""

CHAT_FIELDS: Final = frozenset(ChatFields.__struct_fields__)
COMPLETION_FIELDS: Final = frozenset(CompletionFields.__struct_fields__)

IGNORED: Final[dict[str, Any]] = {
    "metadata": {},
    "safety_identifier": "",
    "prompt_cache_retention": "",
    "prompt_cache_options": {},
}
"""Fields of which only the type counts, each with a value that stands for whatever a client gives."""
