import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.openai.parse import parse_chat, parse_completion
from enginehouse.core.openai.plan import (
    UNKNOWN_CONTEXT_ANSWER,
    UNKNOWN_CONTEXT_PROMPT,
    most_prompt_tokens,
    plan_max_tokens,
)
from enginehouse.core.openai.requests import ChatRequest
from enginehouse.domain.errors import ContextLengthExceeded, InvalidRequest


def chat(**more: Any) -> ChatRequest:
    return parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]} | more).encode())


def test_g11_without_a_limit_the_answer_may_fill_the_context() -> None:
    assert plan_max_tokens(chat(), [1] * 10, 100) == 90
    assert plan_max_tokens(chat(), [1] * 99, 100) == 1


def test_g11_a_limit_is_kept_up_to_the_last_token() -> None:
    assert plan_max_tokens(chat(max_tokens=5), [1] * 10, 100) == 5
    assert plan_max_tokens(chat(max_tokens=90), [1] * 10, 100) == 90


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        plan_max_tokens(chat(max_completion_tokens=91), [1] * 10, 100)
    assert caught.value.param == "max_completion_tokens"
    assert all(number in caught.value.message for number in ("10", "91", "101", "100", "90"))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert (caught.value.asked, caught.value.limit) == ((10, 91), 100)

    with pytest.raises(ContextLengthExceeded, match=r"100 tokens.*at most 99 fits") as caught:
        plan_max_tokens(chat(), [1] * 100, 100)
    assert caught.value.param == "messages"
    assert (caught.value.asked, caught.value.limit) == ((100,), 99)

    with pytest.raises(ContextLengthExceeded, match="at most 8") as caught:
        plan_max_tokens(chat(), [1] * 9, 100, 8)
    assert (caught.value.asked, caught.value.limit) == ((9,), 8)

    with pytest.raises(ContextLengthExceeded, match="'min_tokens' can be at most 90"):
        plan_max_tokens(chat(min_tokens=91), [1] * 10, 100)


def test_an_engine_that_does_not_say_its_context_gets_a_bounded_answer() -> None:
    assert plan_max_tokens(chat(), [1], None) == UNKNOWN_CONTEXT_ANSWER
    assert plan_max_tokens(chat(max_tokens=7), [1], None) == 7


@pytest.mark.parametrize(("context", "longest", "most"), [(100, None, 99), (100, 8, 8), (100, 200, 99), (1, None, 1)])
def test_the_longest_prompt_is_known_before_it_is_encoded(context: int, longest: int | None, most: int) -> None:
    assert most_prompt_tokens(context, longest) == most
    if context > 1:
        assert plan_max_tokens(chat(), [1] * most, context, longest) == context - most
    with pytest.raises(ContextLengthExceeded):
        plan_max_tokens(chat(), [1] * (most + 1), context, longest)
    assert most_prompt_tokens(None) == UNKNOWN_CONTEXT_PROMPT
    assert most_prompt_tokens(None, 8) == 8


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no tokens"):
        plan_max_tokens(chat(), [], 100)


def test_ids_that_the_model_does_not_have_are_named() -> None:
    request = parse_completion(b'{"model": "m", "prompt": [1, 50, 2]}')
    with pytest.raises(InvalidRequest, match=r"'prompt\[1\]' is 50.*end at 49") as caught:
        plan_max_tokens(request, [1, 50, 2], 100, None, 50)
    assert caught.value.param == "prompt"
    assert plan_max_tokens(request, [1, 50, 2], 100, None, 51) == 97
    with pytest.raises(InvalidRequest, match=r"'stop_token_ids\[0\]' is 50"):
        plan_max_tokens(chat(stop_token_ids=[50]), [1], 100, None, 50)
    with pytest.raises(InvalidRequest, match=r"'logit_bias' has the key 50; this model's token ids end at 49"):
        plan_max_tokens(chat(logit_bias={"49": 1, "50": 1}), [1], 100, None, 50)
    several = parse_completion(json.dumps({"model": "m", "prompt": [[1], [2, 50]]}).encode())
    assert plan_max_tokens(several, (1,), 100, None, 50) == 99
    with pytest.raises(InvalidRequest, match=r"'prompt\[1\]\[1\]' is 50"):
        plan_max_tokens(several, several.more_prompts[0], 100, None, 50)


@given(
    st.integers(0, 40),
    st.none() | st.integers(1, 40),
    st.integers(0, 40),
    st.integers(1, 40),
    st.none() | st.integers(1, 40),
)
def test_whatever_is_dispatched_fits(
    prompt: int, limit: int | None, least: int, context: int, longest: int | None
) -> None:
    try:
        planned = plan_max_tokens(chat(max_tokens=limit, min_tokens=least), [1] * prompt, context, longest)
    except InvalidRequest:
        fits = 0 < prompt <= (longest or context) and prompt + max(limit or 1, least, 1) <= context
        assert not fits or least > (limit or least)
        return
    assert planned >= max(1, least)
    assert prompt > 0
    assert prompt + planned <= context
    assert planned == (limit or context - prompt)
