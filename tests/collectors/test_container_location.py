"""Container of a process, from the path of its cgroup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trackside_daemon.collectors.process.process_tree import ProcessKey
from trackside_daemon.collectors.process.ranks import ContainerLocation, ContainerLocations, slurm_job
from trackside_daemon.linux.cgroups import LABEL_BYTES, label

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ID = "3f4b7c9d0a1e" + "5" * 52
OTHER = "a" * 64
POD = "kubepods-burstable-pod6b1f0c3e_7f2a_4b8e_9d3c_1a2b3c4d5e6f"
V1 = "11:memory:/slurm/uid_9/job_7\n5:cpu,cpuacct:/slurm/uid_9\n1:name=systemd:/system.slice/slurmd.service\n"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/user.slice/session-1.scope\n", "/user.slice/session-1.scope"),
        ("0::/\n", "/"),
        ("0::/a:b\n", "/a:b"),
        (f"{V1}0::/system.slice/slurmd.service\n", "/slurm/uid_9/job_7"),
        ("4:cpu,cpuacct:/docker/x\n2:devices:/y\n0::/init.scope\n", "/docker/x"),
        ("4:cpuset:/x\n1:name=systemd:/y\n0::/user.slice\n", "/user.slice"),
        ("1:name=systemd:/y\n", ""),
        ("0::/gone.scope (deleted)\n", "/gone.scope"),
        ("noise\n0::/user.slice\n\n", "/user.slice"),
        ("0::/caf\udce9\n", "/caf?"),
        ("", ""),
        (f"0::/{'x' * 300}/job_7/step_0\n", f"{'x' * (LABEL_BYTES - 13)}/job_7/step_0"),
        (f"0::/{'é' * 300}\n", "é" * (LABEL_BYTES // 2)),
    ],
)
def test_a_process_is_labelled_by_the_cgroup_that_limits_its_memory(text: str, path: str) -> None:
    assert label(text) == path


def places(proc: Path, clock: Callable[[], float] = lambda: 100.0, **cgroups: str) -> ContainerLocations:
    """Return the locations on a machine with these processes."""
    for pid, text in cgroups.items():
        place = proc / pid.removeprefix("p")
        place.mkdir(exist_ok=True)
        (place / "cgroup").write_text(text)
    return ContainerLocations(proc, clock)


@pytest.mark.parametrize(
    "path",
    [
        f"0::/system.slice/docker-{ID}.scope",
        f"0::/kubepods.slice/kubepods-burstable.slice/{POD}.slice/cri-containerd-{ID}.scope",
        f"0::/kubepods.slice/{POD}.slice/crio-{ID}.scope",
        f"0::/kubepods.slice/{POD}.slice/crio-{ID}.scope/container/nested",
        f"4:memory:/kubepods/burstable/pod6b1f0c3e-7f2a/{ID}\n0::/",
        f"4:memory:/system.slice/containerd.service/{POD}.slice:cri-containerd:{ID}",
        f"9:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service",
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
        f"0::/libpod_parent/libpod-{ID}",
        f"0::/../docker-{ID}.scope",
        f"0::/docker/{OTHER}/kubelet/kubepods/pod6b1f/{ID}",
    ],
)
def test_a_container_is_identified_by_the_digits_that_people_see(tmp_path: Path, path: str) -> None:
    assert places(tmp_path, p50=path).of(ProcessKey(50, 1)).container == ID[:12]


@pytest.mark.parametrize(
    "path",
    [
        "0::/user.slice/user-1000.slice/session-1.scope",
        f"0::/{POD}.slice",
        f"0::/docker/{ID[:63]}",
        f"0::/docker/{ID}5",
        f"0::/docker/{ID.upper()}",
        f"0::/docker-{ID}.mount",
    ],
)
def test_a_process_in_no_container_has_none(tmp_path: Path, path: str) -> None:
    assert places(tmp_path, p50=path).of(ProcessKey(50, 1)).container == ""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("4:devices:/slurm/uid_9/job_7/step_1", "7"),
        ("0::/system.slice/slurmstepd.scope/job_81/step_0/user/task_0", "81"),
        ("0::/system.slice/node7_slurmstepd.scope/job_81", "81"),
        ("4:devices:/slurm_node7/uid_9/job_7/step_1\n0::/", "7"),
        ("0::/system.slice/slurmstepd.scope/s6Q2T0ZYH4T000/step_0", "s6Q2T0ZYH4T000"),
        ("0::/system.slice/slurmstepd.scope/s6Q2T0ZYH4T00/step_0", ""),
        ("0::/system.slice/slurmstepd.scope/system", ""),
        ("0::/system.slice/slurmd.service/job_7x", ""),
        ("0::/system.slice/slurmd.service\n", ""),
        ("0::/job_7/step_0", ""),
    ],
)
def test_a_job_of_slurm_is_identified_by_its_number_or_its_word(text: str, found: str) -> None:
    assert slurm_job(text.encode()) == found.encode()


def test_a_place_is_read_again_after_half_a_minute(tmp_path: Path) -> None:
    moments = [100.0]
    kept = places(tmp_path, lambda: moments[-1], p50="0::/a\n")
    for moment, path, found in ((100.0, "a", "/a"), (129.0, "b", "/a"), (130.0, "c", "/c"), (131.0, "d", "/c")):
        moments.append(moment)
        (tmp_path / "50" / "cgroup").write_text(f"0::/{path}\n")
        kept.begin()
        assert kept.of(ProcessKey(50, 1)).cgroup == found


def test_another_process_of_the_same_pid_is_read_and_one_not_asked_about_is_forgotten(tmp_path: Path) -> None:
    kept = places(tmp_path, p50="0::/a\n")
    assert kept.of(ProcessKey(50, 1)).cgroup == "/a"
    (tmp_path / "50" / "cgroup").write_text("0::/b\n")
    assert [kept.of(ProcessKey(50, began)).cgroup for began in (1, 2)] == ["/a", "/b"]
    kept.begin()
    assert kept.of(ProcessKey(50, 1)).cgroup == "/a"
    kept.begin()
    kept.begin()
    assert kept.of(ProcessKey(50, 1)).cgroup == "/b"


def test_a_process_that_is_gone_is_nowhere(tmp_path: Path) -> None:
    assert places(tmp_path).of(ProcessKey(50, 1)) == ContainerLocation("", "", "")
