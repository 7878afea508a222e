"""Every alert has a failure that makes it fire, and under --soak a quiet run in which none fires: `ROWS` names the test.

All that needs real processes runs at once under one daemon, so that the waits overlap.
"""

from __future__ import annotations

import ast
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from sys import executable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from processes import DEADLINE, ROOT, Daemon, clean_environ, eventually
from processes import start as start_process

from trackside_daemon.alerts.process_memory_leaks import GPU, HOST
from trackside_daemon.alerts.settings import AlertsSection
from trackside_daemon.alerts.slow_collectives import ALERT as COLLECTIVE
from trackside_daemon.detectors.layers import ALERTS as OF_LAYERS
from trackside_daemon.detectors.rank_detectors import ALERTS as OF_RANKS
from trackside_daemon.detectors.run_watch import ALERTS as OF_RUNS
from trackside_daemon.service.finding_sources import rules

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = "tests/end_to_end/test_troubles.py"
VALUES = f"{HERE}::test_a_training_that_goes_wrong_is_notified"
RANKS = f"{HERE}::test_gloo_ranks"
GPUS = f"{HERE}::test_simulated_gpus"
TIMED = "tests/end_to_end/test_simulated_troubles.py::test_it_fires_through_the_whole_pipeline"
LONG = "tests/end_to_end/test_simulated_troubles.py"
RUNS = "tests/end_to_end/test_run_alerts.py"
LAYERS = "tests/detectors/test_layers.py"


class Row(NamedTuple):
    """The test that makes an alert fire, and its means: real processes, simulated GPUs, files, or simulated time."""

    kind: str
    test: str


OF_VALUES = (
    *("NonFinite", "LossSpike", "LossHardBatch", "LossDiverging", "LossPlateau", "LossRestart", "GradientExplosion"),
    "Overfitting",
    *("GradientVanishing", "LearningRateOutOfRange", "SlowStep", "ThroughputRegression", "HostMemoryLeak"),
    *(
        "NoLearningSignal",
        "TruncationRising",
        "TrainInferenceMismatch",
        "KlBlowup",
        "RewardCollapse",
        "EntropyCollapse",
    ),
    "DataLoaderBottleneck",
)
OF_GPUS = ("GpuHot", "GpuThrottled", "GpuXid", "GpuRowRemap")
OF_TIME = (
    *("GpuPowerCapped", "GpuEccUncorrectable", "GpuLost", "NvlinkDegraded", "GpuMemoryPressure", "GpuUnderutilized"),
    *("GpuIdleButHeld", "IoBottleneck", "CpuSaturated", "ContainerMemoryPressure", "FilesystemDead", "ShmFull"),
    *("FdsExhausted", "GpuMissing", "PcieDegraded", "InfinibandDegraded"),
    *("RayNodeDead", "RayObjectStoreFull", "RayActorsRestarting", "HostMemoryPressure", "DiskFilling"),
)
"""A window of minutes, or what no test can break on a machine that is not its own."""

ROWS = {
    **dict.fromkeys(OF_VALUES, Row("real process", VALUES)),
    **dict.fromkeys(OF_GPUS, Row("simulated GPUs", GPUS)),
    **dict.fromkeys(OF_TIME, Row("simulated time", TIMED)),
    "StragglerRank": Row("real processes", f"{RANKS}_of_which_one_is_slow_and_then_stays_away"),
    "TrainingStalled": Row("real processes", f"{RANKS}_of_which_one_is_slow_and_then_stays_away"),
    "RankSilent": Row("real processes", f"{HERE}::test_a_rank_that_is_stopped_while_the_other_continues"),
    "TrainingProcessDied": Row("real processes", f"{RUNS}::test_ranks_that_are_killed_are_one_alert_with_its_cause"),
    "OomKilled": Row(
        "real process", "tests/end_to_end/test_ends.py::test_a_training_that_the_oom_killer_ends_is_shown_as_that"
    ),
    "DataLoaderDied": Row(
        "real process",
        "tests/end_to_end/test_dataloaders.py::test_a_worker_that_finds_shared_memory_full_is_seen_for_what_it_is",
    ),
    "UserAlert": Row(
        "real process",
        f"{RUNS}::test_a_condition_in_python_raises_its_alert_and_a_good_end_none",
    ),
    "RunStarted": Row(
        "real process",
        f"{RUNS}::test_a_condition_in_python_raises_its_alert_and_a_good_end_none",
    ),
    "RunFinished": Row(
        "real process",
        f"{RUNS}::test_a_condition_in_python_raises_its_alert_and_a_good_end_none",
    ),
    "RunRestarted": Row("real process", f"{HERE}::test_a_run_that_begins_again"),
    "ReplicasDiffer": Row(
        "real processes",
        "tests/end_to_end/test_replicas.py::test_differences_are_found_and_named_and_healthy_trainings_have_none",
    ),
    "CheckpointOverdue": Row("simulated time", f"{LONG}::test_a_checkpoint_that_does_not_come"),
    "MonitorBlind": Row("simulated time", f"{LONG}::test_messages_that_a_client_had_to_drop"),
    "DeadLayer": Row("real training", f"{LAYERS}::test_a_dead_relu_layer_is_named"),
    "SaturatedLayer": Row("real training", f"{LAYERS}::test_a_saturated_layer_is_named"),
    "AttentionCollapse": Row("real training", f"{LAYERS}::test_attention_that_a_scaled_query_collapses_is_named"),
    "ActivationOutliers": Row("real training", f"{LAYERS}::test_a_layer_with_exploding_outputs_is_named"),
    "LayerUpdates": Row("real training", f"{LAYERS}::test_a_layer_that_no_optimizer_has_is_named"),
    "CollectiveSlow": Row(
        "made numbers", "tests/alerts/test_slow_collectives.py::test_a_planted_fault_is_named_with_its_node_and_kind"
    ),
    "GpuMemoryLeak": Row("simulated time", f"{LONG}::test_memory_of_a_gpu_that_grows_for_hours"),
}

TIMINGS = {"SlowStep", "ThroughputRegression"}
"""Told rightly of a quiet run too where the machine of the tests is busy; `test_healthy_day` has their quiet."""

SOON_XIDS = Path(__file__).parent / "soon_xids"
SETTINGS = {"TRACKSIDE_ALERTS__STALL_AFTER": "4", "TRACKSIDE_ALERTS__STRAGGLER_WINDOW": "0.1"}
BOTH = ((), ("DataLoaderBottleneck",))
"""What each of two processes runs: that one takes half a minute."""

GPU_FLAGS = ("--collector.gpu.simulate=4", "--collector.gpu.trouble=hot:1,throttled:2,xid:3")


def test_every_alert_is_in_a_row() -> None:
    known = {rule.alert for rule in rules(AlertsSection())} | {*OF_RANKS, *OF_LAYERS, *OF_RUNS, HOST, GPU, COLLECTIVE}
    assert known == ROWS.keys()


def test_every_row_names_a_test() -> None:
    for row in ROWS.values():
        file, _, name = row.test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, row.test


def start(daemon: Daemon, script: str, *arguments: str, **environ: str) -> Popen[str]:
    """Start a training that pushes to a daemon."""
    more = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "OMP_NUM_THREADS": "1", **environ}
    path = str(ROOT / "tests" / "end_to_end" / script)
    return start_process([executable, path, *arguments], env=clean_environ(more), stdin=PIPE, stdout=PIPE, text=True)


def end(training: Popen[str]) -> None:
    """Kill a training, however far it has come."""
    training.kill()
    training.wait(DEADLINE)
    for stream in (training.stdin, training.stdout):
        assert stream is not None
        stream.close()


def send_line(training: Popen[str], line: str) -> None:
    """Write a line to a training's standard input."""
    assert training.stdin is not None
    training.stdin.write(f"{line}\n")
    training.stdin.flush()


def await_line(training: Popen[str], line: str) -> None:
    """Wait for a line that it prints."""
    assert training.stdout is not None
    assert training.stdout.readline() == f"{line}\n"


def alerts(daemon: Daemon, name: str = "") -> list[dict[str, Any]]:
    """Return the alerts in the history, of one name or all."""
    found = daemon.api("alerts?limit=1000").json()["alerts"]
    return [one for one in found if name in {"", one["alert"]}]


def trouble(daemon: Daemon) -> list[tuple[str, str]]:
    """Return the run and the name of the alerts above info, except `TIMINGS`."""
    return [
        (one["name"], one["alert"])
        for one in alerts(daemon)
        if one["severity"] != "info" and one["alert"] not in TIMINGS
    ]


class Stage:
    """A daemon with faulty simulated GPUs and failing trainings, and on request a second one where all is *well*."""

    def __init__(self, place: Path, *, well: bool) -> None:
        self.ill = Daemon(made(place / "ill"), *GPU_FLAGS, environ={**SETTINGS, "PYTHONPATH": str(SOON_XIDS)})
        self.values = [start(self.ill, "failing_runs.py", *which) for which in BOTH]
        self.ranks = self._pair(self.ill, place / "store", 0.01)
        self.well: list[Daemon] = []
        self.quiet: list[Popen[str]] = []
        if well:
            daemon = Daemon(made(place / "well"), GPU_FLAGS[0], environ=SETTINGS)
            self.well = [daemon]
            self.quiet = [start(daemon, "failing_runs.py", "quiet", *which) for which in BOTH]
            self.ranks += self._pair(daemon, place / "calm", 0.04)

    def _pair(self, daemon: Daemon, store: Path, seconds: float) -> list[Popen[str]]:
        about = {"TRACKSIDE_RUN_ID": "pair", "TRACKSIDE_RUN_NAME": "pair", "WORLD_SIZE": "2"}
        arguments = ("failing_ranks.py", str(store), str(seconds))
        return [start(daemon, *arguments, RANK=str(rank), **about) for rank in range(2)]

    def close(self) -> None:
        """End all trainings, and all daemons even if a training has ended otherwise: without PyTorch some do."""
        with ExitStack() as stack:
            for daemon in (self.ill, *self.well):
                stack.callback(daemon.stop)
            for training in (*self.values, *self.quiet, *self.ranks):
                stack.callback(end, training)


def made(place: Path) -> Path:
    """Create a directory, and return its path."""
    place.mkdir()
    return place


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        found = Stage(Path(directory), well=request.config.getoption("--soak"))
        yield found
        found.close()


def test_gloo_ranks_of_which_one_is_slow_and_then_stays_away(stage: Stage) -> None:
    pytest.importorskip("torch")
    for rank in stage.ranks:
        await_line(rank, "trains")
    send_line(stage.ranks[1], "slow")
    (alert,) = eventually(lambda: alerts(stage.ill, "StragglerRank"), 2 * DEADLINE)
    assert alert["summary"].startswith("rank 1 of run pair needs ")
    assert not alerts(stage.ill, "TrainingStalled")
    send_line(stage.ranks[1], "stay away")
    (alert,) = eventually(lambda: alerts(stage.ill, "TrainingStalled"))
    assert alert["summary"].startswith("run pair has made no step since ")


@pytest.mark.parametrize("alert", OF_VALUES)
def test_a_training_that_goes_wrong_is_notified(stage: Stage, alert: str) -> None:
    (found,) = eventually(lambda: [one for one in alerts(stage.ill, alert) if one["name"] == alert])
    assert found["summary"]


def test_a_rank_that_is_stopped_while_the_other_continues(stage: Stage) -> None:
    about = {"TRACKSIDE_RUN_ID": "apart", "TRACKSIDE_RUN_NAME": "apart", "WORLD_SIZE": "2"}
    ranks = [start(stage.ill, "failing_ranks.py", RANK=str(rank), **about) for rank in range(2)]
    try:
        for rank in ranks:
            await_line(rank, "trains")
        step = 'trackside_training_step{{rank="{}",run="apart"}}'
        eventually(lambda: all(stage.ill.series().get(step.format(rank), 0) > 300 for rank in range(2)))
        ranks[1].send_signal(signal.SIGSTOP)
        (alert,) = eventually(lambda: alerts(stage.ill, "RankSilent"))
        assert alert["summary"].startswith("rank 1 of run apart has pushed nothing since ")
        state = 'trackside_training_rank_state{{rank="{}",run="apart",state="{}"}}'
        eventually(lambda: stage.ill.series()[state.format(1, "stalled")] == 1)
        assert stage.ill.series()[state.format(0, "running")] == 1
    finally:
        for rank in ranks:
            end(rank)


def attempts(daemon: Daemon, name: str) -> list[int]:
    """Return the attempts of the runs of a name."""
    return [run["attempt"] for run in daemon.api("runs").json()["runs"] if run["name"] == name]


def test_a_run_that_begins_again(stage: Stage) -> None:
    for attempt in range(2):
        training = start(stage.ill, "failing_ranks.py", TRACKSIDE_RUN_ID="again", TRACKSIDE_RUN_NAME="again")
        try:
            await_line(training, "trains")
            # Nothing is known of what is killed before a busy daemon has greeted it.
            eventually(lambda attempt=attempt: attempts(stage.ill, "again") == [attempt])  # type: ignore[misc]
        finally:
            end(training)
        eventually(lambda: "again" in {one["name"] for one in alerts(stage.ill, "TrainingProcessDied")})


@pytest.mark.parametrize(("alert", "gpu"), list(zip(OF_GPUS, "1233", strict=True)))
def test_simulated_gpus(stage: Stage, alert: str, gpu: str) -> None:
    found = eventually(lambda: alerts(stage.ill, alert), 2 * DEADLINE)
    assert {one["labels"]["gpu"] for one in found} == {gpu}


@pytest.mark.usefixtures("only_soak")
def test_a_healthy_training_beside_them_is_not_notified(stage: Stage) -> None:
    """The quiet runs are as long: they began with the others and end after them."""
    for training in stage.quiet:
        await_line(training, "done")
    finished, [well] = len(OF_VALUES), stage.well
    eventually(lambda: [run["state"] for run in well.api("runs").json()["runs"]].count("finished") == finished)
    assert trouble(well) == []
