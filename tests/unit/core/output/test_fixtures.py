import pytest
from canitoolcall.fixtures import Fixture

from tests.unit.core.output.replay import EXPECTATIONS_NOT_OURS, FIXTURES, family_of, rows_of


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.id)
def test_every_fixture_is_read_as_it_expects_in_whole_and_in_pieces(fixture: Fixture) -> None:
    failed = rows_of(fixture, family_of(fixture.reference_model))
    if fixture.id in EXPECTATIONS_NOT_OURS:
        assert failed, "it passes: it needs no exception"
        assert {row.check for row in failed} <= {"expected_match", "expected_error"}
    else:
        assert not failed, f"{fixture.raw_output!r}: {failed[0]}"


def test_exceptions_are_fixtures() -> None:
    assert set(EXPECTATIONS_NOT_OURS) <= {fixture.id for fixture in FIXTURES}
