"""What an engine's address says of it: where its KV events are, where it is met, with whom it works."""

from __future__ import annotations

import pytest

from enginehouse.domain.engine import InvalidTarget, ProtocolName, Role, Target, port_number


def test_an_address_may_say_where_kv_events_are() -> None:
    target = Target.parse("grpc://a:1?kv-events-port=5557&kv-replay-port=6557&protocol=vllm")
    assert target == Target("a", 1, protocol=ProtocolName.VLLM, kv_events_port=5557, kv_replay_port=6557)
    assert Target.parse("grpc://a:1?kv-events-port=5557") == Target("a", 1, kv_events_port=5557)
    assert target.url == "grpc://a:1"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("kv-events-port=", "kv-events-port '' is not a number from 1 to 65535"),
        ("kv-events-port=0", "kv-events-port '0' is not"),
        ("kv-events-port=65536", "kv-events-port '65536' is not"),
        ("kv-events-port=+5", "kv-events-port ' 5' is not"),
        ("kv-events-port=5&kv-replay-port=x", "kv-replay-port 'x' is not"),
        ("kv-replay-port=5", "kv-replay-port needs kv-events-port"),
        ("kv-port=5", "unknown option 'kv-port'; known are role, protocol, kv-events-port, kv-replay-port, "),
        ("bootstrap-port=x", "bootstrap-port 'x' is not a number from 1 to 65535"),
        ("bootstrap-port=65536", "bootstrap-port '65536' is not"),
        ("bootstrap-host=", "bootstrap-host '' is not a host name or address"),
        ("bootstrap-host=[fd00::5]", "bootstrap-host '[fd00::5]' is not a host name or address"),
        ("bootstrap-host=a/b", "bootstrap-host 'a/b' is not"),
        ("group=", "group '' is empty"),
        ("group=a%0Ab", "group 'a\\nb' is empty or cannot be printed"),
    ],
)
def test_a_bad_option_is_named(query: str, reason: str) -> None:
    with pytest.raises(InvalidTarget) as raised:
        Target.parse(f"grpc://a:1?{query}")
    assert reason in str(raised.value)


def test_a_target_holds_only_what_can_be() -> None:
    with pytest.raises(InvalidTarget, match="kv-events-port 0 is outside"):
        Target("a", 1, kv_events_port=0)
    with pytest.raises(InvalidTarget, match="kv-replay-port 70000 is outside"):
        Target("a", 1, kv_events_port=1, kv_replay_port=70_000)
    with pytest.raises(InvalidTarget, match="kv-replay-port needs kv-events-port"):
        Target("a", 1, kv_replay_port=1)
    with pytest.raises(InvalidTarget, match="bootstrap-port 0 is outside"):
        Target("a", 1, bootstrap_port=0)
    with pytest.raises(InvalidTarget, match="bootstrap-host 'a b' is not"):
        Target("a", 1, bootstrap_host="a b")
    with pytest.raises(InvalidTarget, match="group '' is empty"):
        Target("a", 1, group="")


def test_an_address_may_say_where_a_prefill_engine_is_met_and_with_whom_it_works() -> None:
    target = Target.parse("grpc://a:1?role=prefill&bootstrap-port=8998&bootstrap-host=fd00::5&group=blue")
    assert target == Target("a", 1, role=Role.PREFILL, bootstrap_host="fd00::5", bootstrap_port=8998, group="blue")
    assert target.url == "grpc://a:1"


@pytest.mark.parametrize("word", ["", "0", "65536", "-1", "+1", "1_0", " 1", "٣", "1" * 5000, "1.0"])
def test_what_is_no_port(word: str) -> None:
    assert port_number(word) is None


@pytest.mark.parametrize(("word", "port"), [("1", 1), ("65535", 65535), ("0080", 80)])
def test_what_is_a_port(word: str, port: int) -> None:
    assert port_number(word) == port
