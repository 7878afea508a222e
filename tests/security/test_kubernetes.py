"""deploy/kubernetes: strangers cannot read the daemons of the cluster, nor own their files."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from deploy.kustomize import build, containers, pod
from processes import DEADLINE, ROOT, clean_environ, http

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processes import Daemon

KUBERNETES = ROOT / "deploy" / "kubernetes"
CLUSTER = build(KUBERNETES / "examples" / "cluster")
CAPTURES = KUBERNETES / "examples" / "training-with-captures"
"""Its daemon has the user of the training next to it, which writes the profiles, and serves nobody else."""

WITH_PODS = [
    one
    for directory in (KUBERNETES / "base", *sorted(set((KUBERNETES / "examples").iterdir()) - {CAPTURES}))
    for one in build(directory)
    if pod(one)
]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")

SHARED = {65532, 65534, 1000}
"""Users of other images: nonroot of distroless images, nobody, and the first user of a distribution."""


def daemons() -> list[dict[str, Any]]:
    """Return the containers of all manifests that run a daemon."""
    return [one for made in WITH_PODS for one in containers(made) if one.get("command") == ["trackside"]]


def test_a_daemon_in_the_network_of_its_node_requires_a_password() -> None:
    on_nodes = [one for one in WITH_PODS if pod(one).get("hostNetwork")]
    assert on_nodes
    for one in on_nodes:
        (daemon,) = pod(one)["containers"]
        variables = {each["name"]: each["value"] for each in daemon["env"]}
        file = variables["TRACKSIDE_WEB__CONFIG__FILE"]
        (mount,) = (each for each in daemon["volumeMounts"] if file.startswith(each["mountPath"] + "/"))
        (volume,) = (each for each in pod(one)["volumes"] if each["name"] == mount["name"])
        assert mount["readOnly"]
        assert volume["secret"]["secretName"] == "trackside-web"
        assert "password" not in {each["key"] for each in volume["secret"]["items"]}
        assert volume["secret"]["defaultMode"] & 0o007 == 0
        assert {value["httpGet"]["scheme"] for key, value in daemon.items() if key.endswith("Probe")} == {"HTTPS"}


def test_prometheus_sends_the_password_over_tls_only() -> None:
    (monitor,) = (one for one in CLUSTER if one["kind"] == "PodMonitor" and one["metadata"]["name"] == "trackside")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == "trackside-web"
    assert set(endpoint["basicAuth"]) == {"username", "password"}
    (plain,) = (
        one["spec"]["podMetricsEndpoints"][0]
        for one in _read(KUBERNETES / "components/prometheus/podmonitor.yaml")
        if one["metadata"]["name"] == "trackside"
    )
    assert plain.items() <= endpoint.items(), "the patch replaces the endpoint, so it has to repeat it"


def _read(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def test_the_user_of_the_daemon_is_not_that_of_other_images() -> None:
    users = {pod(one)["securityContext"].get("runAsUser") for one in WITH_PODS if one["kind"] == "DaemonSet"}
    users |= {one["securityContext"].get("runAsUser") for one in daemons()} - {None}
    assert users == {21790}
    assert not users & SHARED
    image = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert f"USER {users.pop()}:21790" in image


def test_a_daemon_with_the_user_of_a_training_is_of_its_pod_alone() -> None:
    (job,) = (one for one in build(CAPTURES) if pod(one))
    (daemon,) = (one for one in containers(job) if one.get("command") == ["trackside"])
    assert daemon["securityContext"]["runAsUser"] == pod(job)["securityContext"]["runAsUser"]
    volumes = {one["name"]: one for one in pod(job)["volumes"]}
    assert all("hostPath" not in volumes[mount["name"]] for mount in daemon["volumeMounts"])


def test_a_training_next_to_a_sidecar_cannot_replace_its_socket() -> None:
    (job,) = (one for one in WITH_PODS if one["kind"] == "Job" and pod(one).get("shareProcessNamespace"))
    (main,) = pod(job)["containers"]
    (mount,) = (one for one in main["volumeMounts"] if one["mountPath"] == "/run/trackside")
    assert mount["readOnly"]


def test_the_commands_of_the_page_make_a_secret_that_closes_metrics(
    tmp_path: Path, start_daemon: Callable[..., Daemon]
) -> None:
    (block,) = (one for one in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "openssl" in one)
    steps, _, created = block.partition("kubectl ")
    script = steps.replace("python -c", f"{sys.executable} -c")
    done = subprocess.run(
        ["sh", "-ec", script], cwd=tmp_path, env=clean_environ(), capture_output=True, check=False, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stderr
    for name in ("web-config.yml", "server.pem", "server.key", "password"):
        assert (tmp_path / name).is_file()
        assert f"--from-file={name}" in created
    password = (tmp_path / "password").read_text()
    trusted = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
    asking: dict[str, Any] = {"verify": trusted, "auth": ("prometheus", password)}
    daemon = start_daemon(f"--web.config.file={tmp_path / 'web-config.yml'}", "--no-collector.gpu", asking=asking)
    assert [daemon.get(path).status_code for path in ("/metrics", "/api/v1/runs", "/")] == [200, 403, 403]
    admin = ("admin", (tmp_path / "admin-password").read_text())
    with httpx.Client(verify=trusted, trust_env=False, auth=admin) as client:
        assert client.post(f"{daemon.url}/api/v1/silences", json={"labels": {}, "for": 60}).status_code == 200
        assert client.post(f"{daemon.url}/api/v1/silences", auth=asking["auth"], json={}).status_code == 403
    # What Prometheus does with serverName: the address is that of a node, the name is the certificate's.
    with httpx.Client(verify=trusted, trust_env=False) as client:
        for path, status in (("/metrics", 401), ("/api/v1/runs", 401), ("/-/healthy", 200), ("/-/ready", 200)):
            assert client.get(daemon.url + path, extensions={"sni_hostname": "trackside"}).status_code == status
    with pytest.raises(httpx.TransportError):
        http.get(daemon.url.replace("https://", "http://") + "/metrics")
