import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, RIGHT
from enginehouse.core.openai.needs import needs
from enginehouse.core.openai.parse import parse_chat, parse_completion, parse_either
from enginehouse.core.openai.refusals import STEERING, UNSUPPORTED
from enginehouse.domain.errors import InvalidRequest
from enginehouse.domain.request import Sampling

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HELLO} | more).encode()


def completion(**more: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "Hello"} | more).encode()


def refusal(body: bytes, parse: Any = parse_chat) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(body)
    return caught.value


def test_a_plain_chat_request_asks_for_nothing_special() -> None:
    request = parse_chat(chat())
    assert request.messages == ({"role": "user", "content": "Hello"},)
    assert (request.model, request.stream, request.include_usage, request.stop) == ("m", False, False, ())
    assert request.max_tokens is None
    assert request.sampling == Sampling()
    assert request.template_options == {"add_generation_prompt": True}


def test_everything_that_an_engine_takes_arrives() -> None:
    sampling: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "frequency_penalty": -1,
        "presence_penalty": 2,
        "repetition_penalty": 1.1,
        "seed": -(2**63),
        "stop_token_ids": [5, 6],
        "ignore_eos": True,
        "min_tokens": 3,
    }
    for request in (parse_chat(chat(**sampling)), parse_completion(completion(**sampling))):
        assert request.sampling == replace(Sampling(), **sampling | {"stop_token_ids": (5, 6)})


def test_null_is_the_same_as_absent() -> None:
    nothing: dict[str, Any] = dict.fromkeys((CHAT_FIELDS - {"model", "messages"}) | set(UNSUPPORTED) | {"whatever"})
    assert parse_chat(chat(**nothing)) == parse_chat(chat())


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("temperature", 2.5, "2.5"),
        ("temperature", True, "true"),
        ("temperature", "hot", "a string of 3 characters"),
        ("temperature", 10**400, "a number of more than 64 bits"),
        ("top_p", 0, "0"),
        ("top_k", -2, "-2"),
        ("top_k", 1.5, "1.5"),
        ("min_p", 1.01, "1.01"),
        ("frequency_penalty", -2.1, "-2.1"),
        ("presence_penalty", [], "a list of 0"),
        ("repetition_penalty", 0, "0"),
        ("seed", 2**63, str(2**63)),
        ("seed", 2**64, "more than 64 bits"),
        ("max_tokens", 0, "0"),
        ("max_tokens", "10", "a string"),
        ("min_tokens", -1, "-1"),
        ("stream", "yes", "a string"),
        ("stream_options", True, "true"),
        ("ignore_eos", 1, "1"),
        ("stop_token_ids", [-1], "'stop_token_ids[0]' is -1"),
        ("stop_token_ids", [1] * 129, "a list of 129"),
        ("stop", [1], "'stop[0]' is 1"),
        ("stop", "", "an empty string"),
        ("stop", ["a", ""], "'stop[1]' is an empty string"),
        ("stop", ["x"] * 17, "a list of 17"),
        ("user", 7, "7"),
        ("metadata", "x", "a string"),
        ("model", "", "an empty string"),
        ("model", 3, "3"),
    ],
)
def test_o8_wrong_values_are_refused_with_name_value_and_what_is_right(name: str, value: Any, shown: str) -> None:
    for parse, body in ((parse_chat, chat(**{name: value})), (parse_completion, completion(**{name: value}))):
        error = refusal(body, parse)
        assert error.param == name
        assert f"'{name}" in error.message
        assert shown in error.message
        assert RIGHT[name] in error.message
        assert error.status == 400


def test_texts_of_the_client_never_stand_in_an_error() -> None:
    for body in (chat(temperature="secret"), chat(stop={"secret": 1}), chat(messages="secret")):
        assert "secret" not in refusal(body).message


def test_every_field_says_what_would_be_right() -> None:
    assert set(RIGHT) >= CHAT_FIELDS | COMPLETION_FIELDS
    assert (CHAT_FIELDS | COMPLETION_FIELDS) & (set(UNSUPPORTED) | STEERING) == {"priority"}


def test_every_parameter_that_is_taken_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[4] / "docs" / "openai.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Parameters")
    names = {name for line in section.splitlines() for name in re.findall(r"`([a-z_]+)`", line.split(" | ")[0])}
    assert (CHAT_FIELDS | COMPLETION_FIELDS) - names == set()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"{", "ends too early"),
        (b'{"a": }', "invalid character"),
        (b'{"a": NaN}', "invalid character"),
        (b'{"a": Infinity}', "invalid character"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": %s}' % (b"9" * 5000), "out of range"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1} trailing', "trailing"),
    ],
)
def test_o8_a_body_that_is_no_json_is_a_400(body: bytes, words: str) -> None:
    error = refusal(body)
    assert words in error.message
    assert error.code == "invalid_json"


@pytest.mark.parametrize(
    ("body", "what"), [(b"[]", "a list"), (b'"x"', "a string"), (b"null", "null"), (b"3", "a num")]
)
def test_o8_a_body_that_is_no_object_is_a_400(body: bytes, what: str) -> None:
    assert f"the body is {what}" in refusal(body).message


def test_missing_fields_are_named() -> None:
    assert refusal(b"{}").param in ("model", "messages")
    assert refusal(b'{"model": "m"}').param == "messages"
    assert refusal(b'{"model": "m"}', parse_completion).param == "prompt"
    assert refusal(chat(messages=[])).param == "messages"


def test_a_key_that_stands_twice_counts_as_it_stands_last() -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 9, "temperature": 1}'
    assert parse_chat(body).sampling.temperature == 1


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_is_not_supported_is_refused_by_name_unless_it_asks_for_nothing(name: str) -> None:
    for harmless in UNSUPPORTED[name]:
        assert parse_chat(chat(**{name: harmless})) == parse_chat(chat())
        assert parse_completion(completion(**{name: harmless})) == parse_completion(completion())
    for parse, body in ((parse_chat, chat(**{name: "xyz"})), (parse_completion, completion(**{name: ["xyz"]}))):
        error = refusal(body, parse)
        assert error.param == name
        assert f"'{name}' is not supported" in error.message


@pytest.mark.parametrize("name", ["enable_thinking", "thinking", "reasoning"])
def test_who_asks_for_thinking_in_the_words_of_others_is_told_ours(name: str) -> None:
    assert "'chat_template_kwargs'" in refusal(chat(**{name: False})).message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("modalities", ["text", "audio"]),
        ("store", True),
        ("service_tier", "flex"),
    ],
)
def test_values_that_ask_for_something_are_refused(name: str, value: Any) -> None:
    assert refusal(chat(**{name: value})).param == name


@pytest.mark.parametrize("name", sorted(STEERING))
@pytest.mark.parametrize("value", [0, 1, "x", {"a": 1}, False, []])
def test_s3_a_client_cannot_say_where_its_request_runs(name: str, value: Any) -> None:
    for parse, body in ((parse_chat, chat(**{name: value})), (parse_completion, completion(**{name: value}))):
        error = refusal(body, parse)
        assert error.param == name
        assert error.code == "unsupported_parameter"


@pytest.mark.parametrize("name", ["temprature", "x" * 5000, "", "a b"])
def test_unknown_parameters_are_refused_by_name(name: str) -> None:
    error = refusal(chat(**{name: 1}))
    assert "not a known parameter" in error.message
    assert error.code == "unknown_parameter"
    assert len(error.message) < 200


def test_notes_to_the_provider_are_taken() -> None:
    notes = {
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {},
    }
    assert parse_chat(chat(**notes)) == parse_chat(chat())


def test_what_may_tell_that_requests_belong_together_is_kept() -> None:
    for parse, body in ((parse_chat, chat), (parse_completion, completion)):
        request = parse(body(user="u", prompt_cache_key="k"))
        assert (request.user, request.prompt_cache_key) == ("u", "k")
        assert (parse(body()).user, parse(body(user=None)).prompt_cache_key) == (None, None)
        assert refusal(body(prompt_cache_key=["k"]), parse).param == "prompt_cache_key"


def test_a_body_of_either_path_is_told_by_what_it_asks() -> None:
    assert parse_either(chat()) == parse_chat(chat())
    assert parse_either(completion()) == parse_completion(completion())
    assert refusal(chat(prompt="x"), parse_either).param == "prompt", "a chat, in which a prompt has no place"
    assert refusal(b'{"model": "m"}', parse_either).param == "messages"
    for body in (b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"prompt": "' + b'","' * 300_000):
        assert refusal(body, parse_either).status == 400


@pytest.mark.parametrize(
    ("options", "wanted"),
    [({}, False), (None, False), ({"include_usage": None}, False), ({"include_usage": True}, True)],
)
def test_o7_usage_only_on_request(options: Any, wanted: bool) -> None:
    assert parse_chat(chat(stream=True, stream_options=options)).include_usage is wanted


def test_o7_load_generators_ask_for_the_usage_twice_over() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert parse_chat(chat(stream=True, stream_options=options)).include_usage
    assert not parse_chat(chat(stream=True, stream_options={"continuous_usage_stats": True})).include_usage


def test_o7_unknown_stream_options_are_named() -> None:
    error = refusal(chat(stream=True, stream_options={"usage": True}))
    assert error.param == "stream_options.usage"
    assert refusal(chat(stream_options={"include_usage": 1})).param == "stream_options.include_usage"


def test_both_names_of_the_limit() -> None:
    assert parse_chat(chat(max_tokens=5)).max_tokens == 5
    request = parse_chat(chat(max_completion_tokens=5))
    assert (request.max_tokens, request.max_tokens_param) == (5, "max_completion_tokens")
    assert parse_chat(chat(max_tokens=5, max_completion_tokens=5)).max_tokens == 5
    assert refusal(chat(max_tokens=5, max_completion_tokens=6)).param == "max_completion_tokens"
    assert refusal(completion(max_completion_tokens=5), parse_completion).param == "max_completion_tokens"
    assert refusal(chat(max_tokens=5, min_tokens=6)).param == "min_tokens"


def test_stop_is_one_string_or_several() -> None:
    assert parse_chat(chat(stop="END")).stop == ("END",)
    assert parse_chat(chat(stop=["a", "b", "a"])).stop == ("a", "b")
    assert parse_chat(chat(stop=[])).stop == ()


def test_options_for_the_template() -> None:
    request = parse_chat(chat(add_generation_prompt=False, chat_template_kwargs={"enable_thinking": False}))
    assert request.template_options == {
        "add_generation_prompt": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    for name in ("messages", "tools", "add_generation_prompt"):
        assert refusal(chat(chat_template_kwargs={name: 1})).param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("Hi", ["Hi"]),
        (["Hi"], ["Hi"]),
        (["Hi", "Ho", "Hi"], ["Hi", "Ho", "Hi"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2]], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
        ([0], [(0,)]),
        ([2**31 - 1], [(2**31 - 1,)]),
    ],
)
def test_o11_one_prompt_or_several_as_texts_or_ids(prompt: Any, wanted: Any) -> None:
    request = parse_completion(completion(prompt=prompt))
    assert [request.prompt, *request.more_prompts] == wanted


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "'prompt' is empty"),
        ([], "'prompt' is empty"),
        ([""], "'prompt' is empty"),
        ([[]], "'prompt' is empty"),
        (["a", ""], "'prompt[1]' is empty"),
        ([[1], []], "'prompt[1]' is empty"),
        (["a", [1]], "'prompt[1]' is a list; all prompts must be strings"),
        ([[1], "a"], "'prompt[1]' is a string; all prompts must be token ids"),
        (["a", 1], "'prompt[1]' is a number"),
        (["a"] * 1025, "a list of 1025 prompts; at most 1024"),
        ([1, "a"], "'prompt[1]' is a string"),
        ([1, -1], "'prompt[1]' is out of range"),
        ([1, 2**31], "'prompt[1]' is out of range"),
        ([1, 2.0], "'prompt[1]' is a number"),
        ([[1, [2]]], "'prompt[0][1]' is a list"),
        ([[1], [1, None]], "'prompt[1][1]' is null"),
        ([True], "'prompt[0]' is a boolean"),
        ({"a": 1}, "an object"),
        (5, "5"),
    ],
)
def test_o11_other_prompts_are_refused_by_name(prompt: Any, words: str) -> None:
    error = refusal(completion(prompt=prompt), parse_completion)
    assert words in error.message
    assert error.param == "prompt"


@pytest.mark.parametrize(
    ("more", "wanted"), [({}, 1), ({"n": 3}, 3), ({"n": 3, "best_of": 3}, 3), ({"best_of": 1}, 1), ({"n": 128}, 128)]
)
def test_o11_choices(more: Any, wanted: int) -> None:
    assert parse_chat(chat(**more)).n == wanted
    assert parse_completion(completion(**more)).n == wanted


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"n": 128, "prompt": ["a"] * 9}, "prompt"),
    ],
)
def test_o11_more_choices_than_are_given_are_refused(more: Any, param: str) -> None:
    assert refusal(completion(**more), parse_completion).param == param


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_o10_likelihoods_of_a_chat(more: Any, wanted: int | None) -> None:
    request = parse_chat(chat(**more))
    assert (request.sampling.logprobs, request.sampling.prompt_logprobs) == (wanted, None)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, (None, None)),
        ({"logprobs": False}, (None, None)),
        ({"logprobs": 0}, (0, None)),
        ({"logprobs": 20}, (20, None)),
        ({"echo": True}, (None, None)),
        ({"echo": True, "logprobs": 5}, (5, 5)),
        ({"echo": True, "logprobs": 0}, (0, 0)),
    ],
)
def test_o10_likelihoods_of_a_completion_and_its_prompt(more: Any, wanted: Any) -> None:
    request = parse_completion(completion(**more))
    assert (request.sampling.logprobs, request.sampling.prompt_logprobs) == wanted
    assert request.echo is more.get("echo", False)


def test_o10_likelihoods_asked_for_wrongly_are_refused() -> None:
    assert refusal(chat(logprobs=5)).param == "logprobs"
    assert refusal(chat(top_logprobs=5)).param == "top_logprobs"
    assert refusal(chat(logprobs=True, top_logprobs=21)).param == "top_logprobs"
    for wrong in (True, 21, -1, "5"):
        assert refusal(completion(logprobs=wrong), parse_completion).param == "logprobs"


def test_biases_are_by_token_id() -> None:
    for request in (parse_chat(chat(logit_bias={"5": -100, "7": 0.5})), parse_completion(completion(logit_bias={}))):
        assert request.sampling.logit_bias in (((5, -100.0), (7, 0.5)), ())
    for wrong in (
        [],
        {"a": 1},
        {"-1": 1},
        {"1.0": 1},
        {"٣": 1},
        {"9" * 5000: 1},
        {str(2**31): 1},
        {"5": 101},
        {"5": "1"},
        {"5": True},
        {"5": None},
        {str(at): 0 for at in range(1025)},
    ):
        error = refusal(chat(logit_bias=wrong))
        assert error.param == "logit_bias"
        assert len(error.message) < 300


def test_a_stop_string_stays_where_it_is_asked_to_by_either_name() -> None:
    assert not parse_chat(chat(stop="x")).keep_stop
    for name in ("include_stop_str_in_output", "no_stop_trim"):
        assert parse_chat(chat(stop="x", **{name: True})).keep_stop
    assert parse_chat(chat(return_token_ids=True)).return_token_ids


def test_s3_a_client_says_how_urgent_it_is_only_where_it_may() -> None:
    for parse, body in ((parse_chat, chat(priority=-3)), (parse_completion, completion(priority=-3))):
        assert refusal(body, parse).param == "priority"
        assert parse(body, client_priority=True).sampling.priority == -3
        assert parse_either(body, client_priority=True).sampling.priority == -3
    with pytest.raises(InvalidRequest, match="32 bits"):
        parse_chat(chat(priority=2**31), client_priority=True)


@pytest.mark.parametrize("name", sorted(CHAT_FIELDS ^ COMPLETION_FIELDS))
def test_what_only_the_other_path_takes_is_said_to_be_so(name: str) -> None:
    parse, body = (parse_completion, completion) if name in CHAT_FIELDS else (parse_chat, chat)
    error = refusal(body(**{name: 1}), parse)
    assert error.param == name
    assert "not a parameter of this path" in error.message


def test_thinking_effort_reaches_the_template() -> None:
    assert parse_chat(chat(reasoning_effort="high")).template_options["chat_template_kwargs"] == {
        "reasoning_effort": "high"
    }
    off = {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}
    assert parse_chat(chat(reasoning_effort="none")).template_options["chat_template_kwargs"] == off
    told = chat(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "max", "x": 1})
    assert parse_chat(told).template_options["chat_template_kwargs"] == {"reasoning_effort": "max", "x": 1}
    assert refusal(chat(reasoning_effort="very")).param == "reasoning_effort"
    assert parse_chat(chat()).separate_reasoning
    assert not parse_chat(chat(separate_reasoning=False)).separate_reasoning


def test_an_answer_may_go_on_with_the_last_message() -> None:
    said = [*HELLO, {"role": "assistant", "content": "It is"}]
    request = parse_chat(chat(messages=said, continue_final_message=True))
    assert request.template_options == {"add_generation_prompt": False, "continue_final_message": True}
    assert request.begun == "It is"
    assert parse_chat(chat()).begun is None
    assert replace(request, messages=({"role": "assistant", "content": ""},)).begun is None
    assert parse_chat(chat(messages=said)).template_options == {"add_generation_prompt": True}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for wrong in (
        {"messages": said, "add_generation_prompt": True},
        {"messages": HELLO},
        {"messages": [*HELLO, {"role": "assistant", "content": ""}]},
        {"messages": [*HELLO, {"role": "assistant", "content": []}]},
        {"messages": [*HELLO, {"role": "assistant", "tool_calls": [call]}]},
    ):
        assert refusal(chat(continue_final_message=True, **wrong)).param == "continue_final_message"


def test_documents_are_for_the_template() -> None:
    documents = [{"title": "a", "text": "b"}]
    assert parse_chat(chat(documents=documents)).template_options["documents"] == documents
    assert refusal(chat(documents=["a"])).param == "documents"
    assert refusal(chat(documents={"a": 1})).param == "documents"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
any_field = st.sampled_from(sorted(CHAT_FIELDS | COMPLETION_FIELDS | set(UNSUPPORTED) | STEERING)) | st.text(max_size=5)


@given(st.dictionaries(any_field, json_values, max_size=5))
def test_o8_whatever_the_object_only_a_named_400_comes_of_it(more: dict[str, Any]) -> None:
    for parse, body in ((parse_chat, chat(**more)), (parse_completion, completion(**more))):
        try:
            parse(body)
        except InvalidRequest as error:
            assert error.message  # noqa: PT017  (a refusal is one of two right answers)


FULL_CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": "b", "name": "n"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "d"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "d",
                "strict": True,
                "parameters": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {}}},
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "logit_bias": {"5": 1},
    "stop": ["a"],
    "stream_options": {"include_usage": True},
    "documents": [{"text": "x"}],
    "chat_template_kwargs": {"enable_thinking": False},
}
ALLOWED = {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}
FORMED = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "object", "anyOf": [{"required": ["a"], "minProperties": 1}]}},
}
BODIES: list[tuple[Any, dict[str, Any]]] = [
    (parse_chat, FULL_CHAT),
    (parse_chat, FULL_CHAT | {"tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED}}),
    (parse_chat, {"model": "m", "messages": HELLO, "response_format": FORMED}),
    (parse_chat, {"model": "m", "messages": HELLO, "structured_outputs": {"json": FORMED["json_schema"]}}),
    (parse_chat, {"model": "m", "messages": HELLO, "response_format": {"type": "structural_tag", "format": {"a": 1}}}),
    (parse_completion, {"model": "m", "prompt": [[1, 2], [3]], "guided_choice": ["a"], "echo": True, "logprobs": 1}),
]
others = json_values | st.sampled_from(
    [10**30, -(10**400), "none", "auto", "function", "text", [[]] * 3, "#", "\ud83d\ude82"]
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *[place for key, one in inner for place in places(one, (*here, key))]]


@given(data=st.data(), kind=st.sampled_from(BODIES))
def test_o8_whatever_stands_in_place_of_something_right_only_a_named_400_comes_of_it(
    data: st.DataObject, kind: tuple[Any, dict[str, Any]]
) -> None:
    parse, right = kind
    body = json.loads(json.dumps(right))
    for _ in range(data.draw(st.integers(0, 2))):
        *way, last = data.draw(st.sampled_from([place for place in places(body) if place]))
        holder = body
        for step in way:
            holder = holder[step]
        holder[last] = json.loads(json.dumps(data.draw(others)))  # drawn ones are shared, and this may be changed
    try:
        request = parse(json.dumps(body).encode())
    except InvalidRequest as error:
        assert error.param is not None or error.code in ("invalid_json", "unknown_parameter")  # noqa: PT017
        assert error.status == 400  # noqa: PT017
    else:
        assert needs(request)


@pytest.mark.parametrize("depth", range(900, 1001, 3))
def test_o8_values_about_as_deep_as_can_be_read_are_taken_or_refused(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    for more in (f'"guided_json": {{"enum": {deep}}}', f'"documents": [{{"a": {deep}}}]', f'"tools": {deep}'):
        try:
            parse_chat(f'{{"model": "m", "messages": [{{"role": "user", "content": "x"}}], {more}}}'.encode())
        except InvalidRequest as error:
            assert error.status == 400  # noqa: PT017


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_o8_whatever_the_bytes_only_a_400_comes_of_it(body: bytes) -> None:
    for parse in (parse_chat, parse_completion):
        refusal(body, parse)


def test_null_within_parts_is_the_same_as_leaving_out() -> None:
    function = {"name": "f", "arguments": "{}", "new": None}
    got = parse_chat(
        chat(
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "x", "new": None}], "new": None},
                {"role": "assistant", "tool_calls": [{"id": "a", "type": None, "new": None, "function": function}]},
                {"role": "tool", "tool_call_id": "a", "content": "y", "new": None},
            ],
            tools=[{"type": None, "function": {"name": "f", "new": None}, "new": None}],
            stream=True,
            stream_options={"include_usage": True, "new": None},
        )
    )
    assert got.include_usage
    assert [sorted(message) for message in got.messages] == [
        ["content", "role"],
        ["role", "tool_calls"],
        ["content", "role", "tool_call_id"],
    ]
    assert [tool.name for tool in got.tools] == ["f"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reasoning_effort": "hi"}, "'reasoning_effort' is 'hi'; it must be one of none, minimal"),
        ({"messages": [{"role": "usr", "content": "x"}]}, "'messages[0].role' is 'usr'; it must be one of system"),
        ({"tool_choice": {"type": "any"}}, "'tool_choice.type' is 'any'; only tools of type 'function'"),
        ({"moderation": {}}, "'moderation' is not supported"),
        ({"user": ["secret"]}, "'user' is a list of 1"),
        ({"temperature": "secret"}, "'temperature' is a string of 6 characters"),
    ],
)
def test_o8_a_value_that_is_none_of_a_few_is_told_and_no_other_text(fields: dict[str, Any], message: str) -> None:
    assert refusal(chat(**fields)).message.startswith(message)
