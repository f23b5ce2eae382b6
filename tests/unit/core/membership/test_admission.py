"""Who may join: model card, roles, topology."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enginehouse.core.membership.intents import CutStreams, Drain
from enginehouse.core.membership.roles import RoleRefused, Topology, decide_topology, settle_role
from enginehouse.core.membership.states import State
from enginehouse.domain.engine import ProtocolName, Role

from .playbook import Playbook, wanted

A, P, D = Role.AGGREGATED, Role.PREFILL, Role.DECODE


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": "other"}, "serves model 'other', but this fleet serves 'm'"),
        ({"context_length": 8192}, "context length 8192 differs from the fleet's 4096"),
        ({"block_size": 64}, "KV block size 64 differs from the fleet's 16"),
        ({"tokenizer_digest": "e" * 64}, "tokenizer eeeeeeeeeeee differs from the fleet's dddddddddddd"),
    ],
)
def test_d17_an_engine_that_differs_is_refused_with_both_values(fields: dict[str, object], reason: str) -> None:
    play = Playbook()
    play.serve("a")
    play.apply(wanted("b", "10.0.0.2:9000"))
    play.probed("b", **fields)
    assert play.state("b") is State.REFUSED
    assert play.reason("b") == reason
    assert play.serving == {"a"}
    assert play.entry("b").next_at is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"model_path": "/b/model", "tokenizer_path": "/b/tokenizer"},
        {"model": "n", "aliases": ("m",)},
        {"tokenizer_digest": None},
        {"block_size": None},
        {"context_length": None},
    ],
)
def test_d17_what_differs_only_in_paths_or_is_not_known_is_accepted(fields: dict[str, object]) -> None:
    play = Playbook()
    play.serve("a", model_path="/a/model", tokenizer_path="/a/tokenizer")
    play.serve("b", "10.0.0.2:9000", **fields)
    assert play.serving == {"a", "b"}
    assert play.fleet.card is not None
    assert play.fleet.card.model == "m"


def test_the_card_learns_what_the_first_engine_did_not_say_and_forgets_it_with_who_did() -> None:
    play = Playbook()
    play.serve("a", block_size=None)
    assert play.fleet.card is not None
    assert play.fleet.card.block_size is None
    b = play.serve("b", "10.0.0.2:9000", block_size=64)
    assert play.fleet.card.block_size == 64
    play.delete("b")
    play.idle("b", b)
    assert play.fleet.card.block_size is None
    play.serve("c", "10.0.0.3:9000", block_size=32)
    assert play.fleet.card.block_size == 32


def test_the_name_stays_when_its_first_engine_goes() -> None:
    play = Playbook()
    play.serve("a", model="m", aliases=("n",))
    play.serve("b", "10.0.0.2:9000", model="n", aliases=("m",))
    play.delete("a")
    assert play.fleet.card is not None
    assert play.fleet.card.model == "m"


def test_d16_another_generation_joins_in_the_step_that_takes_the_last_of_the_old() -> None:
    play = Playbook()
    play.serve("a1")
    play.serve("a2", "10.0.0.2:9000")
    for name, authority in (("b1", "10.0.0.3:9000"), ("b2", "10.0.0.4:9000")):
        play.apply(wanted(name, authority))
        play.probed(name, context_length=8192)
        assert play.state(name) is State.REFUSED
    play.delete("a1")
    assert play.serving == {"a2"}
    play.apply(wanted("a2", "10.0.0.2:9000", eligible=False, reason="terminating"))
    assert play.serving == {"b1", "b2"}
    assert play.fleet.card is not None
    assert play.fleet.card.context_length == 8192
    play.apply(wanted("a2", "10.0.0.2:9000"))
    assert play.state("a2") is State.REFUSED


def test_d16_draining_engines_do_not_hold_the_card() -> None:
    play = Playbook()
    a = play.serve("a")
    play.delete("a")
    assert play.fleet.find("a", a) is not None
    play.serve("b", "10.0.0.2:9000", context_length=8192)
    assert play.serving == {"b"}


def test_of_several_groups_that_wait_the_largest_joins_then_the_oldest() -> None:
    play = Playbook()
    play.serve("a")
    for number, length in enumerate((1000, 2000, 2000, 1000, 3000), 2):
        play.apply(wanted(f"e{number}", f"10.0.0.{number}:9000"))
        play.probed(f"e{number}", context_length=length)
    play.delete("a")
    assert play.serving == {"e2", "e5"}


def test_an_unready_fleet_keeps_its_card() -> None:
    play = Playbook()
    play.serve("a")
    play.apply(wanted("a", eligible=False))
    assert play.fleet.card is not None
    play.wait(60)
    assert play.fleet.card is None


def test_a_model_name_given_by_the_operator_is_never_given_up() -> None:
    play = Playbook(model="mine")
    play.apply(wanted("a"))
    play.probed("a", model="other")
    assert play.state("a") is State.REFUSED
    assert play.reason("a") == "serves model 'other', but this fleet serves 'mine'"
    assert play.fleet.card is None
    play.serve("b", "10.0.0.2:9000", model="x", aliases=("mine",))
    assert play.fleet.card is not None
    assert play.fleet.card.model == "mine"
    assert play.fleet.card.answers_to("x")
    play.delete("b")
    assert not play.serving


def test_a_member_that_says_something_else_after_a_check_is_refused_if_others_stay() -> None:
    play = Playbook()
    play.serve("a", instance_id="1")
    play.serve("b", "10.0.0.2:9000", instance_id="2")
    play.wait(15)
    play.passed("a", instance_id="1", context_length=100)
    assert play.serving == {"b"}
    assert play.reason("a") == "context length 100 differs from the fleet's 4096"


def test_a_lone_member_that_says_something_else_changes_the_card() -> None:
    play = Playbook()
    play.serve("a", instance_id="1")
    play.wait(15)
    play.passed("a", instance_id="1", context_length=100)
    assert play.serving == {"a"}
    assert play.fleet.card is not None
    assert play.fleet.card.context_length == 100


@pytest.mark.parametrize(
    ("hint", "reported", "topology", "role"),
    [
        (None, None, Topology.AGGREGATED, A),
        (None, None, Topology.DISAGGREGATED, D),
        (P, None, Topology.DISAGGREGATED, P),
        (None, P, Topology.DISAGGREGATED, P),
        (D, D, Topology.DISAGGREGATED, D),
        (A, None, Topology.AGGREGATED, A),
        (P, D, Topology.DISAGGREGATED, "role prefill was asked for, but the engine reports decode"),
        (A, P, Topology.AGGREGATED, "role aggregated was asked for, but the engine reports prefill"),
        (P, None, Topology.AGGREGATED, "a prefill engine has no place in an aggregated fleet"),
        (None, D, Topology.AGGREGATED, "a decode engine has no place in an aggregated fleet"),
        (None, A, Topology.DISAGGREGATED, "an aggregated engine has no place in a disaggregated fleet"),
    ],
)
def test_roles(hint: Role | None, reported: Role | None, topology: Topology, role: Role | str) -> None:
    if isinstance(role, Role):
        assert settle_role(hint, reported, topology) is role
    else:
        with pytest.raises(RoleRefused, match=role):
            settle_role(hint, reported, topology)


@pytest.mark.parametrize(
    ("reported", "hints", "topology"),
    [
        (None, [], Topology.AGGREGATED),
        (A, [None, A], Topology.AGGREGATED),
        (P, [None], Topology.DISAGGREGATED),
        (D, [None], Topology.DISAGGREGATED),
        (None, [None, P], Topology.DISAGGREGATED),
        (A, [D], Topology.DISAGGREGATED),
    ],
)
def test_auto_topology(reported: Role | None, hints: list[Role | None], topology: Topology) -> None:
    assert decide_topology(reported, hints)[0] is topology


def test_the_topology_is_decided_by_the_first_engine_and_stays() -> None:
    play = Playbook()
    assert play.fleet.topology is Topology.AUTO
    play.serve("a")
    assert play.fleet.topology is Topology.AGGREGATED
    play.apply(wanted("p", "10.0.0.2:9000", role=P))
    play.probed("p")
    assert play.state("p") is State.REFUSED
    assert play.reason("p").startswith("a prefill engine has no place in an aggregated fleet")
    play.delete("a")
    assert play.fleet.topology is Topology.AGGREGATED
    assert not play.serving


def test_hints_make_an_engine_without_a_role_of_its_own_prefill_or_decode() -> None:
    play = Playbook()
    play.list(wanted("d", "10.0.0.1:9000"), wanted("p", "10.0.0.2:9000", role=P))
    play.probed("d")
    play.probed("p")
    assert play.fleet.topology is Topology.DISAGGREGATED
    assert (play.entry("d").role, play.entry("p").role) == (D, P)


def test_a_configured_topology_is_in_force_from_the_start() -> None:
    play = Playbook(topology=Topology.DISAGGREGATED)
    play.apply(wanted("a"))
    play.probed("a", role=A)
    assert play.state("a") is State.REFUSED
    assert play.fleet.card is None


def test_an_engine_refused_for_its_role_neither_seeds_the_card_nor_holds_it() -> None:
    play = Playbook(topology=Topology.AGGREGATED)
    play.apply(wanted("p", "10.0.0.2:9000"))
    play.probed("p", role=P, context_length=1)
    play.serve("a")
    number = play.number("a")
    assert play.fleet.card is not None
    assert play.fleet.card.context_length == 4096
    assert play.delete("a") == [Drain("a", number)]
    assert play.fleet.card is None
    assert play.wait(300).count(CutStreams("a", number)) == 1


def test_a_prefill_engine_of_sglang_that_nobody_could_meet_is_refused_and_seeds_nothing() -> None:
    play = Playbook(topology=Topology.DISAGGREGATED)
    play.apply(wanted("p", "10.0.0.2:9000"))
    play.probed("p", protocol=ProtocolName.SGLANG, role=P, context_length=1)
    assert play.state("p") is State.REFUSED
    assert play.reason("p").startswith("does not say its bootstrap port")
    assert play.fleet.card is None
    play.serve("d", protocol=ProtocolName.SGLANG, role=D)
    play.wait(15)
    play.passed("p", protocol=ProtocolName.SGLANG, role=P, bootstrap_port=8998)
    assert play.serving == {"p", "d"}


def test_an_operator_can_say_where_a_prefill_engine_is_met() -> None:
    play = Playbook()
    want = wanted("p", "10.0.0.2:9000")
    assert want.target is not None
    play.apply(replace(want, target=replace(want.target, bootstrap_port=8998)))
    play.probed("p", protocol=ProtocolName.SGLANG, role=P)
    assert play.serving == {"p"}
