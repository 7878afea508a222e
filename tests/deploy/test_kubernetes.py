"""deploy/kubernetes: the manifests are well-formed, and match this version, its settings and each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from deploy.kustomize import build, built, canonical, containers, has_kubectl, pod, resolved
from documents import generator
from processes import ROOT

from trackside.captures import kineto
from trackside_daemon import __version__
from trackside_daemon.config.loading import CLIENT_VARIABLES, variables
from trackside_daemon.service.config import Config

KUBERNETES = ROOT / "deploy" / "kubernetes"
DASHBOARDS = ROOT / "grafana" / "dashboards"
DIRECTORIES = [KUBERNETES / "base", *sorted((KUBERNETES / "examples").iterdir())]
OBJECTS = [(directory.name, one) for directory in DIRECTORIES for one in build(directory)]
IDS = [f"{name}-{one['kind']}-{one['metadata']['name']}" for name, one in OBJECTS]
WITH_PODS = [pytest.param(one, id=label) for label, (_, one) in zip(IDS, OBJECTS, strict=True) if pod(one)]
CLUSTER = [one for name, one in OBJECTS if name == "cluster"]

OPERATOR = {"PodMonitor", "PrometheusRule"}
OLDEST = "1.29"
"""First Kubernetes with native sidecars by default."""

OTHERS = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "POD_NAME", "POD_NAMESPACE", "CONTAINER_NAME"}
NUMBERS, TEXTS = {"type": "integer"}, {"type": "string"}
RELABELING = {
    "type": "object",
    "required": ["targetLabel"],
    "additionalProperties": False,
    "properties": {"targetLabel": TEXTS, "replacement": TEXTS, "sourceLabels": {"type": "array", "items": TEXTS}},
}
KEY = {
    "type": "object",
    "required": ["name", "key"],
    "additionalProperties": False,
    "properties": {"name": TEXTS, "key": TEXTS},
}
ENDPOINT = {
    "type": "object",
    "required": ["port"],
    "additionalProperties": False,
    "properties": {
        "port": TEXTS,
        "interval": TEXTS,
        "scrapeTimeout": TEXTS,
        "relabelings": {"type": "array", "items": RELABELING},
        "metricRelabelings": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["action", "regex"],
                "additionalProperties": False,
                "properties": {
                    "action": {"enum": ["keep", "drop", "labeldrop"]},
                    "regex": TEXTS,
                    "sourceLabels": {"type": "array", "items": TEXTS},
                },
            },
        },
        "scheme": {"enum": ["http", "https"]},
        "basicAuth": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"username": KEY, "password": KEY},
        },
        "tlsConfig": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "ca": {"type": "object", "additionalProperties": False, "properties": {"secret": KEY}},
                "serverName": TEXTS,
            },
        },
    },
}
POD_MONITOR = {
    "type": "object",
    "required": ["selector", "podMetricsEndpoints"],
    "additionalProperties": False,
    "properties": {
        "selector": {"type": "object", "required": ["matchLabels"]},
        "namespaceSelector": {"type": "object", "properties": {"any": {"type": "boolean"}}},
        "sampleLimit": NUMBERS,
        "labelLimit": NUMBERS,
        "labelValueLengthLimit": NUMBERS,
        "bodySizeLimit": TEXTS,
        "podMetricsEndpoints": {"type": "array", "items": ENDPOINT},
    },
}
"""Used part of monitoring.coreos.com/v1, because no package has the API of the operator."""


@pytest.mark.skipif(not has_kubectl(), reason="no kubectl of 1.27 or later: only our own reading of them is tested")
@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda one: one.name)
def test_our_reader_of_kustomizations_agrees_with_kubectl(directory: Path) -> None:
    assert canonical(resolved(directory)) == canonical(built(directory))


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    kinds = {one["kind"] for _, one in OBJECTS}
    assert kinds == OPERATOR | {
        "Namespace",
        "PriorityClass",
        "ServiceAccount",
        "ConfigMap",
        "DaemonSet",
        "Job",
        "NetworkPolicy",
    }
    role = (KUBERNETES / "components/prometheus-role/role.yaml").read_text(encoding="utf-8")
    for one in (*(one for _, one in OBJECTS), *yaml.safe_load_all(role)):
        if one["kind"] not in OPERATOR:
            kubernetes_validate.validate(one, version, strict=True)


def test_a_misspelt_field_is_rejected() -> None:
    wrong = json.loads(json.dumps(next(one for one in CLUSTER if one["kind"] == "DaemonSet")))
    pod(wrong)["hostPid"] = pod(wrong).pop("hostPID")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


@pytest.mark.parametrize("one", WITH_PODS)
def test_every_mounted_volume_exists_and_is_used(one: dict[str, Any]) -> None:
    mounted = {mount["name"] for container in containers(one) for mount in container.get("volumeMounts", ())}
    assert mounted == {volume["name"] for volume in pod(one).get("volumes", ())}


@pytest.mark.parametrize("one", WITH_PODS)
def test_images_of_ours_are_of_this_version(one: dict[str, Any]) -> None:
    for container in containers(one):
        name, _, tag = container["image"].rpartition(":")
        assert name.endswith("/training") or (name.rpartition("/")[2], tag) == ("trackside", __version__)


@pytest.mark.parametrize("one", WITH_PODS)
def test_every_variable_is_read_by_the_code(one: dict[str, Any]) -> None:
    given = [variable for container in containers(one) for variable in container.get("env", ())]
    parts = {name for variable in given for name in re.findall(r"\$\((\w+)\)", variable.get("value", ""))}
    names = {variable["name"] for variable in given}
    assert names - parts <= {*variables(Config), *CLIENT_VARIABLES, *OTHERS, *kineto.variables(Path())}


def test_the_daemon_accepts_pushes_from_the_configured_group() -> None:
    for where, kind in (("base", "DaemonSet"), ("training-with-sidecar", "Job")):
        pods = [pod(one) for name, one in OBJECTS if name == where and one["kind"] == kind]
        (args,) = ([*one.get("initContainers", ()), *one["containers"]] for one in pods)
        (group,) = {arg.partition("=")[2] for one in args for arg in one.get("args", ()) if "--push.group=" in arg}
        trainers = [pod(one) for name, one in OBJECTS if name.startswith("training-") and one["kind"] == "Job"]
        assert all(one["securityContext"]["supplementalGroups"] == [int(group)] for one in trainers)


def test_a_training_with_captures_asks_its_sidecar_and_both_are_one_user_with_the_same_files() -> None:
    (spec,) = (pod(one) for name, one in OBJECTS if name == "training-with-captures" and one["kind"] == "Job")
    (sidecar,), (training,) = spec["initContainers"], spec["containers"]
    (endpoint,) = (arg.partition("=ipc://")[2] for arg in sidecar["args"] if "--push.endpoint=" in arg)
    environ = {one["name"]: one["value"] for one in training["env"] if "value" in one}
    expected = kineto.variables(kineto.socket_directory(Path(endpoint)))
    assert {name: value for name, value in environ.items() if name.startswith("KINETO_")} == expected
    assert sidecar["securityContext"]["runAsUser"] == spec["securityContext"]["runAsUser"]
    mounts = {one["mountPath"]: one for one in training["volumeMounts"]}
    for one in sidecar["volumeMounts"]:
        if one["mountPath"] != "/tmp":
            assert mounts[one["mountPath"]]["name"] == one["name"]
            assert not mounts[one["mountPath"]].get("readOnly")


def violations(spec: dict[str, Any]) -> set[str]:
    """Return the fields of a Pod that exceed the level restricted of the Pod Security Standards."""
    found = {name for name in ("hostPID", "hostNetwork", "hostIPC") if spec.get(name)}
    found |= {kind for volume in spec.get("volumes", ()) for kind in volume if kind == "hostPath"}
    for one in [*spec.get("initContainers", ()), *spec["containers"]]:
        context = {**spec.get("securityContext", {}), **one.get("securityContext", {})}
        capabilities = context.get("capabilities", {})
        wrong = {
            "root": not context.get("runAsNonRoot") or context.get("runAsUser") == 0,
            "escalation": context.get("allowPrivilegeEscalation") is not False,
            "capabilities": capabilities.get("drop") != ["ALL"] or capabilities.get("add", []) != [],
            "seccomp": context.get("seccompProfile", {}).get("type") != "RuntimeDefault",
        }
        found |= {f"{one['name']}: {name}" for name, so in wrong.items() if so}
    return found


@pytest.mark.parametrize(
    ("directory", "kind", "more"),
    [
        ("base", "DaemonSet", {"hostPath", "own: root", "own: capabilities"}),
        ("cluster", "DaemonSet", {"hostPath", "own: root", "own: capabilities", "hostPID", "hostNetwork"}),
        ("training-on-node", "Job", {"hostPath"}),
        ("training-with-sidecar", "Job", set()),
        ("training-with-captures", "Job", set()),
    ],
)
def test_a_pod_needs_no_more_rights_than_the_page_states(directory: str, kind: str, more: set[str]) -> None:
    (spec,) = (pod(one) for name, one in OBJECTS if name == directory and one["kind"] == kind)
    assert violations(spec) == more


def test_the_namespace_allows_what_the_daemon_needs() -> None:
    (namespace,) = (one for one in CLUSTER if one["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_each_pod_monitor_finds_its_pods_and_calls_them_as_the_rules_do() -> None:
    templates = [
        (one["spec"]["template"].get("metadata", {}).get("labels", {}), containers(one))
        for _, one in OBJECTS
        if pod(one)
    ]
    monitors = [one for one in CLUSTER if one["kind"] == "PodMonitor"]
    assert len(monitors) == 2
    for one in monitors:
        jsonschema.validate(one["spec"], POD_MONITOR)
        (endpoint,) = one["spec"]["podMetricsEndpoints"]
        found = [each for labels, each in templates if one["spec"]["selector"]["matchLabels"].items() <= labels.items()]
        assert found
        for each in found:
            assert endpoint["port"] in {port["name"] for container in each for port in container.get("ports", ())}
        labels = {relabeling["targetLabel"]: relabeling for relabeling in endpoint["relabelings"]}
        ends = labels.pop("short_lived", None)  # a training's own: only `up` keeps it
        changes = {one["action"]: one["regex"] for one in endpoint.get("metricRelabelings", ())}
        assert changes.get("labeldrop") == ("short_lived" if ends else None)
        # Whoever may start a Pod must not speak for other exporters, such as kube-state-metrics.
        assert changes.get("keep") == ("trackside_.*|process_.*|python_.*" if ends else None)
        assert labels["job"]["replacement"] == "trackside"
        assert set(labels) == {"job", "instance", "node"}


def test_the_limits_are_those_of_the_scrape_configuration() -> None:
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    for one in (one for one in CLUSTER if one["kind"] == "PodMonitor"):
        for name, limit in job.items():
            if name.endswith("_limit"):
                camel = re.sub("_(.)", lambda found: found[1].upper(), name)
                assert one["spec"][camel] == limit


def test_the_manifest_of_rules_equals_the_output_of_the_command() -> None:
    generate = generator()
    assert generate.MANIFEST.read_text(encoding="utf-8") == generate.manifest(), "run: python docs/generate.py"


def test_the_manifest_has_the_rules_of_the_rule_file(tmp_path: Path) -> None:
    (one,) = (one for one in CLUSTER if one["kind"] == "PrometheusRule")
    assert one["apiVersion"] == "monitoring.coreos.com/v1"
    assert one["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/trackside.rules.yml").read_text(encoding="utf-8"))
    if shutil.which("promtool") is not None:
        file = tmp_path / "rules.yml"
        file.write_text(json.dumps(one["spec"]))
        done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_dashboard_is_a_config_map_that_grafana_finds_and_that_has_room_to_grow() -> None:
    maps = [one for one in CLUSTER if one["metadata"]["labels"].get("grafana_dashboard") == "1"]
    held = dict(chain.from_iterable(one["data"].items() for one in maps))
    assert held == {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS.glob("*.json")}
    assert all(len(json.dumps(one).encode()) < 900_000 for one in maps)  # the API server takes 1 MiB


def test_the_label_of_a_release_is_on_what_the_operator_chooses_by_it_and_on_nothing_else() -> None:
    for one in CLUSTER:
        release = one["metadata"]["labels"].get("release")
        assert release == ("prometheus" if one["kind"] in OPERATOR else None)
    (daemon,) = (one for one in CLUSTER if one["kind"] == "DaemonSet")
    assert daemon["spec"]["selector"]["matchLabels"] == {"app.kubernetes.io/name": "trackside"}


HANGS = (503, {"Trackside-Verdict": "hangs"})


@pytest.mark.parametrize(
    "answer", [HANGS, (503, {}), (500, {}), (200, {}), "no daemon", "no HTTP", "a proxy", "no Python"]
)
def test_the_probe_of_a_training_fails_only_for_a_verdict_of_the_daemon(answer: Any, tmp_path: Path) -> None:
    container = yaml.safe_load((KUBERNETES / "components/liveness/job.yaml").read_text())["spec"]["template"]["spec"]
    command = container["containers"][0]["livenessProbe"]["exec"]["command"]
    status, headers = answer if isinstance(answer, tuple) else HANGS
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if answer == "no HTTP":
                self.wfile.write(b"220 mail\r\n")
                return
            self.send_response(status)
            for header in headers.items():
                self.send_header(*header)
            self.end_headers()
            self.wfile.write(b"run a/b stands still")

        def log_message(self, *_: object) -> None: ...

    if answer != "no Python":
        (tmp_path / "python").symlink_to(sys.executable)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        url, port = f"http://127.0.0.1:{server.server_port}", server.server_port
        environ = {
            "PATH": f"{tmp_path}:/usr/bin:/bin" if answer != "no Python" else f"{tmp_path}",
            "TRACKSIDE_RUN_NAME": "a/b",
        }
        environ |= {"http_proxy": url, "LIVENESS_PORT": "1"} if answer == "a proxy" else {"LIVENESS_PORT": str(port)}
        if answer == "no daemon":
            server.server_close()
        else:
            threading.Thread(target=server.handle_request, daemon=True).start()
        done = subprocess.run(["/bin/sh", *command[1:]], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == ((1, "run a/b stands still\n") if answer == HANGS else (0, ""))
    assert asked == (["/-/run/a%2Fb/live"] if isinstance(answer, tuple) or answer == "no HTTP" else [])
