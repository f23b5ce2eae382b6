"""The ledger: every charge is given back, whatever the order, and nothing is kept of who is gone."""

from hypothesis import given
from hypothesis import strategies as st

from enginehouse.core.routing.candidate import Candidate
from enginehouse.core.routing.ledger import Charge, Key, Ledger


def candidate(ledger: Ledger, name: str, incarnation: int = 1) -> Candidate:
    return Candidate(name, incarnation, name, None, ledger.load(name, incarnation, None), 0)


def test_a_charge_counts_until_it_is_released_once() -> None:
    ledger = Ledger()
    a = candidate(ledger, "a")
    ledger.keep_only(frozenset({("a", 1, None)}))
    charge = ledger.charge(a, 30, 20)
    assert (a.load.requests, a.load.tokens, a.load.prefill_tokens, ledger.in_flight) == (1, 30, 20, 1)
    charge.release()
    charge.release()
    assert (a.load.requests, a.load.tokens, a.load.prefill_tokens, ledger.in_flight) == (0, 0, 0, 0)
    ledger.check()


def test_m11_a_late_release_of_an_old_incarnation_does_not_free_the_new_ones_load() -> None:
    ledger = Ledger()
    old = ledger.charge(candidate(ledger, "a", 1), 10, 10)
    fresh = candidate(ledger, "a", 2)
    ledger.keep_only(frozenset({("a", 2, None)}))
    ledger.charge(fresh, 5, 5)
    old.release()
    assert (fresh.load.requests, fresh.load.tokens, fresh.load.prefill_tokens) == (1, 5, 5)
    ledger.check()


def test_a_withdrawn_engine_is_forgotten_after_its_last_request() -> None:
    ledger = Ledger()
    a = candidate(ledger, "a")
    ledger.keep_only(frozenset({("a", 1, None)}))
    charge = ledger.charge(a, 1, 1)
    ledger.keep_only(frozenset())
    assert [key for key, _ in ledger] == [("a", 1, None)]
    charge.release()
    assert list(ledger) == []


def test_the_first_token_ends_the_prefill_once() -> None:
    ledger = Ledger()
    a = candidate(ledger, "a")
    ledger.keep_only(frozenset({("a", 1, None)}))
    first, second = ledger.charge(a, 30, 20), ledger.charge(a, 50, 50)
    first.prefilled()
    first.prefilled()
    assert (a.load.requests, a.load.tokens, a.load.prefill_tokens) == (2, 80, 50)
    first.release()
    first.prefilled()
    assert (a.load.requests, a.load.tokens, a.load.prefill_tokens) == (1, 50, 50)
    second.release()
    second.prefilled()
    assert (a.load.requests, a.load.tokens, a.load.prefill_tokens) == (0, 0, 0)


@given(st.data())
def test_m5_after_any_history_all_counts_return_to_zero(data: st.DataObject) -> None:
    """Against a plain list of what is open."""
    ledger = Ledger()
    open_charges: list[tuple[Charge, Key, int, int]] = []
    known: frozenset[Key] = frozenset()
    names = ["a", "b", "c"]
    for _ in range(data.draw(st.integers(0, 40))):
        action = data.draw(st.sampled_from(["charge", "prefilled", "release", "fleet"]))
        if action == "charge" and known:
            name, incarnation, _rank = data.draw(st.sampled_from(sorted(known, key=str)))
            tokens = data.draw(st.integers(0, 99))
            uncached = data.draw(st.integers(0, tokens))
            charge = ledger.charge(candidate(ledger, name, incarnation), tokens, uncached)
            open_charges.append((charge, (name, incarnation, None), tokens, uncached))
        elif action == "prefilled" and open_charges:
            position = data.draw(st.integers(0, len(open_charges) - 1))
            charge, key, tokens, _uncached = open_charges[position]
            charge.prefilled()
            open_charges[position] = (charge, key, tokens, 0)
        elif action == "release" and open_charges:
            charge, *_rest = open_charges.pop(data.draw(st.integers(0, len(open_charges) - 1)))
            charge.release()
            charge.release()
        elif action == "fleet":
            pairs = data.draw(st.sets(st.tuples(st.sampled_from(names), st.integers(1, 2))))
            known = frozenset((name, incarnation, None) for name, incarnation in pairs)
            ledger.keep_only(known)
        ledger.check()
        assert ledger.in_flight == len(open_charges)
        for key, load in ledger:
            mine = [(tokens, uncached) for _, its, tokens, uncached in open_charges if its == key]
            assert load.requests == len(mine)
            assert load.tokens == sum(tokens for tokens, _ in mine)
            assert load.prefill_tokens == sum(uncached for _, uncached in mine)
        assert {key for _, key, _, _ in open_charges} <= {key for key, _ in ledger}
    for charge, *_rest in open_charges:
        charge.release()
    ledger.keep_only(frozenset())
    ledger.check()
    assert list(ledger) == []
