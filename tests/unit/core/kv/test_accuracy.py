"""When predictions are corrected, when they are no longer believed, and what brings them back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.kv.accuracy import ERROR_BOUNDS, RIGHT_FROM, WINDOW, Accuracy, Verdict, bucket


def observed(*pairs: tuple[int, int], block: int = 16) -> Accuracy:
    accuracy = Accuracy()
    for predicted, reported in pairs:
        accuracy.observe(predicted, reported, block)
    return accuracy


def test_right_predictions_are_left_alone() -> None:
    accuracy = observed(*[(320, 320)] * 50)
    assert (accuracy.verdict, accuracy.correction) == (Verdict.RIGHT, 1.0)


@pytest.mark.parametrize("misses", [1, WINDOW // 2])
def test_races_do_not_downgrade(misses: int) -> None:
    """Blocks evicted between choice and prefill: some predictions come to nothing."""
    rounds = ([(320, 0)] * misses + [(320, 320)] * (WINDOW - misses)) * 10
    assert observed(*rounds).verdict is Verdict.RIGHT


def test_one_miss_takes_nothing_off_the_next_prediction() -> None:
    assert observed((320, 0)).correction == 1.0
    assert observed((320, 0), (320, 0)).correction < 0.8


def test_wrong_predictions_are_corrected_before_they_are_judged() -> None:
    accuracy = observed(*[(320, 0)] * 5)
    assert accuracy.verdict is Verdict.RIGHT
    assert accuracy.correction < 0.55


def test_persistently_wrong() -> None:
    assert observed(*[(320, 0)] * (WINDOW - 1)).verdict is Verdict.RIGHT
    assert observed(*[(320, 0)] * WINDOW).verdict is Verdict.WRONG
    assert observed(*[(320, 150)] * WINDOW).verdict is Verdict.WRONG
    assert observed(*[(320, 160)] * WINDOW).verdict is Verdict.RIGHT


def test_requests_without_a_prediction_say_nothing_of_wrong_ones() -> None:
    assert observed(*[(320, 0), (0, 0), (15, 0)] * (WINDOW - 1)).verdict is Verdict.RIGHT


def test_wrong_ones_come_back_only_when_they_are_clearly_right() -> None:
    accuracy = observed(*[(320, 0)] * WINDOW)
    for _ in range(3 * WINDOW):
        accuracy.observe(100, int(100 * RIGHT_FROM) - 1, 16)
    assert accuracy.verdict is Verdict.WRONG
    for _ in range(WINDOW):
        accuracy.observe(320, 320, 16)
    assert accuracy.verdict is Verdict.RIGHT


def test_k6_hits_that_nothing_foretold_are_noticed() -> None:
    accuracy = observed(*[(0, 320)] * WINDOW)
    assert accuracy.verdict is Verdict.BLIND
    for _ in range(WINDOW):
        accuracy.observe(320, 320, 16)
    assert accuracy.verdict is Verdict.RIGHT


def test_what_was_on_its_way_is_not_missed() -> None:
    accuracy = Accuracy()
    for _ in range(3 * WINDOW):
        accuracy.observe(0, 320, 16, likely=320)
    assert accuracy.verdict is Verdict.RIGHT


def test_less_than_a_block_found_is_no_hit() -> None:
    """SGLang reports tokens of pages that are shared by chance; one token is no sign of a missing index."""
    assert observed(*[(0, 15)] * 50).verdict is Verdict.RIGHT


def test_a_new_beginning_keeps_the_verdict_until_it_is_disproved() -> None:
    accuracy = observed(*[(320, 0)] * WINDOW)
    accuracy.restart()
    assert (accuracy.verdict, accuracy.correction) == (Verdict.WRONG, 1.0)
    for _ in range(WINDOW):
        accuracy.observe(320, 320, 16)
    assert accuracy.verdict is Verdict.RIGHT


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 2000)), max_size=60))
def test_bounds(pairs: list[tuple[int, int]]) -> None:
    accuracy = observed(*pairs)
    assert 0 <= accuracy.correction <= 1
    if all(reported >= predicted for predicted, reported in pairs):
        assert accuracy.verdict is not Verdict.WRONG
    if all(reported <= predicted for predicted, reported in pairs):
        assert accuracy.verdict is not Verdict.BLIND


@pytest.mark.parametrize(
    ("predicted", "reported", "bound"),
    [(320, 320, 0.0), (320, 0, -0.25), (0, 320, 0.5), (0, 1000, 1.0), (1000, 0, -0.5), (304, 320, 0.02)],
)
def test_errors_are_counted_by_their_size(predicted: int, reported: int, bound: float) -> None:
    assert ERROR_BOUNDS[bucket(predicted, reported, 1000)] == bound
