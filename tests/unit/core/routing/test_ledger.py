"""The ledger: every charge is given back, whatever the order, and nothing is kept of who is gone."""

from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.ledger import Charge, Ledger


def candidate(ledger: Ledger, name: str, incarnation: int = 1) -> Candidate:
    return Candidate(name, incarnation, name, None, ledger.load(name, incarnation, None), 0)


def test_a_charge_counts_until_it_is_released_once() -> None:
    ledger = Ledger()
    a = candidate(ledger, "a")
    ledger.keep_only(frozenset({("a", 1, None)}))
    charge = ledger.charge(a, 30)
    assert (a.load.requests, a.load.tokens, ledger.in_flight) == (1, 30, 1)
    charge.release()
    charge.release()
    assert (a.load.requests, a.load.tokens, ledger.in_flight) == (0, 0, 0)
    ledger.check()


def test_m11_a_late_release_of_an_old_incarnation_does_not_free_the_new_ones_load() -> None:
    ledger = Ledger()
    old = ledger.charge(candidate(ledger, "a", 1), 10)
    fresh = candidate(ledger, "a", 2)
    ledger.keep_only(frozenset({("a", 2, None)}))
    ledger.charge(fresh, 5)
    old.release()
    assert (fresh.load.requests, fresh.load.tokens) == (1, 5)
    ledger.check()


def test_a_withdrawn_engine_is_forgotten_after_its_last_request() -> None:
    ledger = Ledger()
    a = candidate(ledger, "a")
    ledger.keep_only(frozenset({("a", 1, None)}))
    charge = ledger.charge(a, 1)
    ledger.keep_only(frozenset())
    assert [key for key, _ in ledger] == [("a", 1, None)]
    charge.release()
    assert list(ledger) == []


@given(st.data())
def test_m5_after_any_history_all_counts_return_to_zero(data: st.DataObject) -> None:
    ledger = Ledger()
    open_charges: list[Charge] = []
    names = ["a", "b", "c"]
    for _ in range(data.draw(st.integers(0, 40))):
        action = data.draw(st.sampled_from(["charge", "release", "fleet"]))
        if action == "charge":
            name, incarnation = data.draw(st.sampled_from(names)), data.draw(st.integers(1, 2))
            open_charges.append(ledger.charge(candidate(ledger, name, incarnation), data.draw(st.integers(0, 99))))
        elif action == "release" and open_charges:
            open_charges.pop(data.draw(st.integers(0, len(open_charges) - 1))).release()
        elif action == "fleet":
            keep = data.draw(st.sets(st.sampled_from(names)))
            ledger.keep_only(frozenset((name, 1, None) for name in keep))
        assert ledger.in_flight == len(open_charges)
    for charge in open_charges:
        charge.release()
    ledger.keep_only(frozenset())
    ledger.check()
    assert list(ledger) == []
