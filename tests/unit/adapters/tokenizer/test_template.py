import json
from typing import Any

import pytest

from enginehouse.adapters.tokenizer.errors import TokenizerError
from enginehouse.adapters.tokenizer.template import ChatTemplate
from enginehouse.adapters.tokenizer.templates import find_templates
from enginehouse.domain.errors import InvalidRequest

HELLO = [{"role": "user", "content": "Hello"}]
LOOP = "{% for message in messages %}[{{ message.role }}:{{ message.content }}]{% endfor %}"


def render(source: str, messages: Any = HELLO, *, tokens: Any = None, **options: Any) -> str:
    return ChatTemplate(source, tokens or {}).render(messages, options)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ bos_token }}x{{ eos_token }}{{ pad_token }}", "<s>x</s>"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% if tools %}t{% endif %}{% if tools is none %}none{% endif %}", "none"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),  # blocks leave no lines and no indent behind
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{{ {'b': '<é>', 'a': [1, none]} | tojson }}", '{"b": "<é>", "a": [1, null]}'),
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 2 %}{% endfor %}{{ ns.x }}", "2"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hello"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
        ("{{ messages[0]['content'].split('l')[0] }}{{ 'a,b'.split(',') | join('-') }}", "Hea-b"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ '<&>' }}", "<&>"),
    ],
)
def test_o12_templates_find_what_they_rely_on(source: str, wanted: str) -> None:
    assert render(source, tokens={"bos_token": "<s>", "eos_token": "</s>"}) == wanted


def test_o12_options_reach_the_template_but_never_replace_what_is_ours() -> None:
    assert render("{{ enable_thinking }}", chat_template_kwargs={"enable_thinking": False}) == "False"
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"
    hostile = {"messages": [], "bos_token": "evil", "add_generation_prompt": 0}
    assert render(LOOP + "{{ bos_token }}", tokens={"bos_token": "<s>"}, chat_template_kwargs=hostile) == (
        "[user:Hello]<s>"
    )


def test_text_parts_are_joined_for_templates_that_read_strings() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render(LOOP, parts) == "[user:a\nb]"


def test_strings_become_parts_for_templates_that_read_parts() -> None:
    source = "{% for p in messages[0].content %}{% if p.type == 'text' %}<{{ p.text }}>{% endif %}{% endfor %}"
    assert render(source) == "<Hello>"


def test_templates_that_read_both_get_what_the_client_sent_joined() -> None:
    source = "{% for m in messages %}{% if m.content is string %}s:{{ m.content }}{% else %}list{% endif %}{% endfor %}"
    assert render(source) == "s:Hello"


def test_developer_is_the_system_where_a_template_does_not_know_it() -> None:
    message = [{"role": "developer", "content": "x"}]
    assert render(LOOP, message) == "[system:x]"
    assert render(LOOP + "{# developer #}", message) == "[developer:x]"


@pytest.mark.parametrize("sent", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("read", ["reasoning_content", "reasoning", "thinking"])
def test_earlier_reasoning_is_seen_by_whatever_name_a_template_reads(sent: str, read: str) -> None:
    message = [{"role": "assistant", "content": "x", sent: "because"}]
    assert render("{{ messages[0]." + read + " }}", message) == "because"


def test_the_messages_of_the_caller_stay_as_they_are() -> None:
    messages = [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]
    before = json.dumps(messages)
    render(LOOP, messages)
    assert json.dumps(messages) == before


def test_o12_what_a_template_refuses_is_told_in_its_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert (caught.value.param, caught.value.status) == ("messages", 400)


def test_what_a_template_quotes_of_the_messages_is_cut_and_harmless() -> None:
    long = [{"role": "user", "content": "\x1b[2J" + "x" * 1_000_000}]
    with pytest.raises(InvalidRequest, match=r"\\x1b\[2Jx+\.\.\.$") as caught:
        render("{{ raise_exception(messages[0].content) }}", long)
    assert len(caught.value.message) < 400


def test_o8_arguments_that_are_nested_too_deeply_for_a_template_are_said_to_be() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        render("{{ messages | tojson }}", [{"role": "user", "content": "x", "deep": deep}])
    while deep:  # without the recursion of freeing it at once
        deep = deep[0]


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].missing.deeper }}",
        "{{ messages[5].content }}",
        "{{ 1 + messages[0].content }}",
        "{{ 1 / 0 }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",  # out of the sandbox
        "{{ messages.append(1) }}",
        "{% for i in range(100000000) %}x{% endfor %}",
        "{{ messages[0].content.no() }}",
    ],
)
def test_o12_other_failures_name_messages_and_nothing_of_the_inside(source: str) -> None:
    template = ChatTemplate(source, {})
    with pytest.raises(InvalidRequest) as caught:
        template.render(HELLO, {})
    assert caught.value.param == "messages"
    assert caught.value.message.startswith("the model's chat template cannot render these messages")
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% unknown %}", "{{ x | no_such_filter }}"])
def test_a_template_that_does_not_compile_is_told_at_once(source: str) -> None:
    with pytest.raises(TokenizerError, match="cannot be compiled"):
        ChatTemplate(source, {})


def config(**content: Any) -> dict[str, bytes]:
    return {"tokenizer_config.json": json.dumps(content).encode()}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (config(chat_template="A"), "A"),
        (config(chat_template=[{"name": "x", "template": "X"}, {"name": "default", "template": "D"}]), "D"),
        (config(chat_template=[{"name": "x", "template": "X"}]), "X"),
        ({"chat_template.json": b'{"chat_template": "J"}'}, "J"),
        (config(chat_template="A") | {"chat_template.jinja": b"F"}, "F"),
        (config(chat_template="{{ eos_token }}", eos_token={"content": "</s>", "lstrip": False}), "</s>"),
        (
            config(chat_template="{{ eos_token }}{{ bos_token }}", eos_token="</s>")
            | {"special_tokens_map.json": b'{"eos_token": "<old>", "bos_token": {"content": "<s>"}}'},
            "</s><s>",
        ),
        (config(chat_template="{{ additional_special_tokens[0] }}", additional_special_tokens=["<a>"]), "<a>"),
    ],
)
def test_o12_templates_and_special_tokens_are_found_in_every_place(files: dict[str, bytes], wanted: str) -> None:
    template = find_templates(files)
    assert template is not None
    assert template.render(HELLO, {}) == wanted


def test_a_model_may_have_no_template() -> None:
    assert find_templates(config(eos_token="</s>")) is None
    assert find_templates({}) is None


PARTS = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("source", [LOOP, PARTS])
@pytest.mark.parametrize("last", [{}, {"content": []}, {"content": None}])
def test_an_answer_cannot_go_on_with_a_message_without_text(source: str, last: Any) -> None:
    if source == LOOP and last.get("content") == []:
        assert render(source, [*HELLO, {"role": "assistant"} | last], continue_final_message=True).endswith("tant:")
        return
    with pytest.raises(InvalidRequest, match="it has no text") as caught:
        render(source, [*HELLO, {"role": "assistant"} | last], continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_an_answer_cannot_go_on_with_what_a_template_leaves_out() -> None:
    for source in ("{{ messages[0].content }}", LOOP.replace("message.content", "message.content[2:]")):
        with pytest.raises(InvalidRequest, match="leaves something of it out"):
            render(source, [*HELLO, {"role": "assistant", "content": "It is"}], continue_final_message=True)
