"""Assignment of ranks to GPUs: a real daemon with simulated GPUs, and real trainings with a GPU each."""

from __future__ import annotations

import os
import pwd
import re
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, LEAN, ROOT, Daemon, eventually, lasting_daemon

from trackside_daemon.nvml.readers.host_pids import PROC, in_host_pid_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from end_to_end.conftest import Process
    from end_to_end.prometheus import Prometheus
    from nvml.fake.library import Scenario

#: Pushes, and waits to be ended.
TRAINING = "import sys, trackside; trackside.push(step=1, loss=1.0); sys.stdin.read()"
GIB = 1024**3
THIRD = "GPU-00000000-0000-0000-0000-000000000003"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for all tests."""
    with lasting_daemon("--collector.gpu.simulate=4", "--sample.interval=250ms", *LEAN) as running:
        yield running


def rank_info(daemon: Daemon, run: str) -> list[str]:
    """Return the series that show the GPUs of a run."""
    return [one for one in daemon.series() if one.startswith("trackside_gpu_rank_info") and f'run="{run}"' in one]


def process_info(daemon: Daemon, run: str) -> list[str]:
    """Return the series that show the processes of a run."""
    return [one for one in daemon.series() if one.startswith("trackside_process_info") and f'run="{run}"' in one]


@pytest.mark.parametrize(
    ("name", "environ", "gpu"),
    [
        ("bus", {"CUDA_VISIBLE_DEVICES": "1,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "LOCAL_RANK": "1"}, 3),
        ("mig", {"CUDA_VISIBLE_DEVICES": f"MIG-{THIRD}/1/0"}, 3),
    ],
)
def test_a_rank_is_joined_with_the_gpu_that_its_environment_gives_it(
    daemon: Daemon, start_training: Callable[..., Process], name: str, environ: dict[str, str], gpu: int
) -> None:
    training = start_training(daemon, "-c", TRAINING, TRACKSIDE_RUN_NAME=name, RANK="5", **environ)
    uuid = f"{THIRD[:-1]}{gpu}"
    expected = f'trackside_gpu_rank_info{{gpu="{gpu}",rank="5",run="{name}",uuid="{uuid}"}}'
    assert eventually(lambda: rank_info(daemon, name)) == [expected]
    user = pwd.getpwuid(os.getuid()).pw_name
    [info] = eventually(lambda: [one for one in process_info(daemon, name) if f'user="{user}"' in one])
    assert f'pid="{training.pid}"' in info
    assert 'role="rank"' in info
    training.communicate("", timeout=DEADLINE)
    eventually(lambda: not rank_info(daemon, name))


def test_the_joins_that_the_page_of_gpus_shows_are_answered(
    scenario: Scenario,
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    start_prometheus: Callable[..., Prometheus],
) -> None:
    by_rank, by_process = re.findall(r"^trackside_gpu_.* \* .*$", (ROOT / "docs/gpu.md").read_text(), re.MULTILINE)
    daemon = start_daemon("--sample.interval=250ms", *LEAN)
    training = start_training(daemon, "-c", TRAINING, TRACKSIDE_RUN_NAME="joined", CUDA_VISIBLE_DEVICES="0")
    scenario.set(f"1 nvmlDeviceGetComputeRunningProcesses_v3 {training.pid} {GIB}")
    gpu = "1" if in_host_pid_namespace(PROC) else "0"  # tests in a container go by what the training says
    prometheus = start_prometheus(daemon.url)
    user = pwd.getpwuid(os.getuid()).pw_name
    prometheus.shows(f'trackside_process_info{{run="joined",user="{user}"}}', 1)
    prometheus.shows(f'trackside_gpu_process_memory_bytes{{pid="{training.pid}"}}', GIB)
    prometheus.shows(f'trackside_gpu_rank_info{{run="joined",gpu="{gpu}"}}', 1)
    [joined] = [point for point in prometheus.query(by_rank) if point.labels["run"] == "joined"]
    assert joined.labels == {"gpu": gpu, "rank": "0", "run": "joined", "uuid": joined.labels["uuid"]}
    assert joined.value == 0.98
    [process] = [point for point in prometheus.query(by_process) if point.labels["pid"] == str(training.pid)]
    labels = {name: process.labels[name] for name in ("gpu", "run", "rank", "user")}
    assert labels == {"gpu": "1", "run": "joined", "rank": "0", "user": user}
    assert process.value == GIB
    training.communicate("", timeout=DEADLINE)


def test_ranks_that_push_nothing_do_not_delay_the_end_of_the_first(
    daemon: Daemon, start_training: Callable[..., Process]
) -> None:
    about = {"TRACKSIDE_RANKS": "zero", "TRACKSIDE_RUN_NAME": "zero", "TRACKSIDE_RUN_ID": "zero", "WORLD_SIZE": "2"}
    first, other = (start_training(daemon, "-c", TRAINING, RANK=str(rank), **about) for rank in range(2))
    eventually(lambda: daemon.series().get('trackside_training_step{rank="0",run="zero"}') == 1)
    other.communicate("", timeout=DEADLINE)
    assert other.returncode == 0
    first.communicate("", timeout=DEADLINE)
    eventually(lambda: daemon.series().get('trackside_training_state{run="zero",state="finished"}') == 1)
    assert not [name for name in daemon.series() if 'run="zero"' in name and 'rank="1"' in name]
    (run,) = [one for one in daemon.api("runs").json()["runs"] if one["id"] == "zero"]
    assert (run["state"], run["world_size"]) == ("finished", 2)
