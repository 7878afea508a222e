"""deploy/helm: Helm's own library renders the chart, Kubernetes' schema accepts it, and it equals the kustomizations."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from socket import AF_UNIX, socket
from socketserver import StreamRequestHandler, UnixStreamServer
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from deploy.kustomize import build, pod
from deploy.test_kubernetes import OLDEST, OPERATOR, POD_MONITOR, violations
from processes import DEADLINE, ROOT, clean_environ, eventually

from trackside_daemon import __version__
from trackside_daemon.alerts.rules.fleet import fleet
from trackside_daemon.config.loading import load
from trackside_daemon.service.config import Config

if TYPE_CHECKING:
    from collections.abc import Mapping

pytest.importorskip("helm_python", reason="Helm's library is a package for Linux on x86-64")

KUBERNETES = ROOT / "deploy" / "kubernetes"
VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "alone": {"host": {"enabled": False}, "webConfig": {"secret": ""}, "networkPolicy": {"enabled": True}},
    "bare": {
        "webConfig": {"secret": ""},
        "host": {"enabled": False},
        "podMonitor": {"enabled": False},
        "prometheusRule": {"enabled": False},
        "dashboards": {"enabled": False},
        "priorityClass": {"create": False, "name": ""},
        "runtimeClassName": "",
        "imagePullSecrets": [{"name": "registry"}],
        "image": {"digest": f"sha256:{'a' * 64}"},
    },
    "labelled": {
        "podMonitor": {
            "labels": {"release": "prometheus"},
            "metricRelabelings": [{"action": "drop", "regex": "a"}],
            "sidecarNamespaces": ["research"],
        },
        "prometheusRule": {"labels": {"release": "prometheus"}, "runbookUrl": "https://wiki.example.com/alerts"},
        "dashboards": {"annotations": {"grafana_folder": "Trainings"}},
        "config": {"storage": {"retention": {"age": "90d"}}},
        "podResources": {"enabled": True},
        "podLabels": {"team": "a"},
    },
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"podmonitor": {"enabled": False}}, "podmonitor"),
    "open": ({"webConfig": {"secret": ""}}, "set webConfig.secret"),
    "slow": ({"podMonitor": {"interval": "60s"}}, "interval"),
}


@pytest.fixture(scope="module")
def chart() -> dict[str, Any]:
    """The files that Helm makes of the chart with each of `VALUES`, its errors for `REFUSED`, and the findings of its own check."""
    every = {**VALUES, **{name: values for name, (values, _) in REFUSED.items()}}
    program = [sys.executable, str(Path(__file__).with_name("helm_chart.py")), *map(json.dumps, every.values())]
    done = subprocess.run(program, env=clean_environ(), capture_output=True, text=True, check=True, timeout=DEADLINE)
    answer = json.loads(done.stdout)
    return {"lint": answer["lint"], **dict(zip(every, answer["made"], strict=True))}


def objects(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    documents = (yaml.load_all(text, yaml.CSafeLoader) for text in made["files"].values())
    return [one for each in documents for one in each if one is not None]


def one(kind: str, among: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (one for one in among if one["kind"] == kind)
    return found


def test_helm_finds_nothing_wrong_and_refuses_what_is_misspelt_or_unsafe(chart: dict[str, Any]) -> None:
    assert chart["lint"]["errors"] == []
    assert [one["error"] for one in chart["lint"]["messages"]] == ["icon is recommended"]
    assert {name for name, (_, words) in REFUSED.items() if words not in chart[name].get("error", "")} == set()
    described = yaml.safe_load((ROOT / "deploy/helm/Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_accepts_every_object(chart: dict[str, Any], name: str) -> None:
    for made in objects(chart[name]):
        if made["kind"] == "PodMonitor":
            jsonschema.validate(made["spec"], POD_MONITOR)
        elif made["kind"] not in OPERATOR:
            kubernetes_validate.validate(made, OLDEST, strict=True)


def test_prometheus_is_admitted_and_asks_as_with_the_kustomization(chart: dict[str, Any]) -> None:
    for name, example, kind in (
        ("default", "cluster", "PodMonitor"),
        ("alone", "daemon-alone", "PodMonitor"),
        ("alone", "daemon-alone", "NetworkPolicy"),
    ):
        made, built = objects(chart[name]), build(KUBERNETES / "examples" / example)
        ours, theirs = ([one["spec"] for one in among if one["kind"] == kind] for among in (made, built))
        ours[0].get("podSelector", ours[0].get("selector"))["matchLabels"].pop("app.kubernetes.io/instance")
        assert ours == theirs
    assert one("NetworkPolicy", objects(chart["bare"])) == one("NetworkPolicy", objects(chart["alone"]))
    labelled = [each["spec"] for each in objects(chart["labelled"]) if each["kind"] == "PodMonitor"]
    assert labelled[1]["namespaceSelector"] == {"matchNames": ["research"]}


@pytest.mark.parametrize(("name", "example"), [("default", "cluster"), ("alone", "daemon-alone")])
def test_the_chart_and_the_kustomization_make_the_same_pods(chart: dict[str, Any], name: str, example: str) -> None:
    ours, theirs = (
        pod(one("DaemonSet", among)) for among in (objects(chart[name]), build(KUBERNETES / "examples" / example))
    )
    for spec in (ours, theirs):
        (daemon,) = spec["containers"]
        daemon["env"] = {variable["name"]: variable["value"] for variable in daemon["env"]}
        for each in (*spec["initContainers"], daemon):
            each.pop("imagePullPolicy", None)
            each["volumeMounts"] = sorted(each["volumeMounts"], key=lambda mount: mount["mountPath"])
        spec["volumes"] = {volume["name"]: volume for volume in spec["volumes"]}
        spec["volumes"]["config"]["configMap"] = "without kustomize's hash"
    assert ours == theirs
    assert {kind["kind"] for kind in objects(chart[name])} == {
        kind["kind"] for kind in build(KUBERNETES / "examples" / example)
    } - {"Namespace"} | ({"ConfigMap"} if name == "alone" else set())


def test_rules_and_dashboards_are_those_of_this_version(chart: dict[str, Any]) -> None:
    made = objects(chart["default"])
    rules = yaml.safe_load((ROOT / "deploy/prometheus/trackside.rules.yml").read_text(encoding="utf-8"))
    assert one("PrometheusRule", made)["spec"] == rules
    held = {name: text for each in made if each["kind"] == "ConfigMap" for name, text in each["data"].items()}
    assert {name for name in held if name.endswith(".json")} == {
        path.name for path in (ROOT / "grafana" / "dashboards").glob("*.json")
    }
    for name, text in held.items():
        if name.endswith(".json"):
            assert text == (ROOT / "grafana" / "dashboards" / name).read_text(encoding="utf-8")


def test_labels_runbooks_and_settings_arrive(chart: dict[str, Any], tmp_path: Path) -> None:
    made = objects(chart["labelled"])
    assert {each["metadata"]["labels"].get("release") for each in made if each["kind"] in OPERATOR} == {"prometheus"}
    rule = json.dumps(one("PrometheusRule", made))
    assert "https://wiki.example.com/alerts#gpulost" in rule
    assert "docs/alerts.md" not in rule
    texts = [each["data"] for each in made if each["kind"] == "ConfigMap" and "trackside.yml" in each["data"]]
    (tmp_path / "trackside.yml").write_text(texts[0]["trackside.yml"])
    storage = load(Config, tmp_path / "trackside.yml").storage
    assert (storage.retention.age, storage.min_free) == (90 * 86400.0, 10 * 1024**3)
    folders = {
        each["metadata"].get("annotations", {}).get("grafana_folder") for each in made if each["kind"] == "ConfigMap"
    }
    assert folders == {None, "Trainings"}


def test_a_pod_needs_no_more_rights_than_the_page_states(chart: dict[str, Any]) -> None:
    usual = {"hostPath", "own: root", "own: capabilities"}
    found = {name: violations(pod(one("DaemonSet", objects(chart[name])))) for name in VALUES}
    assert found["alone"] == usual
    assert found["default"] == usual | {"hostPID", "hostNetwork"}
    assert found["labelled"] == found["default"] | {"pod-resources: root"}


def test_the_container_that_is_root_sees_the_kubelets_socket_alone_and_relays_it(
    chart: dict[str, Any], tmp_path: Path
) -> None:
    *_, container = pod(one("DaemonSet", objects(chart["labelled"])))["containers"]
    python, *options, _, ours = container["command"]
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert (python, mounts) == ("python", {"/var/lib/kubelet/pod-resources": True, str(Path(ours).parent): False})
    with (
        UnixStreamServer(str(tmp_path / "kubelet"), Echo) as kubelet,
        subprocess.Popen([sys.executable, *options, tmp_path / "kubelet", tmp_path / "ours"]) as relay,
        socket(AF_UNIX) as client,
    ):
        threading.Thread(target=kubelet.handle_request, daemon=True).start()
        try:
            eventually(lambda: client.connect_ex(str(tmp_path / "ours")) == 0)
            assert (tmp_path / "ours").stat().st_mode & 0o777 == 0o666
            client.sendall(b"list\n")
            assert client.makefile("rb").read() == b"list\n"
        finally:
            relay.terminate()
    assert relay.returncode == 0


class Echo(StreamRequestHandler):
    """Answers with the line that it got."""

    def handle(self) -> None:
        self.wfile.write(self.rfile.readline())


def test_a_rolling_update_takes_fewer_daemons_than_the_rule_pages_for(chart: dict[str, Any]) -> None:
    (expr,) = (rule.expr for rule in fleet("trackside") if rule.alert == "TracksideSidecarsDown")
    (threshold,) = re.findall(r">= (0\.\d+)|> (0\.\d+)", expr)
    share = one("DaemonSet", objects(chart["default"]))["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"]
    assert float(share.rstrip("%")) / 100 < float("".join(threshold))
