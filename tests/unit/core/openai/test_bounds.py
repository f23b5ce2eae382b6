import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.openai import bounds
from enginehouse.core.openai.bounds import few_strings, values_in
from enginehouse.core.openai.parse import parse_chat, parse_completion, parse_either
from enginehouse.core.openai.refusals import printable
from enginehouse.domain.errors import InvalidRequest

SIZE = 4_000_000
SMALLEST = '{"role":"user","content":""}'
CALL = '{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"%s"}}]}'


def many(item: str) -> str:
    return ",".join([item] * (SIZE // (len(item) + 1)))


def chat(messages: str = SMALLEST, more: str = "") -> bytes:
    return f'{{"model":"m","messages":[{messages}]{more}}}'.encode()


def prompt(ids: str) -> bytes:
    return f'{{"model":"m","prompt":[{ids}]}}'.encode()


def keys(count: int) -> str:
    return "".join([f',"k{at}":null' for at in range(count)])


FLOODS: dict[str, tuple[Callable[[bytes], Any], Callable[[], bytes], str]] = {
    "messages": (parse_chat, lambda: chat(many(SMALLEST)), "limit"),
    "empty objects": (parse_chat, lambda: chat(many("{}")), "'messages' has more than"),
    "empty lists": (parse_chat, lambda: chat(many("[]")), "'messages' has more than"),
    "parts": (parse_chat, lambda: chat(f'{{"role":"user","content":[{many("[]")}]}}'), "'messages' has more than"),
    "nulls": (parse_chat, lambda: chat(f'{{"role":"user","content":[{many("null")}]}}'), "'messages' has more than"),
    "arguments": (parse_chat, lambda: chat(CALL % (f'{{\\"a\\":[{many("[]")}]}}')), "arguments of tool calls"),
    "texts in arguments": (parse_chat, lambda: chat(CALL % many('\\"\\"')), "arguments of tool calls"),
    "many arguments": (parse_chat, lambda: chat(many(CALL % f"[{'0,' * 5000}0]")), "must hold an object"),
    "keys": (parse_chat, lambda: chat(more=keys(SIZE // 15)), "limit"),
    "keys of either": (parse_either, lambda: chat(more=keys(SIZE // 8)), "limit"),
    "few keys": (parse_chat, lambda: chat(more=keys(20_000)), "at most 1000 are taken"),
    "unknown": (parse_chat, lambda: chat(more=f',"x":[{many("[]")}]'), "'x' is not a known parameter"),
    "unsupported": (parse_chat, lambda: chat(more=f',"tools":[{many("[]")}]'), "'tools' has more than"),
    "stop": (parse_chat, lambda: chat(more=f',"stop":[{many("[]")}]'), "'stop' has"),
    "temperature": (parse_chat, lambda: chat(more=f',"temperature":[{many("[]")}]'), "'temperature' has"),
    "options": (
        parse_chat,
        lambda: chat(more=f',"chat_template_kwargs":{{"a":[{many("[]")}]}}'),
        "template_kwargs' has",
    ),
    "lists as prompt": (parse_completion, lambda: prompt(many("[]")), "prompts; at most 1024 are taken"),
    "lists in a prompt": (parse_completion, lambda: prompt("1," + many("[]")), "'prompt[1]' is a list"),
    "texts as prompt": (parse_completion, lambda: prompt(many('""')), "limit"),
    "ids and a text": (parse_completion, lambda: prompt(many("1") + ',"a"'), "'prompt' has more than"),
    "no object": (parse_chat, lambda: b"[" + many("[]").encode() + b"]", "the body is a list"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_g3_a_body_of_many_small_things_is_refused_before_they_are_built(name: str) -> None:
    parse, make, words = FLOODS[name]
    body = make()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as caught:
            parse(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in caught.value.message
    assert len(caught.value.message) < 300
    assert peak < 40_000_000


@pytest.mark.parametrize(
    "more",
    [
        f',"metadata":{{"a":[{many("[]")}]}}',
        f',"metadata":{{"a":[{many("0")}]}}',
        f',"safety_identifier":"{"u" * SIZE}"',
    ],
)
def test_g3_what_is_ignored_is_not_built(more: str) -> None:
    body = chat(more=more)
    tracemalloc.start()
    try:
        parse_chat(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_g3_messages_and_parts_are_counted() -> None:
    part = '{"type":"text","text":"x"}'
    limit = bounds.MAX_MESSAGES
    assert len(parse_chat(chat(",".join([SMALLEST] * limit))).messages) == limit
    with pytest.raises(InvalidRequest, match=f"a list of {limit + 1}; it must be a list of 1 to {limit} messages"):
        parse_chat(chat(",".join([SMALLEST] * (limit + 1))))
    half = f'{{"role":"user","content":[{",".join([part] * (bounds.MAX_PARTS // 2))}]}}'
    assert len(parse_chat(chat(f"{half},{half}")).messages) == 2
    with pytest.raises(InvalidRequest, match="content parts"):
        parse_chat(chat(f'{half},{half},{{"role":"user","content":[{part}]}}'))


@pytest.mark.parametrize("text", ["a, {[" * 200_000, '\\",' * 300_000, "\\\\" * 300_000, "🚂," * 300_000])
def test_texts_full_of_punctuation_are_texts(text: str) -> None:
    (message,) = parse_chat(chat(f'{{"role":"user","content":"{text}"}}')).messages
    assert message["content"] == json.loads(f'"{text}"')
    assert parse_completion(f'{{"model":"m","prompt":"{text}"}}'.encode()).prompt == message["content"]
    assert parse_completion(f'{{"model":"m","prompt":["{text}"]}}'.encode()).prompt == message["content"]


def test_long_lists_of_ids_are_taken_and_their_faults_named() -> None:
    ids = ",".join(["7"] * 400_000)
    for body in (prompt(ids), prompt(f" [ {ids} ] ")):
        assert parse_completion(body).prompt == (7,) * 400_000
    for wrong, words in (
        ("-1", "is out of range"),
        (str(2**31), "is out of range"),
        ("1.0", "is a number"),
        ("true", "is a boolean"),
        ("null", "is null"),
        ("{}", "is an object"),
    ):
        for body, place in (
            (prompt(f"{ids},{wrong}"), "prompt[400000]"),
            (prompt(f"[5],[{ids},{wrong}]"), "prompt[1][400000]"),
        ):
            with pytest.raises(InvalidRequest) as caught:
                parse_completion(body)
            assert f"'{place}' {words}" in caught.value.message
            assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequest, match=r"'prompt\[0\]' is an object"):
        parse_completion(prompt(f"{{}},{ids}"))
    with pytest.raises(InvalidRequest, match="more than 4000000 token ids"):
        parse_completion(prompt("1" + ",1" * bounds.MAX_PROMPT_IDS))


def test_o8_whatever_is_nested_deeply_is_a_400() -> None:
    for depth in range(100, 1200, 50):
        deep = "[" * depth + "]" * depth
        for body in (
            chat(more=f',"chat_template_kwargs":{{"a":{deep}}}'),
            chat(more=f',"metadata":{{"a":{deep}}}'),
            chat(more=f',"stop":{deep}'),
            chat(more=f',"x":{deep}'),
            chat(CALL % f'{{\\"a\\":{deep}}}'),
            chat((CALL % "X").replace('"X"', f'{{"a":{deep}}}')),
            prompt(deep),
        ):
            for parse in (parse_chat, parse_completion):
                try:
                    parse(body)
                except InvalidRequest as error:
                    assert error.message  # noqa: PT017  (a refusal is one of two right answers)


def test_a_text_in_arguments_that_never_ends_takes_no_longer() -> None:
    with pytest.raises(InvalidRequest, match="not JSON text"):
        parse_chat(chat(CALL % ('{\\"' + '\\\\\\"' * 500_000)))  # quadratic would be hours


json_values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\,[{é'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='a"\\,[{'), inner, max_size=4),
    max_leaves=30,
)


def _strings(value: Any) -> int:
    if isinstance(value, str):
        return 1
    if isinstance(value, dict):
        return len(value) + sum(map(_strings, value.values()))
    return sum(map(_strings, value)) if isinstance(value, list) else 0


def _values(value: Any) -> int:
    if isinstance(value, dict | list):
        inner = list(value.values()) if isinstance(value, dict) else value
        return 1 + max(len(inner) - 1, 0) + sum(map(_values, inner))
    return 0


@given(json_values)
def test_counts_from_bytes_are_right(value: Any) -> None:
    data = json.dumps(value).encode()
    quotes = data.count(b'"') - data.count(b'\\"')
    assert _strings(value) <= quotes <= 2 * _strings(value)
    assert bounds._structure(bounds._STRING.sub(b"", data)) == _values(value) <= values_in(data)
    assert few_strings(data)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gpt", "gpt"),
        ("größe 你好", "größe 你好"),
        ("x" * 64, "x" * 64),
        ("x" * 65, "x" * 61 + "..."),
        ("x" * 10_000_000, "x" * 61 + "..."),
        ("a\n\x1b[31mb\x00\u202e", "a\\n\\x1b[31mb\\x00\\u202e"),
    ],
)
def test_what_a_client_sent_is_shown_short_and_harmless(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("name", ["x" * SIZE, "a\x1b[2J"])
def test_names_from_the_client_are_shown_short_and_harmless(name: str) -> None:
    quoted = json.dumps(name)
    for body in (
        chat(more=f",{quoted}:1"),
        chat(more=f',"stream_options":{{{quoted[:9000] + chr(34) if len(quoted) > 9000 else quoted}:1}}'),
        chat(f'{{"role":{quoted},"content":""}}'),
        chat(f'{{"role":"user","content":"",{quoted}:1}}'),
        chat(f'{{"role":"user","content":[{{"type":{quoted}}}]}}'),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse_chat(body)
        assert len(caught.value.message) < 300
        assert caught.value.message.isprintable()
        assert len(caught.value.param or "") < 200
        assert (caught.value.param or "").isprintable()


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("max_tokens", 10**12, "2147483647"),
        ("max_completion_tokens", 10**12, "2147483647"),
        ("min_tokens", 10**12, "2147483647"),
        ("top_k", 10**12, "2147483647"),
        ("stop_token_ids", [10**12], "2147483647"),
        ("top_p", 1e-320, "1.2e-38"),
        ("repetition_penalty", 1e-39, "1.2e-38"),
    ],
)
def test_o8_the_limit_that_was_passed_is_named(name: str, value: Any, limit: str) -> None:
    with pytest.raises(InvalidRequest, match=limit) as caught:
        parse_chat(chat(more=f',"{name}":{json.dumps(value)}'))
    assert caught.value.param == name
