"""The manifests agree with the program: flags and probed paths exist, rights are exactly what is needed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import enginehouse
from enginehouse.adapters.kube.settings import KubeSettings
from enginehouse.cli import application
from enginehouse.core.membership.settings import MembershipSettings
from enginehouse.settings import Settings, setting_rows
from tests.support import ROOT

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(DEPLOY.rglob("*.yaml"))
POOLS = sorted(
    str(path.relative_to(DEPLOY / "examples").with_suffix(""))
    for path in DEPLOY.glob("examples/*/*.yaml")
    if path.name != "kustomization.yaml"
)
"""Example and file: `vllm-pool/engines`, `vllm-prefill-decode/prefill`."""
TWO_POOLS = sorted({pool.partition("/")[0] for pool in POOLS if pool.endswith("/prefill")})


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def base(name: str) -> Any:
    return load(DEPLOY / "base" / name)


def pod_of(manifest: Any) -> Any:
    return manifest["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod_of(base("deployment.yaml"))["containers"]
    return only


def settings(example: str | None = None) -> Settings:
    """What the frontend is told: in `base`, or with what an example adds."""
    args = list(container()["args"])
    changed = load(DEPLOY / "examples" / example / "kustomization.yaml").get("patches", []) if example else []
    for patch in changed:
        assert patch["target"] == {"kind": "Deployment", "name": base("deployment.yaml")["metadata"]["name"]}
        for change in yaml.safe_load(patch["patch"]):
            assert (change["op"], change["path"]) == ("add", "/spec/template/spec/containers/0/args/-")
            args.append(change["value"])
    _, bound, _ = application().parse_args(args, exit_on_error=False, print_error=False)
    return bound.kwargs["settings"]  # type: ignore[no-any-return]


def engines(pool: str) -> Any:
    return load(DEPLOY / "examples" / f"{pool}.yaml")


def engine_args(pool: str) -> list[str]:
    (engine,) = pod_of(engines(pool))["containers"]
    return [*engine["args"], *(f"{item['name']}={item['value']}" for item in engine.get("env", ()) if "value" in item)]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_manifest_is_one_object_of_a_known_kind(path: Path) -> None:
    manifest = load(path)
    assert manifest["apiVersion"]
    assert manifest["kind"]


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("kustomization.yaml")), ids=lambda path: path.parent.name)
def test_kustomizations_name_files_that_exist_and_all_of_them(path: Path) -> None:
    named = load(path)["resources"]
    assert all((path.parent / name).exists() for name in named)
    beside = {other.name for other in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
    assert beside <= set(named)


def test_rights_are_exactly_to_read_pods() -> None:
    assert base("role.yaml")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    ]
    binding = base("rolebinding.yaml")
    account = base("serviceaccount.yaml")["metadata"]["name"]
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "enginehouse"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert pod_of(base("deployment.yaml"))["serviceAccountName"] == account


def test_the_deployment_uses_flags_that_exist_and_go_together() -> None:
    chosen = settings()
    chosen.validate()
    assert chosen.http.host == "0.0.0.0"
    assert chosen.sources.pods


def test_d28_probes_need_no_exec_and_ask_paths_that_exist() -> None:
    routes = (ROOT / "src/enginehouse/http/routes.py").read_text(encoding="utf-8")
    port = container()["ports"][0]
    assert settings().http.port == port["containerPort"]
    asked = {}
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container()[kind]
        assert "exec" not in probe
        assert probe["httpGet"]["port"] == port["name"]
        asked[kind] = probe["httpGet"]["path"]
        assert f'"{asked[kind]}"' in routes
    assert asked["livenessProbe"] == asked["startupProbe"] == "/livez", (
        "a frontend without engines must not be restarted"
    )
    assert asked["readinessProbe"] == "/readyz"


def test_m15_the_kubelet_waits_longer_than_the_ordered_shutdown() -> None:
    http = settings().http
    pod = pod_of(base("deployment.yaml"))
    assert pod["terminationGracePeriodSeconds"] >= http.shutdown_grace + http.shutdown_timeout + 5
    probe = container()["readinessProbe"]
    noticed = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert http.shutdown_grace > noticed, "not ready must be seen before connections are refused"


def test_the_frontend_runs_with_few_rights_and_a_read_only_root() -> None:
    pod = pod_of(base("deployment.yaml"))
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["enableServiceLinks"] is False, "ENGINEHOUSE_PORT=tcp://… would stand beside our settings"
    context = container()["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert container()["resources"]["limits"]["memory"]


def test_image_and_version_agree() -> None:
    assert container()["image"] == f"enginehouse:{enginehouse.__version__}"


def test_the_service_reaches_the_pods() -> None:
    deployment, service = base("deployment.yaml"), base("service.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["ports"][0]["targetPort"] == container()["ports"][0]["name"]


@pytest.mark.parametrize("pool", POOLS)
def test_pools_are_what_the_frontend_selects(pool: str) -> None:
    manifest = engines(pool)
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    sources = settings(pool.partition("/")[0]).sources
    selector, port = (
        (sources.prefill_pods, sources.prefill_pod_port)
        if pool.endswith("/prefill")
        else (sources.pods, sources.pod_port)
    )
    key, value = str(selector).split("=")
    assert labels[key] == value
    (engine,) = pod_of(manifest)["containers"]
    ports = {port["name"]: port["containerPort"] for port in engine["ports"]}
    assert ports["grpc"] == port
    arguments = " ".join(engine["args"])
    assert re.search(rf"--(grpc-)?port={ports['grpc']}\b", arguments)
    assert "--host=0.0.0.0" in arguments
    assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("pool", POOLS)
def test_d15_pools_give_frontends_time_to_admit_before_the_next_old_pod_goes(pool: str) -> None:
    spec = engines(pool)["spec"]
    assert spec["minReadySeconds"] >= MembershipSettings().probe_retry_max
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert pod_of({"spec": spec})["containers"][0]["readinessProbe"]


@pytest.mark.parametrize("pool", POOLS)
def test_m1_a_deleted_engine_pod_lives_on_for_its_running_answers(pool: str) -> None:
    pod = pod_of(engines(pool))
    pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause >= 30
    assert pod["terminationGracePeriodSeconds"] > pause


def test_d10_examples_say_how_to_select_head_pods_only() -> None:
    for pool in (pool for pool in POOLS if pool.startswith("sglang")):
        text = (DEPLOY / f"examples/{pool}.yaml").read_text(encoding="utf-8")
        assert "leaderworkerset.sigs.k8s.io/worker-index=0" in text


def test_stock_flags_of_the_engines() -> None:
    assert {"--grpc-port=30001", "--incremental-streaming-output"} <= set(engine_args("sglang-pool/engines"))
    assert "--grpc" in engine_args("vllm-pool/engines")
    flags = engine_args("vllm-pool/engines")
    assert not any(flag.startswith("--grpc-port") for flag in flags), "the two exclude each other"
    assert {"--grpc-port=30001", "VLLM_USE_RUST_FRONTEND=1"} <= set(engine_args("vllm-native-pool/engines"))


@pytest.mark.parametrize("example", TWO_POOLS)
def test_two_pools_are_two_selectors_that_share_no_pod(example: str) -> None:
    chosen = settings(example)
    chosen.validate()
    assert chosen.topology == "disaggregated"
    assert chosen.sources.prefill_pods != chosen.sources.pods
    names = {pool: engines(f"{example}/{pool}")["metadata"]["name"] for pool in ("prefill", "decode")}
    selectors = [engines(f"{example}/{pool}")["spec"]["selector"]["matchLabels"] for pool in names]
    assert len(set(names.values())) == 2
    assert selectors[0] != selectors[1]
    assert set(load(DEPLOY / f"examples/{example}/kustomization.yaml")["resources"]) == {
        "../../base",
        "prefill.yaml",
        "decode.yaml",
    }


def test_sglangs_pools_report_their_roles_and_can_meet() -> None:
    prefill, decode = (set(engine_args(f"sglang-prefill-decode/{role}")) for role in ("prefill", "decode"))
    assert prefill - decode == {"--disaggregation-mode=prefill", "--disaggregation-bootstrap-port=8998"}
    assert decode - prefill == {"--disaggregation-mode=decode"}, "what must agree does"
    (engine,) = pod_of(engines("sglang-prefill-decode/prefill"))["containers"]
    assert {"name": "bootstrap", "containerPort": 8998} in engine["ports"]


def test_vllms_pools_can_be_fetched_from_by_other_pods() -> None:
    prefill, decode = (engine_args(f"vllm-prefill-decode/{role}") for role in ("prefill", "decode"))
    assert prefill == decode
    (given,) = (flag for flag in prefill if flag.startswith("--kv-transfer-config="))
    assert json.loads(given.partition("=")[2]) == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    for role in ("prefill", "decode"):
        (engine,) = pod_of(engines(f"vllm-prefill-decode/{role}"))["containers"]
        told = {item["name"]: item for item in engine["env"]}
        host = told["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]
        assert host == {"fieldRef": {"fieldPath": "status.podIP"}}, "the default is localhost"
        ports = {port["name"]: port["containerPort"] for port in engine["ports"]}
        assert ports["nixl"] == int(told["VLLM_NIXL_SIDE_CHANNEL_PORT"]["value"])
        assert ports["nixl"] >= ports["kv-replay"] + 8, "ranks count up"


@pytest.mark.parametrize("pool", POOLS)
def test_k6_engines_publish_what_the_frontend_is_told_to_route_by(pool: str) -> None:
    assert settings().routing.policy == "kv"
    manifest = engines(pool)
    (engine,) = pod_of(manifest)["containers"]
    given = [argument for argument in engine["args"] if argument.startswith("--kv-events-config=")]
    (config,) = [json.loads(argument.partition("=")[2]) for argument in given]
    assert config["publisher"] == "zmq", "SGLang's default is none"
    assert config.get("enable_kv_cache_events") is (None if pool.startswith("sglang") else True)
    ports = {port["name"]: port["containerPort"] for port in engine["ports"]}
    for name, option in (("kv-events", "endpoint"), ("kv-replay", "replay_endpoint")):
        assert config[option] == f"tcp://*:{ports[name]}", "any other wildcard makes vLLM connect"
    assert ports["kv-replay"] >= ports["kv-events"] + 8, "ranks count up"
    told = manifest["spec"]["template"]["metadata"].get("annotations", {}).get(KubeSettings().kv_events_port_annotation)
    assert told == (
        f"{ports['kv-events']}/{ports['kv-replay']}" if pool.startswith(("vllm-pool/", "vllm-prefill")) else None
    )


def test_the_image_has_pinned_requirements_no_root_and_no_registry_host() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    images = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert images
    assert all("." not in image.split("/")[0] or "/" not in image for image in images), "plain names only"
    assert "--require-hashes -r /src/requirements/run.txt" in text
    assert re.search(r"^USER (?!0|root)", text, re.MULTILINE)


def test_deploy_uses_no_setting_that_is_gone() -> None:
    flags = {row.flag for row in setting_rows()}
    for path in DEPLOY.rglob("*.md"):
        for flag in re.findall(r"`(--[a-z-]+)`", path.read_text(encoding="utf-8")):
            assert flag in flags | {"--grpc", "--grpc-port"}, f"{path.name}: {flag}"
