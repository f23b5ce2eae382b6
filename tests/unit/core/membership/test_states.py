"""The table of moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginehouse.core.membership.diagram import fill, mermaid
from enginehouse.core.membership.states import TABLE, Cause, ImpossibleMove, State, permit


def test_every_state_is_in_the_table_and_only_gone_is_final() -> None:
    assert set(TABLE) == set(State)
    assert [state for state in State if not TABLE[state]] == [State.GONE]


def test_every_state_but_the_first_can_be_reached() -> None:
    reached = {State.WAITING}
    while True:
        more = {to for state in reached for targets in TABLE[state].values() for to in targets} - reached
        if not more:
            break
        reached |= more
    assert reached == set(State)


def test_every_cause_moves_something() -> None:
    assert {cause for row in TABLE.values() for cause in row} == set(Cause)


def test_wherever_it_stands_it_can_be_let_go() -> None:
    for state in set(State) - {State.DRAINING, State.GONE}:
        assert TABLE[state][Cause.LET_GO] in ({State.GONE}, {State.DRAINING})


@pytest.mark.parametrize(
    ("state", "cause", "to"),
    [
        (State.WAITING, Cause.PROBED, State.SERVING),
        (State.FAILED, Cause.CHECK_PASSED, State.SERVING),
        (State.DRAINING, Cause.MAY_SERVE, State.SERVING),
        (State.GONE, Cause.MAY_SERVE, State.PROBING),
        (State.SERVING, Cause.DOUBTED, State.GONE),
    ],
)
def test_a_move_that_is_not_listed_is_a_bug(state: State, cause: Cause, to: State) -> None:
    with pytest.raises(ImpossibleMove):
        permit(state, cause, to)


def test_the_page_shows_this_table() -> None:
    page = (Path(__file__).parents[4] / "docs" / "membership.md").read_text()
    assert fill(page) == page, "run scripts/membership-diagram"


def test_the_picture_has_every_move_between_different_states_but_those_straight_to_gone() -> None:
    picture = mermaid()
    for state, row in TABLE.items():
        for cause, targets in row.items():
            for to in targets - {state, State.GONE}:
                line = next(line for line in picture.splitlines() if line.startswith(f"    {state} --> {to}: "))
                assert cause in line


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="diagram: generated"):
        fill("# Nothing here")
