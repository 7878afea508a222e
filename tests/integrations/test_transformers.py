"""Trainer of Transformers with its callback, as real trainings: on /metrics and in the history stands what Trainer reports."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from diffs import added, applied, shown
from processes import ROOT, Daemon, clean_environ, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("transformers")

DEADLINE = 240.0
"""Seconds: three processes at once import PyTorch and Transformers."""

STEPS, LOGS, SAVES, NAN = 30, 5, 10, 17
RANKS, BATCH, CONTEXT = 2, 8, 32
EXAMPLE = (
    *("examples/transformers_trainer.py", f"--steps={STEPS}", f"--log-each={LOGS}", f"--save-each={SAVES}"),
    *(f"--nan-at={NAN}", "--output={folder}/out"),
)
TORCHRUN = (
    *("-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "--rdzv-backend=c10d"),
    *("--rdzv-endpoint={folder}/meeting", "--rdzv-conf=store_type=file"),
)
PUBLIC = (
    *("{folder}/train_clm.py", "--train_file=LICENSE", "--output_dir={folder}/clm", "--do_train", "--do_eval"),
    *("--max_steps=6", "--logging_steps=2", "--per_device_train_batch_size=4", "--save_strategy=no"),
    *("--use_cpu=true", "--report_to=trackside"),
)
SHORT = ("tests/integrations/short_trainings.py", "{folder}")


class Trained(NamedTuple):
    """What is left of the trainings.

    Attributes:
        daemon: Still there.
        folder: The example's checkpoints are in its ``out``.
        logged: What Trainer has logged in the example.
        found: What the short ones have printed.
        said: What the short ones have complained of.
    """

    daemon: Daemon
    folder: Path
    logged: list[dict[str, Any]]
    found: dict[str, Any]
    said: str


@pytest.fixture(scope="module")
def trained() -> Iterator[Trained]:
    """The example on two ranks, a public script with the lines that it takes, and the short trainings, all at once."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        folder = Path(directory)
        daemon = Daemon(folder, "--run.linger=10m")
        public = (ROOT / "tests/public/run_clm.py").read_text(encoding="utf-8")
        (folder / "train_clm.py").write_text(applied(shown("Transformers"), public), encoding="utf-8")
        environ = {
            "TRACKSIDE_ENDPOINT": daemon.endpoint,
            "TRACKSIDE_FLUSH_TIMEOUT": "60",
            "OMP_NUM_THREADS": "1",
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # else the oldest Transformers could resume nothing under PyTorch 2.6
        }
        started = [
            subprocess.Popen(
                [sys.executable, *(one.format(folder=folder) for one in arguments)],
                cwd=ROOT,
                env=clean_environ(environ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for arguments in ((*TORCHRUN, *EXAMPLE), PUBLIC, SHORT)
        ]
        try:
            ends = [process.communicate(timeout=DEADLINE) for process in started]
            assert [process.returncode for process in started] == [0, 0, 0], "\n".join(said for _, said in ends)
            printed, said = ends[-1]
            state = json.loads((folder / f"out/checkpoint-{STEPS}/trainer_state.json").read_text())
            yield Trained(daemon, folder, state["log_history"], json.loads(printed.splitlines()[-1]), said)
        finally:
            for process in started:
                process.kill()
                process.wait()
            daemon.stop()


@cache
def runs(daemon: Daemon) -> dict[str, dict[str, Any]]:
    """All by name, once they have ended; of two of one name the last."""

    def ended() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = daemon.api("runs").json()["runs"]
        return found if all(one["state"] in {"finished", "failed"} for one in found) else []

    return {one["name"]: one for one in reversed(eventually(ended))}


def known(daemon: Daemon, name: str) -> dict[str, Any]:
    """All of a run but its samples."""
    found: dict[str, Any] = daemon.api(f"runs/{runs(daemon)[name]['id']}").json()
    return found


def series(daemon: Daemon, key: str, rank: int = 0, name: str = "gpt2-tiny") -> dict[int, float]:
    """A run's samples of a key, by step."""
    return daemon.values(runs(daemon)[name]["id"], key, rank)


def events(daemon: Daemon, name: str, kind: str) -> list[dict[str, Any]]:
    """Those of a run, oldest first."""
    found = daemon.api(f"events?run={runs(daemon)[name]['id']}").json()["events"]
    return [one for one in found if one["kind"] == kind]


def on_page(daemon: Daemon, family: str, name: str = "gpt2-tiny", **labels: object) -> float:
    """A series of /metrics, of rank 0 unless another is named; NaN when it is not there."""
    wanted = {f'run="{name}"', *(f'{key}="{value}"' for key, value in {"rank": 0, **labels}.items())}
    found = [
        value
        for series, value in daemon.series().items()
        if series.startswith(f"trackside_training_{family}{{")
        and wanted <= set(series[:-1].partition("{")[2].split(","))
    ]
    return found[0] if found else math.nan


def test_every_step_of_every_rank_has_its_own_loss_and_what_trainer_logs_is_kept(trained: Trained) -> None:
    daemon = trained.daemon
    losses = [series(daemon, "loss", rank) for rank in range(RANKS)]
    assert [list(one) for one in losses] == [list(range(1, STEPS + 1))] * RANKS
    assert losses[0] != losses[1]
    logs = {one["step"]: one for one in trained.logged if "loss" in one}
    assert list(logs) == list(range(LOGS, STEPS + 1, LOGS))
    assert series(daemon, "loss_logged") == {step: one["loss"] for step, one in logs.items()}
    for key in ("learning_rate", "epoch"):
        assert series(daemon, key).items() >= {step: one[key] for step, one in logs.items()}.items()
    norms = series(daemon, "grad_norm")
    assert list(norms) == list(range(1, STEPS + 1))
    assert {step: norms[step] for step in logs} == pytest.approx({step: one["grad_norm"] for step, one in logs.items()})
    for step, one in logs.items():
        window = [loss[past] for loss in losses for past in range(step - LOGS + 1, step + 1)]
        if not any(map(math.isnan, window)):
            assert sum(window) / len(window) == pytest.approx(one["loss"], abs=1e-4)  # older versions round
    assert on_page(daemon, "loss") == losses[0][STEPS]
    assert on_page(daemon, "learning_rate") == logs[STEPS]["learning_rate"]
    named = {one["key"] for one in known(daemon, "gpt2-tiny")["metrics"]}
    assert {key for key in named if "train" in key or "eval" in key} == {"eval/loss"}


def test_a_nan_that_trainer_takes_out_is_seen_and_told(trained: Trained) -> None:
    daemon = trained.daemon
    assert not any(math.isnan(one.get("loss", 0.0)) for one in trained.logged)
    for rank in range(RANKS):
        losses = series(daemon, "loss", rank)
        assert [step for step, loss in losses.items() if not math.isfinite(loss)] == [NAN]
        assert on_page(daemon, "nonfinite_total", rank=rank, key="loss") == 1
    told = [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == "NonFinite"]
    assert [(one["labels"]["run"], one["labels"]["key"]) for one in told] == [("gpt2-tiny", "loss")]


def test_evaluations_and_checkpoints_are_there_with_time_and_size(trained: Trained) -> None:
    daemon = trained.daemon
    evaluated = {one["step"]: one["eval_loss"] for one in trained.logged if "eval_loss" in one}
    assert list(evaluated) == [10, 20, 30]
    assert series(daemon, "eval%2Floss") == pytest.approx(evaluated)
    for rank in range(RANKS):
        assert on_page(daemon, "phase_seconds_total", rank=rank, phase="eval") > 0
    saved = events(daemon, "gpt2-tiny", "checkpoint")
    assert [one["step"] for one in saved] == [10, 20, 30]
    for one in saved:
        told = one["fields"]
        folder = Path(told["path"])
        assert folder == trained.folder / f"out/checkpoint-{one['step']}"
        assert told["bytes"] == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        assert 0 < told["seconds"] < on_page(daemon, "phase_seconds_total", phase="checkpoint")


def test_steps_amounts_phases_progress_and_configuration(trained: Trained) -> None:
    daemon = trained.daemon
    for rank in range(RANKS):
        assert on_page(daemon, "steps_total", rank=rank) == STEPS
        assert on_page(daemon, "samples_total", rank=rank) == STEPS * BATCH
        assert on_page(daemon, "tokens_total", rank=rank) == STEPS * BATCH * CONTEXT
        assert on_page(daemon, "data_wait_seconds_count", rank=rank) >= STEPS - 1  # an epoch's first may stand apart
        for phase in ("data", "forward", "backward", "optimizer"):
            assert on_page(daemon, "phase_seconds_total", rank=rank, phase=phase) > 0
    assert on_page(daemon, "progress_ratio") == 1
    [attempt] = known(daemon, "gpt2-tiny")["attempt_list"]
    assert (attempt["state"], attempt["total_steps"]) == ("finished", STEPS)
    config = attempt["config"]
    assert (config["max_steps"], config["learning_rate"], config["model"]["n_embd"]) == (STEPS, 3e-3, 32)
    assert config["parameters"] > 20_000


def test_a_public_script_takes_one_line_and_its_last_evaluation_is_the_run_s(trained: Trained) -> None:
    assert len(added(shown("Transformers"))) == 1
    folder = trained.folder / "clm"
    logged = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    losses = {one["step"]: one["loss"] for one in logged if "loss" in one}
    assert list(losses) == [2, 4, 6]
    assert series(trained.daemon, "loss_logged", name="train_clm") == losses
    evaluated = json.loads((folder / "eval_results.json").read_text())["eval_loss"]
    assert series(trained.daemon, "eval%2Floss", name="train_clm") == {6: evaluated}
    assert on_page(trained.daemon, "steps_total", "train_clm") == 6


def test_report_to_is_enough_and_two_callbacks_count_once(trained: Trained) -> None:
    for name in ("report-to", "twice"):
        assert on_page(trained.daemon, "samples_total", name) == 3 * 2
        assert runs(trained.daemon)[name]["state"] == "finished"


def test_a_step_of_several_batches_has_their_loss_and_their_amounts(trained: Trained) -> None:
    assert on_page(trained.daemon, "samples_total", "accumulated") == 3 * 2 * 2
    losses = list(series(trained.daemon, "loss", name="accumulated").values())
    assert losses == pytest.approx(trained.found["accumulated"], abs=1e-4)


def test_a_run_of_the_users_own_is_joined_and_not_ended_and_a_resumed_checkpoint_is_told(trained: Trained) -> None:
    daemon = trained.daemon
    assert trained.found["opened"]
    assert "own" not in runs(daemon)
    assert on_page(daemon, "steps_total", "mine") == 5
    [resumed] = events(daemon, "mine", "resume")
    assert resumed["fields"] == {"step": 3}
    assert [one["step"] for one in events(daemon, "mine", "checkpoint")] == [2, 3, 4, 5]


def test_what_fails_is_said_once_and_costs_only_itself(trained: Trained) -> None:
    assert trained.found["raised"] == "out of luck"
    assert runs(trained.daemon)["failing"]["state"] == "failed"
    assert trained.found["broken"] == 2
    assert trained.said.count("a batch cannot be seen") == 1
    assert trained.said.count("configuration can be told") == 1
    assert "Traceback" not in trained.said
