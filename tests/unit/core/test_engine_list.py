"""The content of an engines file: taken whole, or refused with the place of the first fault."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehouse.core.engine_list import BadList, engines, read_engine_list
from enginehouse.domain.engine import InvalidTarget, ProtocolName, Role, Target


def test_addresses_and_maps() -> None:
    content = b"""\
# the west rack
- grpc://10.0.0.1:30001
- grpcs://[fd00::5]:30001?role=prefill&protocol=vllm
- url: grpc://10.0.0.2:30001
  role: decode
  protocol: sglang
  name: big one
"""
    wanted = read_engine_list(content)
    assert not isinstance(wanted, BadList)
    assert [one.target for one in wanted] == [
        Target("10.0.0.1", 30001),
        Target("fd00::5", 30001, True, Role.PREFILL, ProtocolName.VLLM),
        Target("10.0.0.2", 30001, False, Role.DECODE, ProtocolName.SGLANG),
    ]
    assert [one.engine_id for one in wanted] == [
        "grpc://10.0.0.1:30001",
        "grpcs://[fd00::5]:30001",
        "grpc://10.0.0.2:30001",
    ]
    assert wanted[2].name == "big one"
    assert all(one.eligible and one.owner == one.engine_id for one in wanted)


def test_an_empty_list_is_a_list() -> None:
    assert read_engine_list(b"[]") == ()
    assert read_engine_list(b"\xef\xbb\xbf[]\n") == ()


def test_changed_hints_are_another_generation() -> None:
    plain, hinted = engines([Target("a", 1)])[0], engines([Target("a", 1, role=Role.PREFILL)])[0]
    assert plain.engine_id == hinted.engine_id
    assert plain.generation != hinted.generation


def test_an_entry_may_say_where_kv_events_are() -> None:
    wanted = read_engine_list(
        b"- grpc://a:1?kv-events-port=5&kv-replay-port=6\n"
        b"- {url: 'grpc://b:1', kv-events-port: 5, kv-replay-port: 6}\n"
        b"- {url: 'grpc://c:1?kv-events-port=5', kv-events-port: 5}\n"
    )
    assert not isinstance(wanted, BadList)
    assert [(one.target.kv_events_port, one.target.kv_replay_port) for one in wanted if one.target] == [
        (5, 6),
        (5, 6),
        (5, None),
    ]


def test_an_entry_may_say_where_it_is_met_and_with_whom_it_works() -> None:
    wanted = read_engine_list(
        b"- grpc://a:1?bootstrap-port=5&bootstrap-host=h&group=blue\n"
        b"- {url: 'grpc://b:1', role: prefill, bootstrap-port: 5, bootstrap-host: h, group: blue}\n"
        b"- {url: 'grpc://c:1?group=blue', group: blue}\n"
    )
    assert not isinstance(wanted, BadList)
    assert [one.target for one in wanted] == [
        Target("a", 1, bootstrap_host="h", bootstrap_port=5, group="blue"),
        Target("b", 1, role=Role.PREFILL, bootstrap_host="h", bootstrap_port=5, group="blue"),
        Target("c", 1, group="blue"),
    ]


@pytest.mark.parametrize(
    "other",
    [
        Target("a", 1),
        Target("a", 1, bootstrap_port=6),
        Target("a", 1, bootstrap_port=5, bootstrap_host="h"),
        Target("a", 1, bootstrap_port=5, group="blue"),
    ],
)
def test_a_changed_meeting_point_or_group_is_another_generation(other: Target) -> None:
    before, after = engines([Target("a", 1, bootstrap_port=5)])[0], engines([other])[0]
    assert before.engine_id == after.engine_id
    assert before.generation != after.generation


@pytest.mark.parametrize(
    "other", [Target("a", 1, kv_events_port=5), Target("a", 1, kv_events_port=5, kv_replay_port=6)]
)
def test_changed_kv_ports_are_another_generation(other: Target) -> None:
    before = engines([Target("a", 1, kv_events_port=7)])[0]
    assert engines([other])[0].generation not in (before.generation, engines([Target("a", 1)])[0].generation)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "line 1, column 1: empty; write []"),
        (b"# nothing yet\n", "line 1, column 1: empty; write []"),
        (b"engines: []", "line 1, column 1: not a list"),
        (b"- grpc://a:1\n- http://b:2\n", "line 2, column 3 (entry 2): 'http://b:2': scheme 'http'"),
        (b"- grpc://a:1\n-\n", "line 2, column 2 (entry 2): expected an address"),
        (b'- "\\UFFFFFFFF"\n', "not YAML: a value in it cannot be"),
        (b"- [grpc://a:1]\n", "line 1, column 3 (entry 1): expected an address"),
        (b"- grpc://a:1\n- grpc://A:1\n", "line 2, column 3 (entry 2): grpc://a:1 is already entry 1"),
        (b"- url: grpc://a:1\n  rol: prefill\n", "line 2, column 3 (entry 1): unknown key 'rol'"),
        (b"- role: prefill\n", "line 1, column 3 (entry 1): url is missing"),
        (b"- url: grpc://a:1\n  role: both\n", "line 2, column 9 (entry 1): role 'both' is not one of"),
        (b"- url: grpc://a:1\n  protocol: x\n", "line 2, column 13 (entry 1): protocol 'x' is not one of"),
        (b"- url: grpc://a:1?role=decode\n  role: prefill\n", "line 2, column 9 (entry 1): role 'prefill' contradicts"),
        (b"- url: grpc://a:1\n  url: grpc://b:1\n", "line 2, column 3 (entry 1): key 'url' is given twice"),
        (b"- url: {}\n", "line 1, column 8 (entry 1): url must be a text"),
        (b"- grpc://a:1\n  - x: [\n", "line 2, column 6: not YAML"),
        (b"- a\n---\n- b\n", "not YAML"),
        (b"- \xff", "not UTF-8 at byte 2"),
        (b"[" * 5000, "nested too deeply"),
        (
            b"- url: grpc://a:1\n  kv-events-port: x\n",
            "line 2, column 19 (entry 1): kv-events-port 'x' is not a number",
        ),
        (
            b"- url: grpc://a:1\n  kv-replay-port: 5\n",
            "line 2, column 19 (entry 1): kv-replay-port needs kv-events-port",
        ),
        (
            b"- url: grpc://a:1?kv-events-port=4\n  kv-events-port: 5\n",
            "line 2, column 19 (entry 1): kv-events-port 5 contradicts the url, which says 4",
        ),
        (
            b"- url: grpc://a:1\n  bootstrap-port: x\n",
            "line 2, column 19 (entry 1): bootstrap-port 'x' is not a number",
        ),
        (
            b"- url: grpc://a:1?group=blue\n  group: red\n",
            "line 2, column 10 (entry 1): group 'red' contradicts the url, which says blue",
        ),
        (b"- url: grpc://a:1\n  bootstrap-host: a/b\n", "line 2, column 19 (entry 1): bootstrap-host 'a/b' is not"),
        (b"- grpc://a:70000\n", "line 1, column 3 (entry 1): 'grpc://a:70000': port"),
    ],
)
def test_a_bad_list_says_where(content: bytes, reason: str) -> None:
    answer = read_engine_list(content)
    assert isinstance(answer, BadList)
    assert reason in answer.reason


def test_a_fixed_list_refuses_an_engine_given_twice() -> None:
    with pytest.raises(InvalidTarget, match="grpc://a:1 is given twice"):
        engines([Target("a", 1), Target("a", 1, role=Role.PREFILL)])


@settings(max_examples=200)
@given(st.binary(max_size=60) | st.text("-[]{}:& *!>|\n\t\"'#a1", max_size=40).map(str.encode))
def test_nothing_makes_the_reader_raise(content: bytes) -> None:
    read_engine_list(content)
