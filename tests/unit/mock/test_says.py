"""What a mock engine says instead of its words, and how likely it finds what it says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.domain.constraint import Constraint, JsonObject, JsonSchema, OneOf, Regex
from enginehouse.mock import text
from enginehouse.mock.embedding import embedding
from enginehouse.mock.instance import Unsayable
from enginehouse.mock.likely import likely
from enginehouse.mock.says import said
from enginehouse.mock.settings import Faults, MockSettings
from enginehouse.mock.simulator import End, Job, Simulator
from enginehouse.mock.vocabulary import load_vocabulary

VOCABULARY = load_vocabulary()
FOLDER = VOCABULARY.folder


def says(faults: Faults, prompt: str = "hello", constraint: Constraint | None = None) -> str:
    return text.decode(FOLDER, said(faults, VOCABULARY, text.encode(FOLDER, prompt), constraint))


@pytest.mark.parametrize(
    "wanted",
    ["so be it", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "naïve 😀 ภาษา", "<|im_start|>x"],
)
def test_any_text_token_for_token(wanted: str) -> None:
    assert says(Faults(say=wanted)) == wanted


def test_special_tokens_are_single_tokens() -> None:
    assert said(Faults(say="<|im_start|>"), VOCABULARY, [300], None) == [1]


def test_by_a_part_of_the_prompt_and_else_the_text_for_all() -> None:
    told = Faults(say="else", say_to=json.dumps({"weather": "rain", "<|im_start|>tool": "done", "": "any"}))
    assert says(told, "what weather is it") == "rain"
    assert says(told, "weather<|im_end|><|im_start|>tool") == "rain"  # the first that fits
    assert says(told, "<|im_start|>tool\n5") == "done"
    assert says(told, "hello") == "any"
    assert says(Faults(say="else", say_to='{"weather": "rain"}'), "hello") == "else"


def test_what_it_is_held_to() -> None:
    assert says(Faults(), constraint=JsonObject()) == "{}"
    assert says(Faults(), constraint=JsonSchema('{"type": "array"}')) == "[]"
    assert says(Faults(), constraint=OneOf(("b", "a"))) == "b"
    assert says(Faults(say="as told"), constraint=OneOf(("b", "a"))) == "as told"
    with pytest.raises(Unsayable, match="Regex"):
        says(Faults(), constraint=Regex("a"))


def test_nothing_told_are_its_words() -> None:
    assert said(Faults(), VOCABULARY, [300], None) == []


@pytest.mark.parametrize("bad", ["[]", "{", '{"a": 1}'])
def test_bad_texts_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="say_to"):
        Faults(say_to=bad)


def run(**more: object) -> tuple[list[int], End | None]:
    simulator = Simulator(MockSettings(tokens_per_second=0.0), VOCABULARY)
    job = Job("r", [300], 6, said=[500, 501, 502], **more)  # type: ignore[arg-type]
    answer = simulator.submit(job)
    while answer.end is None:
        simulator.step(0.0)
        answer.taken = len(answer.output)
    return answer.output, answer.end


def test_it_ends_after_what_it_says_unless_it_must_not() -> None:
    eos = VOCABULARY.eos
    assert run() == ([500, 501, 502, eos], End.STOP)
    assert run(stop_ids=frozenset({501})) == ([500, 501], End.STOP)
    assert run(ignore_eos=True) == ([500, 501, 502, eos, eos, eos], End.LENGTH)


@given(st.integers(0, 3071), st.integers(0, 20))
def test_likely_tokens_are_in_order_and_the_token_is_where_its_rank_says(token: int, most: int) -> None:
    found = likely(token, most, 3072)
    values = [value for _, value in found.best]
    assert len(values) == most
    assert values == sorted(values, reverse=True)
    assert len({other for other, _ in found.best}) == most
    assert ((token, found.logprob) in found.best) is (found.rank <= most)
    if found.rank <= most:
        assert found.best[found.rank - 1] == (token, found.logprob)


def test_embeddings_are_of_the_prompt() -> None:
    one = embedding([1, 2, 3], 64)
    assert (len(one), one) == (64, embedding([1, 2, 3], 64))
    assert embedding([1, 2, 4], 64) != one
    assert all(-1 <= value <= 1 and value and value * 128 == int(value * 128) for value in one)
