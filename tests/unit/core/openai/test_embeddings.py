"""Bodies of `/v1/embeddings`: what becomes of them; that long ones cost no more than they hold."""

import json
from typing import Any

import pytest

from enginehouse.core.openai.embeddings import EmbeddingRequest, parse_embedding
from enginehouse.domain.errors import InvalidRequest


def read(given: Any, **more: Any) -> EmbeddingRequest:
    return parse_embedding(json.dumps({"model": "m", "input": given, **more}).encode())


def test_what_is_asked_for() -> None:
    assert read("x") == EmbeddingRequest("m", ("x",))
    assert read(["x", "y"]) == EmbeddingRequest("m", ("x", "y"))
    assert read([1, 2]) == EmbeddingRequest("m", ((1, 2),))
    assert read([[1], [2]], encoding_format="base64", add_special_tokens=False, user="u") == EmbeddingRequest(
        "m", ((1,), (2,)), True, False
    )


def test_token_ids_may_be_more_than_other_values() -> None:
    assert len(read([7] * 250_000).inputs[0]) == 250_000
    assert [len(one) for one in read([[7] * 150_000] * 2).inputs] == [150_000] * 2
    with pytest.raises(InvalidRequest, match=r"'input\[249999\]' is out of range") as caught:
        read([*[7] * 249_999, -1])
    assert caught.value.param == "input"
    with pytest.raises(InvalidRequest) as caught:
        read([None] * 250_000)
    assert caught.value.param == "input"


@pytest.mark.parametrize("given", [{}, None, True, [[]], [["x"]], [1, "x"], [1.5], "", [""] * 2])
def test_o8_what_is_no_input_is_refused_by_its_name(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="'input") as caught:
        read(given)
    assert caught.value.param == "input"
