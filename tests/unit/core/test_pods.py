"""What one pod stands for: tables on literals, and a search for anything that makes the reader raise."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginehouse.core.pod_rules import PodRules
from enginehouse.core.pods import read_pod, read_record
from enginehouse.domain.engine import ProtocolName, Role, Target
from enginehouse.domain.feed import PodRef, Wanted
from tests.rigs.kube_objects import pod

ANNOTATION = "nvidia.com/dynamo-engine-grpc-port"
RULES = PodRules(port=30001)


def read(made: dict[str, Any], rules: PodRules = RULES) -> tuple[Wanted, ...]:
    return read_pod(msgspec.json.encode(made), rules)


def only(made: dict[str, Any], rules: PodRules = RULES) -> Wanted:
    (wanted,) = read(made, rules)
    return wanted


def test_a_running_ready_pod_serves() -> None:
    rules = PodRules(port=30001, role=Role.PREFILL, protocol=ProtocolName.VLLM, tls=True)
    assert only(pod("w1", uid="u1"), rules) == Wanted(
        engine_id="u1:30001",
        owner="u1",
        name="default/w1:30001",
        target=Target("10.1.0.1", 30001, True, Role.PREFILL, ProtocolName.VLLM),
        generation="u1/10.1.0.1/30001/prefill/engine#0#containerd://a",
        eligible=True,
        pod=PodRef("default", "w1", "u1"),
    )


def waiting(reason: str) -> dict[str, Any]:
    made = pod(ready=False)
    made["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": reason}}
    return made


def without(made: dict[str, Any], *path: str) -> dict[str, Any]:
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return made


def failed(reason: str | None) -> dict[str, Any]:
    made = pod(phase="Failed", ready=False, ip=None)
    made["status"]["reason"] = reason
    return made


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (pod(terminating=True), "terminating"),
        (pod(terminating=True, ready=False, ip=None), "terminating"),
        (pod(ip=None), "no IP yet"),
        (pod(ip=""), "no IP yet"),
        (pod(phase="Pending", ip=None, ready=False), "phase Pending"),
        (pod(phase="Succeeded", ready=False), "phase Succeeded"),
        (pod(phase="Unknown"), "phase Unknown"),
        (failed("Evicted"), "phase Failed (Evicted)"),
        (failed(None), "phase Failed"),
        (without(pod(), "status", "phase"), "phase not known yet"),
        (pod(ready=False), "not ready: ContainersNotReady"),
        (waiting("CrashLoopBackOff"), "not ready: engine: CrashLoopBackOff"),
        (without(pod(), "status", "conditions"), "not ready: no Ready condition yet"),
    ],
)
def test_why_a_pod_may_not_serve(made: dict[str, Any], reason: str) -> None:
    wanted = only(made)
    assert (wanted.eligible, wanted.reason) == (False, reason)
    assert wanted.engine_id == "uid-w1:30001"


def test_d11_deletion_timestamp_alone_ends_selection() -> None:
    assert only(pod(ready=True)).eligible
    leaving = only(pod(ready=True, terminating=True))
    assert not leaving.eligible
    assert leaving.generation == only(pod(ready=True)).generation


@pytest.mark.parametrize(
    ("text", "ports"),
    [("8000", [8000]), ("8000,8001", [8000, 8001]), (" 8000 , 8001 ", [8000, 8001]), ("1", [1]), ("65535", [65535])],
)
def test_ports_of_the_annotation(text: str, ports: list[int]) -> None:
    wanted = read(pod(annotations={ANNOTATION: text}))
    assert [one.engine_id for one in wanted] == [f"uid-w1:{port}" for port in ports]
    assert [one.target.port for one in wanted if one.target] == ports
    assert all(one.eligible and one.owner == "uid-w1" for one in wanted)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "0",
        "65536",
        "-1",
        "+1",
        "8000,",
        ",8000",
        "8000,,8001",
        "8000,8000",
        "http",
        "8000;8001",
        "8_000",
        "1e3",
        "٣٣",
        "0x50",
        "8000.0",
        "9" * 5000,
        "8000 8001",
        "08000,8000",
    ],
)
def test_d18_port_mistakes_refuse_the_pod_and_name_the_annotation(text: str) -> None:
    wanted = only(pod(annotations={ANNOTATION: text}))
    assert not wanted.eligible
    assert wanted.target is None
    assert ANNOTATION in wanted.reason
    assert wanted.owner == "uid-w1"


def test_d18_a_shrunk_list_loses_the_extra_engine() -> None:
    both = read(pod(annotations={ANNOTATION: "8000,8001"}))
    one = read(pod(annotations={ANNOTATION: "8000"}))
    assert {w.engine_id for w in both} - {w.engine_id for w in one} == {"uid-w1:8001"}
    assert one[0] == both[0]


def test_no_port_at_all_is_a_reason_not_a_guess() -> None:
    wanted = only(pod(), PodRules(port=None))
    assert not wanted.eligible
    assert wanted.target is None
    assert ANNOTATION in wanted.reason


def test_the_annotation_has_a_configurable_name_and_goes_before_the_pool() -> None:
    rules = PodRules(port=30001, port_annotation="example.com/port")
    assert only(pod(annotations={"example.com/port": "9", ANNOTATION: "8"}), rules).engine_id == "uid-w1:9"


KV = "enginehouse.dev/kv-events-port"


@pytest.mark.parametrize(
    ("ports", "kv", "found"),
    [
        ("1", "5557", [(5557, None)]),
        ("1", "5557/6557", [(5557, 6557)]),
        ("1,2", "5557/6557, 5657", [(5557, 6557), (5657, None)]),
        ("1,2", None, [(None, None), (None, None)]),
    ],
)
def test_an_annotation_says_where_kv_events_are(
    ports: str, kv: str | None, found: list[tuple[int | None, int | None]]
) -> None:
    annotations = {ANNOTATION: ports} | ({KV: kv} if kv else {})
    targets = [wanted.target for wanted in read(pod(annotations=annotations))]
    assert [(one.kv_events_port, one.kv_replay_port) for one in targets if one] == found


@pytest.mark.parametrize("text", ["", "x", "0", "5/", "/5", "5/x", "5/6/7", "65536", "1,2", "5/70000", "٣"])
def test_a_bad_annotation_for_kv_events_is_a_reason(text: str) -> None:
    wanted = only(pod(annotations={KV: text}))
    assert not wanted.eligible
    assert f"annotation {KV}={text!r}" in wanted.reason


def test_the_annotation_for_kv_events_has_a_configurable_name() -> None:
    rules = PodRules(port=30001, kv_events_port_annotation="example.com/kv")
    target = only(pod(annotations={"example.com/kv": "9", KV: "8"}), rules).target
    assert target is not None
    assert target.kv_events_port == 9


@pytest.mark.parametrize(("before", "after"), [(None, "5"), ("5", "6"), ("5", "5/6"), ("5/6", "5/7")])
def test_changed_kv_ports_are_another_generation(before: str | None, after: str) -> None:
    first, second = (only(pod(annotations={KV: text} if text else {})) for text in (before, after))
    assert first.engine_id == second.engine_id
    assert first.generation != second.generation


MET = "sglang.ai/bootstrap-port"
MET_AT = "enginehouse.dev/bootstrap-host"


@pytest.mark.parametrize(
    ("ports", "met", "found"),
    [("1", "8998", [8998]), ("1,2", "8998, 8999", [8998, 8999]), ("1,2", None, [None, None])],
)
def test_an_annotation_says_where_decode_engines_meet_it(ports: str, met: str | None, found: list[int | None]) -> None:
    annotations = {ANNOTATION: ports, MET_AT: "10.9.0.1"} | ({MET: met} if met else {})
    targets = [wanted.target for wanted in read(pod(annotations=annotations))]
    assert [(one.bootstrap_host, one.bootstrap_port) for one in targets if one] == [
        ("10.9.0.1", port) for port in found
    ]


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "8998,8999", "8998/8999", "٣"])
def test_a_bad_bootstrap_port_is_a_reason(text: str) -> None:
    wanted = only(pod(annotations={MET: text}))
    assert not wanted.eligible
    assert f"annotation {MET}={text!r}" in wanted.reason


@pytest.mark.parametrize("text", ["", "a b", "[fd00::5]", "http://a"])
def test_a_bad_bootstrap_host_is_a_reason(text: str) -> None:
    wanted = only(pod(annotations={MET_AT: text}))
    assert not wanted.eligible
    assert wanted.reason == f"annotation {MET_AT}={text!r} is not a host name or address"


def test_the_annotations_for_the_meeting_point_have_configurable_names() -> None:
    rules = PodRules(port=1, bootstrap_port_annotation="example.com/port", bootstrap_host_annotation="example.com/host")
    target = only(
        pod(annotations={"example.com/port": "9", "example.com/host": "h", MET: "8", MET_AT: "g"}), rules
    ).target
    assert target is not None
    assert (target.bootstrap_host, target.bootstrap_port) == ("h", 9)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {MET: "5"}),
        ({}, {MET_AT: "h"}),
        ({MET: "5"}, {MET: "6"}),
        ({MET: "5"}, {MET: "5", MET_AT: "h"}),
    ],
)
def test_a_changed_meeting_point_is_another_generation(before: dict[str, str], after: dict[str, str]) -> None:
    first, second = only(pod(annotations=before)), only(pod(annotations=after))
    assert first.engine_id == second.engine_id
    assert first.generation != second.generation


ROLE = "enginehouse.dev/role"


@pytest.mark.parametrize(
    ("label", "pool", "role"),
    [
        (None, None, None),
        (None, Role.DECODE, Role.DECODE),
        ("prefill", None, Role.PREFILL),
        ("decode", None, Role.DECODE),
        ("aggregated", None, Role.AGGREGATED),
        ("prefill", Role.PREFILL, Role.PREFILL),
    ],
)
def test_a_label_or_the_selector_gives_the_role(label: str | None, pool: Role | None, role: Role | None) -> None:
    made = pod(labels={ROLE: label} if label else {})
    target = only(made, PodRules(port=1, role=pool)).target
    assert target is not None
    assert target.role is role


@pytest.mark.parametrize(
    ("label", "pool", "reason"),
    [
        ("both", None, f"label {ROLE}='both': not one of aggregated, prefill, decode"),
        ("", None, f"label {ROLE}='': not one of"),
        ("prefill", Role.DECODE, f"label {ROLE}='prefill': but the pods of this selector are decode engines"),
    ],
)
def test_a_role_that_cannot_be_or_contradicts_the_selector_is_a_reason(
    label: str, pool: Role | None, reason: str
) -> None:
    wanted = only(pod(labels={ROLE: label}), PodRules(port=1, role=pool))
    assert not wanted.eligible
    assert wanted.reason.startswith(reason)


def test_the_label_for_the_role_has_a_configurable_name() -> None:
    rules = PodRules(port=1, role_label="llm-d.ai/role")
    target = only(pod(labels={"llm-d.ai/role": "decode", ROLE: "prefill"}), rules).target
    assert target is not None
    assert target.role is Role.DECODE


def test_d8_a_flipped_role_label_is_another_generation() -> None:
    first, second = (only(pod(labels={ROLE: role})) for role in ("prefill", "decode"))
    assert first.engine_id == second.engine_id
    assert first.generation != second.generation


def test_p5_pair_by_makes_the_labels_value_the_group() -> None:
    rules = PodRules(port=1, pair_by="set")
    blue, green = (only(pod(labels={"set": group}), rules) for group in ("blue", "green"))
    assert [one.target.group for one in (blue, green) if one.target] == ["blue", "green"]
    assert blue.generation != green.generation
    without = only(pod(labels={"set": "blue"})).target
    assert without is not None
    assert without.group is None


@pytest.mark.parametrize("labels", [{}, {"other": "blue"}, {"set": ""}])
def test_p5_a_pod_without_the_label_that_pairs_is_refused(labels: dict[str, str]) -> None:
    wanted = only(pod(labels=labels), PodRules(port=1, pair_by="set"))
    assert not wanted.eligible
    assert wanted.reason == "no label set, by which engines are to be paired"


@pytest.mark.parametrize(("ip", "url"), [("fd00::5", "grpc://[fd00::5]:30001"), ("10.0.0.9", "grpc://10.0.0.9:30001")])
def test_d19_ipv6_pods_have_a_working_target(ip: str, url: str) -> None:
    target = only(pod(ip=ip)).target
    assert target is not None
    assert (target.host, target.url) == (ip, url)


def test_d19_dual_stack_takes_the_first_address() -> None:
    made = pod(ip="fd00::5")
    made["status"]["podIPs"] = [{"ip": "fd00::5"}, {"ip": "10.0.0.5"}]
    assert only(made).target == Target("fd00::5", 30001)
    del made["status"]["podIP"]
    assert only(made).target == Target("fd00::5", 30001)


def sidecar_pod(sidecar_restarts: int = 0, init_restarts: int = 0) -> dict[str, Any]:
    made = pod()
    made["spec"]["initContainers"] = [{"name": "pull"}, {"name": "side", "restartPolicy": "Always"}]
    made["status"]["initContainerStatuses"] = [
        {"name": "pull", "restartCount": init_restarts, "containerID": f"pull-{init_restarts}"},
        {"name": "side", "restartCount": sidecar_restarts, "containerID": f"side-{sidecar_restarts}"},
    ]
    return made


def two_containers(second_restarts: int) -> dict[str, Any]:
    made = pod()
    made["status"]["containerStatuses"].append({"name": "agent", "restartCount": second_restarts})
    return made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pod(), pod(restarts=1)),
        (pod(), pod(container_id="containerd://b")),
        (pod(), pod(ip="10.1.0.2")),
        (pod(uid="a"), pod(uid="b")),
        (sidecar_pod(0), sidecar_pod(1)),
        (two_containers(0), two_containers(1)),
    ],
)
def test_d6_another_process_or_address_is_another_generation(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert only(before).generation != only(after).generation


def test_d6_a_new_port_or_role_is_another_engine_or_generation() -> None:
    assert only(pod(annotations={ANNOTATION: "1"})).engine_id != only(pod(annotations={ANNOTATION: "2"})).engine_id
    prefill, decode = (only(pod(), PodRules(port=1, role=role)) for role in (Role.PREFILL, Role.DECODE))
    assert prefill.generation != decode.generation


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pod(), pod(ready=False)),
        (pod(), pod(terminating=True)),
        (pod(), pod(labels={"a": "b"}, annotations={"c": "d"}, version="2")),
        (sidecar_pod(init_restarts=0), sidecar_pod(init_restarts=1)),
    ],
)
def test_readiness_and_decoration_keep_the_generation(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert only(before).generation == only(after).generation


def test_the_order_of_statuses_means_nothing() -> None:
    made = two_containers(3)
    turned = copy.deepcopy(made)
    turned["status"]["containerStatuses"].reverse()
    assert only(made).generation == only(turned).generation


MALFORMED: list[tuple[bytes, str]] = [
    (b"", "/"),
    (b"null", "/"),
    (b"[]", "/"),
    (b'{"metadata": 3}', "/"),
    (b'{"metadata": {"name": "w", "namespace": "n"}}', "n/w"),
    (b'{"metadata": {"uid": "u", "name": "w", "namespace": "n"}, "status": {"phase": 7}}', "u"),
    (b'{"metadata": {"uid": "u", "name": "w", "namespace": "n"}, "status": {"containerStatuses": [{}]}}', "u"),
    (b'{"metadata": {"uid": "u", "name": "w", "namespace": "n", "annotations": {"a": 1}}}', "u"),
    (b'{"metadata": {"uid": "u\xff"}}', "/"),
]


@pytest.mark.parametrize(("raw", "owner"), MALFORMED)
def test_a_malformed_pod_is_one_engine_that_may_not_serve(raw: bytes, owner: str) -> None:
    record = read_record(raw, RULES)
    assert record.owner == owner
    (wanted,) = record.wanted
    assert not wanted.eligible
    assert wanted.reason.startswith("unreadable pod: ")


def test_an_unusable_address_is_a_reason() -> None:
    wanted = only(pod(ip="not an address"))
    assert (wanted.eligible, wanted.target) == (False, None)
    assert "unusable address" in wanted.reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70000) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(data=st.data())
def test_nothing_makes_the_reader_raise(data: st.DataObject) -> None:
    made: Any = copy.deepcopy(data.draw(st.sampled_from([pod(), sidecar_pod(), pod(annotations={ANNOTATION: "1,2"})])))
    for _ in range(data.draw(st.integers(1, 3))):
        place = made
        while True:
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
                place = place[key]
                continue
            place[key] = data.draw(JSON)
            break
    for wanted in (*read(made), *read(made, PodRules(port=1, pair_by="a"))):
        assert wanted.eligible == (not wanted.reason)
        assert wanted.target is not None or not wanted.eligible
