"""Settings: declared once, read from flag, variable and file in this order; bad values stop the start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cyclopts
import pytest
import trustme
import yaml

from enginehouse.cli import application
from enginehouse.settings import InvalidSettings, Settings, setting_rows, unknown

ROWS = setting_rows()
APP = application()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ENGINEHOUSE_"):
            monkeypatch.delenv(name)


def read(*argv: str) -> Settings:
    _, bound, _ = APP.parse_args(["serve", *argv], exit_on_error=False, print_error=False)
    return bound.kwargs.get("settings") or Settings()


def refused(*argv: str) -> str:
    with pytest.raises((cyclopts.CycloptsError, ValueError)) as caught:
        read(*argv).validate()
    return str(caught.value)


def config(folder: Path, text: str) -> str:
    path = folder / "enginehouse.yaml"
    path.write_text(text, encoding="utf-8")
    return f"--config={path}"


def value_of(settings: Settings, path: tuple[str, ...]) -> Any:
    value: Any = settings
    for name in path:
        value = getattr(value, name)
    return value


def test_every_setting_is_unique_explained_and_typed_in_words() -> None:
    names = [row.key for row in ROWS]
    assert len(names) == len(set(names)), "two components declare a setting of one name"
    for row in ROWS:
        assert row.meaning.rstrip().endswith((".", ")", "…")), f"{row.key} is not explained"
        assert "<" not in row.kind, f"{row.key}: no words for {row.hint}"


def test_the_flags_of_the_design_exist() -> None:
    flags = {row.flag for row in ROWS}
    design = """--engine --engines-file --pods --pod-port --prefill-pods --prefill-pod-port --namespace --kubeconfig
    --kube-context --port-annotation --model --tokenizer --policy --topology --host --port --drain-timeout --config"""
    assert set(design.split()) <= flags


def other_value(row: Any) -> tuple[str, Any]:
    """A text and the value it stands for, other than the default."""
    default = row.default
    if row.many:
        return "grpc://a:1", ("grpc://a:1",)
    if "," in row.kind:
        text = next(word for word in row.kind.split(", ") if word != default)
        return text, text
    if row.kind == "true or false":
        return str(not default).lower(), not default
    if row.kind == "whole number":
        return str((default or 0) + 1), (default or 0) + 1
    if row.kind == "number":
        return str(default / 2 + 0.125), default / 2 + 0.125
    return "some-text", Path("some-text") if row.kind == "path" else "some-text"


@pytest.mark.parametrize("row", [row for row in ROWS if row.field != "config"], ids=lambda row: row.key)
def test_flag_beats_variable_beats_file_beats_default(
    row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, value = other_value(row)
    assert value_of(Settings(), row.path) == row.default
    in_file: Any = [text] if row.many else yaml.safe_load(text)
    path = config(tmp_path, yaml.safe_dump({row.key: in_file}))
    assert value_of(read(path), row.path) == value

    back = row.default
    if back is None or back == ():
        return  # cannot be written; the order is the same for all
    default = str(back).lower() if isinstance(back, bool) else str(back)
    monkeypatch.setenv(row.variable, default)
    assert value_of(read(path), row.path) == back, "the variable must beat the file"
    flag = [f"--{'' if value else 'no-'}{row.key}"] if isinstance(back, bool) else [row.flag, text]
    assert value_of(read(path, *flag), row.path) == value, "the flag must beat the variable"


def test_lists_come_from_repeated_flags_spaces_in_a_variable_and_lists_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ("grpc://a:1", "grpc://b:2?role=decode")
    assert read("--engine", both[0], "--engine", both[1]).sources.engine == both
    file = config(tmp_path, yaml.safe_dump({"engine": list(both)}))
    assert read(file).sources.engine == both
    assert read(file, "--engine", "grpc://c:3").sources.engine == ("grpc://c:3",), "sources replace, they do not add up"
    monkeypatch.setenv("ENGINEHOUSE_ENGINE", " ".join(both))
    assert read().sources.engine == both


def test_the_config_file_may_be_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEHOUSE_CONFIG", config(tmp_path, "port: 81").removeprefix("--config="))
    assert read().http.port == 81


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("prot: 8000", ["enginehouse.yaml", "unknown key 'prot'", "did you mean 'port'"]),
        ("max_body_bytes: 1", ["unknown key 'max_body_bytes'", "did you mean 'max-body-bytes'"]),
        ("config: other.yaml", ["unknown key 'config'"]),
        ("7: x", ["unknown key 7"]),
        ("port: eighty", ["enginehouse.yaml", "port", "'eighty' is not a whole number"]),
        ("port: 80.5", ["port", "'80.5' is not a whole number"]),
        ("drain-timeout: .nan", ["drain-timeout", "is not a number"]),
        ("port: [1, 2]", ["port", "is not a whole number"]),
        ("host: {a: b}", ["host", "is not a text"]),
        ("policy: fastest", ["policy", "fastest", "round-robin"]),
        ("- port", ["must be a mapping"]),
        ("port: [1", ["is not YAML"]),
    ],
)
def test_a_bad_file_is_refused_by_file_key_value_and_remedy(tmp_path: Path, text: str, parts: list[str]) -> None:
    message = refused(config(tmp_path, text), "--engine=grpc://a:1")
    for part in parts:
        assert part in message


def test_an_empty_file_and_null_values_mean_the_defaults(tmp_path: Path) -> None:
    assert read(config(tmp_path, "")).http == Settings().http
    assert read(config(tmp_path, "host: null\nmodel: null\nengine: []")).http == Settings().http


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refused(f"--config={tmp_path / 'none.yaml'}")


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ([], ["no source of engines", "--engine grpc://HOST:PORT", "--pods"]),
        (["--prefill-pods=app=p", "--prefill-pod-port=1"], ["no source of engines", "prefill pods alone"]),
        (["--engine=http://a:1"], ["--engine", "'http://a:1'", "grpc://HOST:PORT"]),
        (["--engine=grpc://a:1", "--engine=grpc://A:1/"], ["same engine"]),
        (["--engine=grpc://a:1", "--pod-port=5"], ["--pod-port: 5", "--pods is not"]),
        (["--pods=app=x", "--prefill-pod-port=5"], ["--prefill-pod-port: 5", "--prefill-pods is not"]),
        (["--pods=app=x", "--pod-port=0"], ["--pod-port: 0 is not a port", "1 to 65535"]),
        (["--pods=app=x", "--pod-port=70000"], ["--pod-port: 70000 is not a port"]),
        (["--engine=grpc://a:1", "--port=70000"], ["--port: 70000 is not a port", "0 to 65535"]),
        (["--pods=app=x", "--prefill-pods=app=y", "--topology=aggregated"], ["--prefill-pods", "--topology"]),
        (["--engine=grpc://a:1?role=prefill", "--topology=aggregated"], ["prefill engine", "--topology"]),
        (["--pods=app=x", "--prefill-pods=app=x"], ["cannot be in both pools"]),
        (["--engine=grpcs://a:1", "--link-key=k.pem"], ["--link-key: 'k.pem'", "--link-cert is not"]),
        (["--engine=grpc://a:1", "--kv-replay-port=5"], ["--kv-replay-port: 5", "--kv-events-port is not"]),
        (["--engine=grpc://a:1", "--kv-events-port=0"], ["--kv-events-port: 0 is not a port"]),
        (["--engine=grpc://a:1?kv-replay-port=5"], ["--engine: ", "kv-replay-port needs kv-events-port"]),
        (["--pods=", "--pod-port=1"], ["--pods", "select every pod"]),
        (["--pods=app in (a", "--pod-port=1"], ["--pods", "parentheses"]),
        (["--engine=grpc://a:1", "--max-body-bytes=0"], ["--max-body-bytes: 0", "more than 0"]),
        (["--engine=grpc://a:1", "--shutdown-grace=-1"], ["--shutdown-grace: -1", "0 or more"]),
        *(
            (["--engine=grpc://a:1", f"--host={host}"], [f"--host: '{host}' is neither an address nor a name"])
            for host in ("999.1.1.1", "1.2.3", "[::1]", "a b", "-a", "a..b", "http://a", "")
        ),
        (["--engine=grpc://a:1", "--affinity-load-factor=0.5"], ["--affinity-load-factor: 0.5 is too small"]),
        (
            ["--engine=grpc://a:1", "--reasoning-field=role"],
            ["--reasoning-field: 'role' cannot be it; reasoning_content and reasoning are what clients look for"],
        ),
        (["--engine=grpc://a:1", "--affinity-header=x y"], ["--affinity-header: 'x y' is no name of a header"]),
        (["--engine=grpc://a:1", "--prefill-wait=0"], ["--prefill-wait: 0", "more than 0"]),
        (["--engine=grpc://a:1", "--prefill-min-tokens=-1"], ["--prefill-min-tokens: -1", "0 or more"]),
        (["--engine=grpc://a:1", "--max-handovers-per-prefill=-1"], ["--max-handovers-per-prefill: -1", "0 or more"]),
        (["--engine=grpc://a:1", "--prefill-missing=never"], ["--prefill-missing", "never", "wait", "decode", "fail"]),
        (["--engine=grpc://a:1", "--handover-timeout=300"], ["--handover-timeout: 300 is", "below the 300 s"]),
        (["--engine=grpc://a:1", "--handover-timeout=0"], ["--handover-timeout: 0", "more than 0"]),
    ],
)
def test_settings_that_do_not_go_together_are_refused_with_the_remedy(argv: list[str], parts: list[str]) -> None:
    message = refused(*argv)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "::1", "fe80::1%eth0", "localhost", "pod-1.models.svc.", "node1", "a_b"]
)
def test_any_address_and_name_may_be_listened_on(host: str) -> None:
    read("--engine=grpc://a:1", f"--host={host}").validate()


def test_tls_files_are_tried_before_the_start(tmp_path: Path) -> None:
    engine = "--engine=grpcs://a:1"
    with pytest.raises(InvalidSettings, match=r"--link-ca: '.*none.pem' cannot be read: No such file"):
        read(engine, f"--link-ca={tmp_path / 'none.pem'}").check_files()
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    with pytest.raises(InvalidSettings, match="--link-ca: not usable PEM"):
        read(engine, f"--link-ca={junk}").check_files()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("frontend").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "own.pem"))
    read(engine, f"--link-ca={tmp_path / 'ca.pem'}", f"--link-cert={tmp_path / 'own.pem'}").check_files()
    authority.issue_cert("other").private_key_pem.write_to_path(str(tmp_path / "other.key"))
    with pytest.raises(InvalidSettings, match=r"--link-cert, --link-key: .*does not fit"):
        read(engine, f"--link-cert={tmp_path / 'own.pem'}", f"--link-key={tmp_path / 'other.key'}").check_files()


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(InvalidSettings) as caught:
        read("--engine=http://a:1", "--port=70000", "--pod-port=1").validate()
    assert len(caught.value.found) == 3


def test_a_key_that_stands_twice_in_the_file_is_refused_with_both_lines(tmp_path: Path) -> None:
    message = refused(config(tmp_path, "port: 81\nhost: a\n\nport: 82\n"), "--engine=grpc://a:1")
    assert "key 'port' is given twice, in line 1 and in line 4" in message


def test_all_problems_of_the_file_and_the_flags_are_told_at_once(tmp_path: Path) -> None:
    text = "prot: 1\nport: eighty\nhost: [a]\nhost: {}\ndrain-timeout: soon\n"
    lines = refused(config(tmp_path, text), "--engine=grpc://a:1", "--pod-port=1.5").splitlines()
    for said in (
        "unknown key 'prot'",
        "key 'host' is given twice",
        "host: {} is not a text",
        "'eighty'",
        "'soon'",
        "1.5",
    ):
        assert len([line for line in lines if said in line]) == 1, said
    assert len(lines) == 6


@pytest.mark.parametrize("text", ["port: 2020-13-45", 'host: "\\UFFFFFFFF"', "a: " + "[" * 5000])
def test_a_file_with_impossible_values_is_not_yaml(tmp_path: Path, text: str) -> None:
    assert "is not YAML" in refused(config(tmp_path, text), "--engine=grpc://a:1")


def test_service_links_of_kubernetes_are_not_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    # A Service named `enginehouse` in the namespace, or `enginehouse-pod`, puts these into every container.
    monkeypatch.setenv("ENGINEHOUSE_PORT", "tcp://10.0.0.7:80")
    monkeypatch.setenv("ENGINEHOUSE_SERVICE_HOST", "10.0.0.7")
    monkeypatch.setenv("ENGINEHOUSE_SERVICE_PORT_HTTP", "80")
    monkeypatch.setenv("ENGINEHOUSE_PORT_80_TCP_ADDR", "10.0.0.7")
    monkeypatch.setenv("ENGINEHOUSE_POD_PORT", "tcp://10.0.0.8:80")
    settings = read("--engine=grpc://a:1")
    assert settings.http.port == Settings().http.port
    assert settings.sources.pod_port is None


def test_unknown_variables_are_told_with_a_guess() -> None:
    told = unknown({"ENGINEHOUSE_DRAINTIMEOUT": "1", "ENGINEHOUSE_SERVICE_HOST": "x", "ENGINEHOUSE_PORT": "1"})
    assert told == ["ENGINEHOUSE_DRAINTIMEOUT is not a setting; did you mean 'ENGINEHOUSE_DRAIN_TIMEOUT'?"]


def test_a_bad_variable_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEHOUSE_PORT", "eighty")
    assert "ENGINEHOUSE_PORT: 'eighty' is not a whole number" in refused("--engine=grpc://a:1")
