"""Label selectors as the API server reads them."""

from __future__ import annotations

import pytest

from enginehouse.core.selector import selector_fault


@pytest.mark.parametrize(
    "selector",
    [
        "app=sglang", "app==a,tier!=b", "app", "!app", "! app", "app in (a,b),x notin (c)", "example.com/role=head",
        "a=,b", "a!=", "x in (a,)", "in in (in)", "app in(a, b)", " a = b , c ", "size>5", "A_b.c-d=E_f.g-h",
        "a=" + "v" * 63, "k" * 63, "nvidia.com/dynamo-sub-component-type=prefill",
    ],
)  # fmt: skip
def test_good_selectors_pass(selector: str) -> None:
    assert selector_fault(selector) is None


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("", "select every pod"),
        (" ", "select every pod"),
        ("app=a b", "no requirement: 'app=a b'"),
        ("app in a", "no requirement"),
        ("appin (a)", "no requirement"),
        ("(app)", "no requirement"),
        ("app=a,,b", "no requirement: ''"),
        ("app=a,", "no requirement: ''"),
        ("app=a)", "parentheses"),
        ("app in (a", "parentheses"),
        ("!app=a", "no requirement"),
        ("app=!a", "no requirement"),
        ("app===a", "no requirement"),
        ("=a", "no requirement"),
        ("x in ()", "empty set"),
        ("x in (a b)", "'a b'"),
        ("app=-a", "'-a', which no label can have"),
        ("app=a/b", "'a/b', which no label can have"),
        ("app='a'", "which no label can have"),
        ("a=" + "v" * 64, "at most 63"),
        ("k" * 64, "no label's name"),
        ("_a=b", "'_a', which is no label's name"),
        ("/a=b", "before the slash"),
        ("Ex.com/a=b", "before the slash"),
        ("a/b/c=d", "before the slash"),
        ("size>big", "no whole number"),
        ("äpp=a", "no label's name"),
    ],
)
def test_bad_selectors_are_found_before_the_api_server_sees_them(selector: str, said: str) -> None:
    assert said in str(selector_fault(selector))
