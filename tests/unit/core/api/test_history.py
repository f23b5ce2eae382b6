import pytest

from enginehouse.core.api.history import History
from enginehouse.core.openai.arguments import written
from enginehouse.core.openai.bounds import MAX_MESSAGES, MAX_PARTS
from enginehouse.domain.errors import InvalidRequest

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


def test_a_turn_of_the_assistant_is_one_message_while_it_is_in_order() -> None:
    history = History("input")
    history.says("user", "hi")
    history.thinks("hm")
    history.says("assistant", ["Let", "me"])
    history.calls("c", "f", {"a": 1})
    history.calls("c", "f", {"a": 1})
    history.returns("c", ["ok"])
    history.calls("c", "f", {"a": 1})
    history.thinks("again")
    history.says("assistant", "Done")
    history.says("assistant", "Really")
    assert list(history.messages()) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "Let\nme",
            "reasoning_content": "hm",
            "tool_calls": [CALL, CALL],
        },
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "Done", "reasoning_content": "again"},
        {"role": "assistant", "content": "Really"},
    ]


def test_instructions_and_texts_of_the_user_that_follow_each_other_are_one_message() -> None:
    history = History("input")
    history.says("system", "Be")
    history.says("developer", ["brief", "please"])
    history.says("user", "one")
    history.says("user", [])
    history.says("user", ["two", "three"])
    history.returns("c", ["x", "y"])
    history.returns("c", [])
    history.says("user", "four")
    history.says("assistant", "five")
    history.says("developer", "six")
    history.says("user", "seven")
    for _ in range(2):  # looking changes nothing
        assert [(message["role"], message["content"]) for message in history.messages()] == [
            ("system", "Be\nbrief\nplease"),
            ("user", "one\ntwo\nthree"),
            ("tool", "x\ny"),
            ("tool", ""),
            ("user", "four"),
            ("assistant", "five"),
            ("developer", "six"),
            ("user", "seven"),
        ]


def test_thinking_that_the_client_did_not_keep_is_nothing() -> None:
    history = History("input")
    history.thinks("")
    history.says("assistant", "Hi")
    assert list(history.messages()) == [{"role": "assistant", "content": "Hi"}]


def test_arguments_are_written_again_as_they_were() -> None:
    text = '{"a":1,  "b":[2]}'
    assert written(History("input").arguments(text, "x")) == text
    assert written(History("input").arguments(" ", "x")) == "{}"


def test_a_turn_that_was_ended_is_not_gone_on_with() -> None:
    history = History("input")
    history.thinks("hm")
    history.end_turn()
    history.says("assistant", "Hi")
    assert [message["content"] for message in history.messages()] == ["", "Hi"]


@pytest.mark.parametrize(("text", "arguments"), [("", {}), (" ", {}), ('{"a": [1]}', {"a": [1]})])
def test_arguments_are_an_object(text: str, arguments: object) -> None:
    assert History("input").arguments(text, "input[0].arguments") == arguments


@pytest.mark.parametrize("text", ["[1]", "3", "{", '{"a":' * 2000 + "1" + "}" * 2000, "null"])
def test_other_arguments_are_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"'input\[0\]\.arguments'") as caught:
        History("input").arguments(text, "input[0].arguments")
    assert caught.value.param == "input[0].arguments"


def test_arguments_parts_and_messages_are_bounded() -> None:
    history = History("input")
    many = '{"a":[' + ",".join(["1"] * 150_000) + "]}"
    history.arguments(many, "x")
    with pytest.raises(InvalidRequest, match="values"):
        history.arguments(many, "x")
    history.says("user", [""] * MAX_PARTS)
    with pytest.raises(InvalidRequest, match="texts"):
        history.says("user", ["", ""])
    history = History("input")
    for _ in range(MAX_MESSAGES):
        history.calls("c", "f", {})
        history.end_turn()
    with pytest.raises(InvalidRequest, match="messages"):
        history.thinks("hm")
