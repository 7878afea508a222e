"""deploy/kubernetes at run time: the real daemon with the flags, variables, users and mounts of the manifests."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deploy.kustomize import build, pod
from deploy.pod import Container, mounts, possible, user, variables
from processes import ROOT, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

pytestmark = pytest.mark.skipif(not possible(), reason="needs root and mount namespaces (CAP_SYS_ADMIN)")

EXAMPLES = ROOT / "deploy" / "kubernetes" / "examples"
FIELDS = {
    "metadata.labels['batch.kubernetes.io/job-name']": "gpt-small",
    "metadata.labels['batch.kubernetes.io/controller-uid']": "7c1d",
    "metadata.name": "gpt-small-x7k2p",
    "metadata.namespace": "research",
}
TRAINING = """
import time, trackside
for step in range(1, 10**6):
    trackside.push(step=step, loss=1 / step)
    time.sleep(0.05)
"""
STEPS = 'trackside_training_steps_total{rank="0",run="research.gpt-small"}'


def made(directory: Path, kind: str) -> dict[str, Any]:
    """Return the Pod specification of the manifest of this kind."""
    return next(pod(one) for one in build(directory) if one["kind"] == kind)


def named(containers: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(one for one in containers if one["name"] == name)


@pytest.fixture
def volumes(place: Path) -> dict[str, Path]:
    """Directories for the volumes of all manifests; those that the kubelet creates belong to root."""
    found = {name: place / name for name in ("run", "history", "config", "web", "tmp", "trackside", "shm")}
    found |= {"trackside-history": place / "own-history", "trackside-tmp": place / "own-tmp"}
    for path in found.values():
        path.mkdir(mode=0o755)
    for name in ("tmp", "trackside", "trackside-history", "trackside-tmp"):  # an emptyDir
        found[name].chmod(0o777)
    (found["config"] / "trackside.yml").write_bytes((EXAMPLES.parent / "base" / "trackside.yml").read_bytes())
    return found


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., Container]]:
    """A function that starts a container of a Pod; the container ends with the test."""
    with ExitStack() as ends:

        def started(
            spec: Mapping[str, Any], container: Mapping[str, Any], seen: Mapping[str, Path], *command: str, **more: Any
        ) -> Container:
            root = place / f"{container['name']}-root"
            root.mkdir()
            environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", **variables(container, FIELDS)}
            found = Container(
                root,
                command or [*our_command(container["command"]), *container.get("args", ())],
                user(spec, container),
                environ,
                mounts(container, seen),
                **more,
            )
            ends.callback(found.kill)
            return found

        yield started


def our_command(command: list[str]) -> list[str]:
    return [sys.executable, "-m", "trackside_daemon"] if command == ["trackside"] else command


def answers_its_probes(daemon: Container, container: Mapping[str, Any]) -> None:
    probes = [value for key, value in container.items() if key.endswith("Probe")]
    assert probes
    (port,) = container["ports"]
    assert port["containerPort"] == 21790
    for probe in probes:
        assert probe["httpGet"]["port"] == port["name"]
        daemon.answers(probe["httpGet"]["path"])


def ends_well(daemon: Container) -> list[str]:
    """Stop the daemon, and return the log lines about missing rights, unknown variables or errors but a killed rank."""
    daemon.send(signal.SIGTERM)
    status, log = daemon.wait()
    assert status == 0, log
    wrong = ("level=error", "ermission", "ead-only", "not a setting")
    lines = [line for line in log.splitlines() if any(one in line for one in wrong)]
    return [line for line in lines if "TrainingProcessDied (critical)" not in line]


def test_a_daemon_on_a_node_accepts_pushes_from_another_user_s_pod(
    start: Callable[..., Container], volumes: dict[str, Path]
) -> None:
    spec = made(EXAMPLES.parent / "base", "DaemonSet")
    own = named(spec["initContainers"], "own")
    added = ",".join(f"+{name.lower()}" for name in own["securityContext"]["capabilities"]["add"])
    assert start(spec, own, volumes, privileges=[f"--bounding-set=-all,{added}", "--inh-caps=-all"]).wait() == (0, "")
    container = named(spec["containers"], "trackside")
    daemon = start(spec, container, volumes)
    answers_its_probes(daemon, container)

    job = made(EXAMPLES / "training-on-node", "Job")
    main = named(job["containers"], "main")
    training = start(job, main, {"trackside": volumes["run"], "shm": volumes["shm"]}, sys.executable, "-c", TRAINING)
    daemon.has(STEPS, "trackside_training_run_info{")
    training.kill()
    assert ends_well(daemon) == []
    assert (volumes["history"] / "history.db").stat().st_uid == spec["securityContext"]["runAsUser"]


def test_a_daemon_that_sees_the_node_reports_the_pod_of_a_rank_and_its_end(
    start: Callable[..., Container], volumes: dict[str, Path]
) -> None:
    spec = made(EXAMPLES / "cluster", "DaemonSet")
    assert spec["hostPID"]
    assert spec["hostNetwork"]
    container = named(spec["containers"], "trackside")
    user_id = user(spec, container)
    for name in ("run", "history"):
        os.chown(volumes[name], user_id.uid, user_id.gid)
    (volumes["web"] / "web-config.yml").touch()  # an empty one restricts nothing; tests/security has the example's
    host = {"proc": Path("/proc"), "sys": Path("/sys"), "root": Path("/")}
    daemon = start(spec, container, {**volumes, **host}, host_pid=True)
    answers_its_probes(daemon, container)

    job = made(EXAMPLES / "training-on-node", "Job")
    main = named(job["containers"], "main")
    training = start(job, main, {"trackside": volumes["run"], "shm": volumes["shm"]}, sys.executable, "-c", TRAINING)
    daemon.has(STEPS, "trackside_host_filesystem_size_bytes{")
    where = 'k8s_container="main",k8s_namespace="research",k8s_pod="gpt-small-x7k2p"'
    eventually(lambda: where in daemon.ask("/metrics"))
    training.send(signal.SIGKILL)
    daemon.has('trackside_training_state{run="research.gpt-small",state="failed"} 1')
    assert ends_well(daemon) == []


def test_a_sidecar_accepts_the_pushes_of_its_pod_alone_and_sees_its_end(
    start: Callable[..., Container], volumes: dict[str, Path]
) -> None:
    job = made(EXAMPLES / "training-with-sidecar", "Job")
    container = named(job["initContainers"], "trackside")
    daemon = start(job, container, volumes)
    answers_its_probes(daemon, container)
    main = named(job["containers"], "main")
    # A user outside the group.
    outside = {**job, "securityContext": {**job["securityContext"], "supplementalGroups": []}}
    code = "import trackside.environment.discovery as d, os; print(d.find(None, os.environ))"
    stranger = {**main, "name": "stranger"}  # has a root of its own
    reported = start(outside, stranger, volumes, sys.executable, "-c", code, beside=daemon)
    assert "/run/trackside/push.sock (permission denied: join the group 21790)" in reported.wait()[1]
    training = start(job, main, volumes, sys.executable, "-c", TRAINING, beside=daemon)
    daemon.has(STEPS, "trackside_process_resident_memory_bytes{")
    training.send(signal.SIGKILL)
    daemon.has('trackside_training_state{run="research.gpt-small",state="failed"} 1')
    assert ends_well(daemon) == []
