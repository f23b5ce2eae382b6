"""Kubeconfig files and service accounts: what they lead to, and what is said when they lead nowhere."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from enginehouse.adapters.kube import KubeConfigError, KubeSettings, open_api
from enginehouse.adapters.kube.access import Basic, Exec, InFile, Inline, Token, TokenFile
from enginehouse.adapters.kube.kubeconfig import read_kubeconfig
from enginehouse.adapters.kube.locate import find_access
from enginehouse.core.pod_rules import PodRules
from enginehouse.domain.engine import Role


def config(user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "engines"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **top,
    }


def write(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_the_current_context_with_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    user = {"client-certificate": "pki/c.crt", "client-key": "/abs/c.key", "tokenFile": "t"}
    cluster = {"certificate-authority": "ca.crt", "tls-server-name": "kubernetes"}
    access = read_kubeconfig([write(tmp_path / "config", config(user, cluster))], None, None)
    assert (access.server, access.namespace, access.tls_server_name) == ("https://api:6443", "engines", "kubernetes")
    assert access.ca == InFile(tmp_path / "ca.crt")
    assert access.login == TokenFile(tmp_path / "t")
    assert access.client_certificate is not None
    assert access.client_certificate.certificate == InFile(tmp_path / "pki/c.crt")
    assert access.client_certificate.key == InFile(Path("/abs/c.key"))


def test_data_goes_before_files(tmp_path: Path) -> None:
    cluster = {"certificate-authority": "ca.crt", "certificate-authority-data": b64("PEM")}
    access = read_kubeconfig([write(tmp_path / "config", config(cluster=cluster))], None, "other")
    assert access.ca == Inline(b"PEM")
    assert access.namespace == "other"


@pytest.mark.parametrize(
    ("user", "login"),
    [
        ({}, None),
        ({"token": "abc"}, Token("abc")),
        ({"username": "me", "password": "pw"}, Basic("me", "pw")),
    ],
)
def test_ways_to_log_in(tmp_path: Path, user: dict[str, Any], login: object) -> None:
    assert read_kubeconfig([write(tmp_path / "config", config(user))], None, None).login == login


def test_exec_plugins_keep_their_arguments_and_folder(tmp_path: Path) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./bin/get-token",
        "args": ["--cluster", "c"],
        "env": [{"name": "REGION", "value": "x"}],
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": True,
    }
    login = read_kubeconfig([write(tmp_path / "config", config({"exec": plugin}))], None, None).login
    assert isinstance(login, Exec)
    assert login.command == str(tmp_path / "bin/get-token")
    assert (login.args, login.env) == (("--cluster", "c"), (("REGION", "x"),))
    assert login.provide_cluster_info


def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    first = {"contexts": [{"name": "there", "context": {"cluster": "c", "user": "u"}}], "current-context": "there"}
    second = config({"tokenFile": "token"}, {"server": "https://second:1"})
    paths = [write(tmp_path / "one" / "config", first), tmp_path / "missing", write(tmp_path / "two" / "c", second)]
    access = read_kubeconfig(paths, None, None)
    assert (access.server, access.namespace) == ("https://second:1", "default")
    assert access.login == TokenFile(tmp_path / "two" / "token")
    assert read_kubeconfig(paths, "here", None).namespace == "engines"


@pytest.mark.parametrize(
    ("content", "context", "reason"),
    [
        (config(), "nowhere", "no context 'nowhere'; there are: here"),
        (config(**{"current-context": ""}), None, "no current-context"),
        (config(clusters=[]), None, "no cluster 'c'; there are: none"),
        (config(users=None), None, "no user 'u'"),
        (config(cluster={"proxy-url": "http://p"}), None, "proxy-url"),
        (config(cluster={"server": ""}), None, "no server"),
        (config(cluster={"server": 3}), None, "cluster 'c': Expected `str`"),
        (config({"client-certificate": "a"}), None, "only useful together"),
        (config({"client-certificate-data": "%%"}), None, "not base64"),
        (config({"auth-provider": {"name": "gcp"}}), None, "auth-provider"),
        (config({"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}}), None, "v1alpha1"),
        (
            config(
                {"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Always"}}
            ),
            None,
            "terminal",
        ),
        (config(contexts="x"), None, "Expected `array"),
    ],
)
def test_what_cannot_be_used_says_so(tmp_path: Path, content: dict[str, Any], context: str | None, reason: str) -> None:
    with pytest.raises(KubeConfigError, match="config") as caught:
        read_kubeconfig([write(tmp_path / "config", content)], context, None)
    assert reason in str(caught.value)


def test_a_file_that_is_not_yaml_is_named_without_quoting_it(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("users:\n- token: {secret\n")
    with pytest.raises(KubeConfigError) as caught:
        read_kubeconfig([tmp_path / "config"], None, None)
    assert "line 3" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_secrets_have_no_repr(tmp_path: Path) -> None:
    user = {"token": "hidden1", "client-certificate-data": b64("x"), "client-key-data": b64("hidden2")}
    access = read_kubeconfig([write(tmp_path / "config", config(user))], None, None)
    assert "hidden" not in repr(access)
    assert b64("hidden2") not in repr(access)


def mount(folder: Path) -> Path:
    folder.mkdir()
    for name, content in (("token", "t"), ("ca.crt", "c"), ("namespace", "ours\n")):
        (folder / name).write_text(content)
    return folder


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_in_a_pod_the_service_account_is_used(tmp_path: Path) -> None:
    folder = mount(tmp_path / "sa")
    access = find_access(KubeSettings(service_account_dir=str(folder)), POD)
    assert (access.server, access.namespace) == ("https://10.0.0.1:443", "ours")
    assert access.login == TokenFile(folder / "token")
    assert access.ca == InFile(folder / "ca.crt")
    six = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT_HTTPS": "6443"}
    assert find_access(KubeSettings(service_account_dir=str(folder)), six).server == "https://[fd00::1]:6443"
    assert find_access(KubeSettings(service_account_dir=str(folder), namespace="x"), POD).namespace == "x"


def test_a_pod_without_a_token_is_told_why(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match=r"lacks token and ca\.crt: is automountServiceAccountToken false"):
        find_access(KubeSettings(service_account_dir=str(tmp_path)), POD)


def test_a_kubeconfig_goes_before_the_service_account(tmp_path: Path) -> None:
    path = write(tmp_path / "config", config())
    folder = mount(tmp_path / "sa")
    settings = KubeSettings(service_account_dir=str(folder))
    assert find_access(settings, {**POD, "KUBECONFIG": str(path)}).server == "https://api:6443"
    named = KubeSettings(kubeconfig=str(path), service_account_dir=str(folder))
    assert find_access(named, {**POD, "KUBECONFIG": "/nowhere"}).server == "https://api:6443"
    assert find_access(settings, {"KUBECONFIG": f"/nowhere:{path}"}).server == "https://api:6443"


def test_nothing_at_all_lists_what_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(KubeConfigError, match="--kubeconfig and KUBECONFIG are not set, this is not a pod"):
        find_access(KubeSettings(), {})
    with pytest.raises(KubeConfigError, match="no kubeconfig file at /nowhere"):
        find_access(KubeSettings(kubeconfig="/nowhere"), {})
    write(tmp_path / ".kube" / "config", config())
    assert find_access(KubeSettings(), {}).server == "https://api:6443"


@pytest.mark.parametrize("server", ["api:6443", "ftp://api", "https://", "https://api:99999", "https://api?x=1"])
def test_a_server_that_is_no_url_stops_the_start(tmp_path: Path, server: str) -> None:
    path = write(tmp_path / "config", config(cluster={"server": server}))
    with pytest.raises(KubeConfigError, match="context 'here'"):
        open_api(KubeSettings(kubeconfig=str(path)))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"namespace": "x", "all_namespaces": True}, "exclude each other"),
        ({"namespace": ""}, "namespace is empty"),
        ({"resync_interval": 0}, "resync_interval"),
        ({"watch_timeout": float("nan")}, "watch_timeout"),
        ({"backoff_limit": -1}, "backoff_limit"),
        ({"page_size": 0}, "page_size"),
        ({"port_annotation": ""}, "port_annotation"),
        ({"bootstrap_port_annotation": ""}, "bootstrap_port_annotation"),
        ({"role_label": ""}, "role_label is empty"),
        ({"role_label": "a=b"}, "role_label 'a=b' is not the name of a label"),
        ({"pair_by": "a b"}, "pair_by 'a b' is not the name of a label"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        KubeSettings(**settings)


def test_what_pods_say_is_read_by_the_names_given() -> None:
    names = {
        "port_annotation": "a",
        "kv_events_port_annotation": "b",
        "bootstrap_port_annotation": "c",
        "bootstrap_host_annotation": "d",
        "role_label": "e/f",
        "pair_by": "g",
    }
    rules = KubeSettings(**names).rules(port=5, role=Role.DECODE)  # type: ignore[arg-type]
    assert {name: getattr(rules, name) for name in names} == names
    assert (rules.port, rules.role) == (5, Role.DECODE)
    assert KubeSettings().rules(port=None) == PodRules()


def test_a_pool_port_is_checked() -> None:
    with pytest.raises(ValueError, match="pod port 0"):
        KubeSettings().rules(port=0)
