"""Trainer of Transformers with its callback, as real trainings: /metrics and the history have Trainer's values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from diffs import added, changed, shown
from integrations.test_epoch_line import LINE, RESOURCES
from integrations.trainings import TORCHRUN, in_turn
from integrations.trainings import Trained as All
from integrations.trainings import trained as all_trained
from processes import require

if TYPE_CHECKING:
    from collections.abc import Iterator

require("transformers")

STEPS, LOGS, SAVES, NAN = 30, 5, 10, 17
RANKS, BATCH, CONTEXT = 2, 8, 32
EXAMPLE = (
    *(*TORCHRUN, "{root}/examples/transformers_trainer.py", f"--steps={STEPS}", f"--log-each={LOGS}"),
    *(f"--save-each={SAVES}", f"--nan-at={NAN}", "--output={folder}/out"),
)
ARGUMENTS = (
    *("--train_file={root}/LICENSE", "--do_train", "--do_eval", "--max_steps=6", "--logging_steps=2"),
    *("--per_device_train_batch_size=4", "--save_strategy=no", "--use_cpu=true"),
)
ALONE = ("{root}/tests/public/run_clm.py", *ARGUMENTS, "--output_dir={folder}/alone", "--report_to=none")
PUBLIC = ("{folder}/changed.py", *ARGUMENTS, "--output_dir={folder}/clm", "--report_to=trackside")
SHORT = ("{root}/tests/integrations/short_trainings.py", "{folder}")
OLD = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
"""Else the oldest Transformers could resume nothing under PyTorch 2.6."""


class Trained(NamedTuple):
    """Results of the trainings.

    Attributes:
        all: Results of all of them; the example's checkpoints are in its folder's ``out``.
        logged: The log history of Trainer in the example.
        found: The values that the short trainings have printed.
        errors: The messages that they wrote to standard error.
    """

    all: All
    logged: list[dict[str, Any]]
    found: dict[str, Any]
    errors: str

    def series(self, key: str, rank: int = 0, name: str = "gpt2-tiny") -> dict[int, float]:
        """Return a run's samples of a key, by step."""
        return self.all.points(name, key, rank)

    def on_page(self, family: str, name: str = "gpt2-tiny", **labels: object) -> float:
        """Return the value of a series of /metrics, by default of rank 0; NaN if it is missing."""
        wanted = {f'run="{name}"', *(f'{key}="{value}"' for key, value in {"rank": 0, **labels}.items())}
        found = [
            value
            for series, value in self.all.daemon.series().items()
            if series.startswith(f"trackside_training_{family}{{")
            and wanted <= set(series[:-1].partition("{")[2].split(","))
        ]
        return found[0] if found else math.nan


@pytest.fixture(scope="module")
def trained() -> Iterator[Trained]:
    """The example on two ranks, and the short trainings followed by a public script."""
    texts = {"changed.py": changed("run_clm.py", shown("Transformers"))}
    with all_trained(EXAMPLE, in_turn(SHORT, ALONE, PUBLIC), changed=texts, environ=OLD) as every:
        state = json.loads((every.folder / f"out/checkpoint-{STEPS}/trainer_state.json").read_text())
        found = json.loads(every.printed[1].splitlines()[-1])
        yield Trained(every, state["log_history"], found, every.errors[-1])


def test_every_step_of_every_rank_has_its_own_loss_and_values_that_trainer_logs_are_stored(trained: Trained) -> None:
    losses = [trained.series("loss", rank) for rank in range(RANKS)]
    assert [list(one) for one in losses] == [list(range(1, STEPS + 1))] * RANKS
    assert losses[0] != losses[1]
    logs = {one["step"]: one for one in trained.logged if "loss" in one}
    assert list(logs) == list(range(LOGS, STEPS + 1, LOGS))
    assert trained.series("loss_logged") == {step: one["loss"] for step, one in logs.items()}
    assert not trained.series("loss_logged", 1)
    for key in ("learning_rate", "epoch"):
        assert trained.series(key).items() >= {step: one[key] for step, one in logs.items()}.items()
    norms = trained.series("grad_norm")
    assert list(norms) == list(range(1, STEPS + 1))
    assert {step: norms[step] for step in logs} == pytest.approx({step: one["grad_norm"] for step, one in logs.items()})
    for step, one in logs.items():
        window = [loss[past] for loss in losses for past in range(step - LOGS + 1, step + 1)]
        if not any(map(math.isnan, window)):
            assert sum(window) / len(window) == pytest.approx(one["loss"], abs=1e-4)  # older versions round
    assert trained.on_page("loss") == losses[0][STEPS]
    assert trained.on_page("learning_rate") == logs[STEPS]["learning_rate"]
    named = {one["key"] for one in trained.all.page("gpt2-tiny")["metrics"]}
    assert {key for key in named if "train" in key or "eval" in key} == {"eval/loss"}


def test_a_nan_that_trainer_filters_out_is_seen_and_reported(trained: Trained) -> None:
    assert not any(math.isnan(one.get("loss", 0.0)) for one in trained.logged)
    for rank in range(RANKS):
        losses = trained.series("loss", rank)
        assert [step for step, loss in losses.items() if not math.isfinite(loss)] == [NAN]
        assert trained.on_page("nonfinite_total", rank=rank, key="loss") == 1
    reported = [one for one in trained.all.daemon.api("alerts").json()["alerts"] if one["alert"] == "NonFinite"]
    assert [(one["labels"]["run"], one["labels"]["key"]) for one in reported] == [("gpt2-tiny", "loss")]


def test_evaluations_and_checkpoints_are_there_with_time_and_size(trained: Trained) -> None:
    evaluated = {one["step"]: one["eval_loss"] for one in trained.logged if "eval_loss" in one}
    assert list(evaluated) == [10, 20, 30]
    assert trained.series("eval/loss") == pytest.approx(evaluated)
    for rank in range(RANKS):
        assert trained.on_page("phase_seconds_total", rank=rank, phase="eval") > 0
    assert trained.all.intact("gpt2-tiny") == {f"checkpoint-{step}": "transformers" for step in (10, 20, 30)}
    saved = trained.all.events("gpt2-tiny", "checkpoint")
    assert [one["step"] for one in saved] == [10, 20, 30]
    for one in saved:
        reported = one["fields"]
        folder = Path(reported["path"])
        assert folder == trained.all.folder / f"out/checkpoint-{one['step']}"
        sizes = {file.name: file.stat().st_size for file in folder.rglob("*") if file.is_file()}
        whole, others = sum(sizes.values()), sizes["rng_state_1.pth"]  # which rank 1 writes when it will
        assert reported["bytes"] in range(whole - others, whole + 1)
        assert 0 < reported["seconds"] < trained.on_page("phase_seconds_total", phase="checkpoint")


def test_steps_amounts_phases_progress_and_configuration(trained: Trained) -> None:
    for rank in range(RANKS):
        assert trained.on_page("steps_total", rank=rank) == STEPS
        assert trained.on_page("samples_total", rank=rank) == STEPS * BATCH
        assert trained.on_page("tokens_total", rank=rank) == STEPS * BATCH * CONTEXT
        assert trained.on_page("data_wait_seconds_count", rank=rank) >= STEPS - 1  # an epoch's first may stand apart
        for phase in ("data", "forward", "backward", "optimizer"):
            assert trained.on_page("phase_seconds_total", rank=rank, phase=phase) > 0
    assert trained.on_page("progress_ratio") == 1
    assert trained.on_page("phase_seconds_total", phase="evaluation") > 0  # from the training's end to the script's
    [attempt] = trained.all.page("gpt2-tiny")["attempt_list"]
    assert (attempt["state"], attempt["total_steps"]) == ("finished", STEPS)
    config = attempt["config"]
    assert (config["max_steps"], config["learning_rate"], config["model"]["n_embd"]) == (STEPS, 3e-3, 32)
    assert config["parameters"] > 20_000


def test_a_public_script_needs_one_line_and_its_last_evaluation_is_the_run_s(trained: Trained) -> None:
    assert len(added(shown("Transformers"))) == 1
    folder = trained.all.folder / "clm"
    alone, logged = (
        json.loads((one / "trainer_state.json").read_text())["log_history"]
        for one in (trained.all.folder / "alone", folder)
    )
    losses = {one["step"]: one["loss"] for one in logged if "loss" in one}
    assert list(losses) == [2, 4, 6]
    assert alone[:3] == logged[:3]
    assert trained.series("loss_logged", name="changed") == losses
    evaluated = json.loads((folder / "eval_results.json").read_text())["eval_loss"]
    assert trained.series("eval/loss", name="changed") == {6: evaluated}
    assert trained.on_page("steps_total", "changed") == 6
    assert trained.all.alarms("changed") == {}


def test_report_to_is_enough_and_two_callbacks_count_once(trained: Trained) -> None:
    for name in ("report-to", "twice"):
        assert trained.on_page("samples_total", name) == 3 * 2
        assert trained.all.run(name)["state"] == "finished"


def test_a_step_of_several_batches_has_their_loss_and_their_amounts(trained: Trained) -> None:
    assert trained.on_page("samples_total", "accumulated") == 3 * 2 * 2
    losses = list(trained.series("loss", name="accumulated").values())
    assert losses == pytest.approx(trained.found["accumulated"], abs=1e-4)


def test_rollouts_as_those_of_grpo_have_phases_samples_and_tokens(trained: Trained) -> None:
    assert trained.on_page("samples_total", "rolling") == 4 * 2
    assert trained.on_page("tokens_total", "rolling") == 4 * 2 * (4 + 3)
    generate, reward = (trained.on_page("phase_seconds_total", "rolling", phase=one) for one in ("generate", "reward"))
    assert generate >= 2 * 0.01
    assert reward >= 2 * 0.02
    assert trained.found["rolling"] == ["evaluate", "predict"]


def test_a_run_of_the_users_own_is_joined_and_not_ended_and_a_resumed_checkpoint_is_reported(trained: Trained) -> None:
    assert trained.found["opened"]
    assert "own" not in {one["name"] for one in trained.all.daemon.api("runs").json()["runs"]}
    assert trained.on_page("steps_total", "mine") == 5
    [resumed] = trained.all.events("mine", "resume")
    assert resumed["fields"] == {"step": 3}
    assert [one["step"] for one in trained.all.events("mine", "checkpoint")] == [2, 3, 4, 5]
    assert trained.found["led"] == {
        "begun": ["_save_checkpoint", "evaluate", "get_batch_samples", "predict", "training_step"],
        "over": ["evaluate", "predict"],
        "copied": "training_step",
    }
    assert trained.on_page("phase_seconds_total", "mine", phase="eval") > 0


def test_a_resume_from_a_checkpoint_is_the_next_attempt_of_its_run(trained: Trained) -> None:
    page = trained.all.page("carried")
    assert [one["attempt"] for one in page["attempt_list"]] == [0, 1]
    assert list(trained.series("loss", name="carried")) == [1, 2, 3, 4, 5]
    [resumed] = trained.all.events("carried", "resume")
    assert (resumed["attempt"], resumed["fields"]) == (1, {"step": 3})


def test_a_torn_checkpoint_is_left_out_of_the_resume(trained: Trained) -> None:
    """`resume_from_checkpoint` got the path that ``trackside checkpoints latest RUN --good`` prints."""
    assert trained.found["resumed"] == 2
    [resumed] = trained.all.events("torn", "resume")
    assert (resumed["attempt"], resumed["fields"]) == (1, {"step": 2})
    assert list(trained.series("loss", name="torn")) == [1, 2, 3, 4, 5]


def test_a_reference_to_the_callback_does_not_keep_the_model(trained: Trained) -> None:
    assert trained.found["freed"]


def test_watch_is_an_argument(trained: Trained) -> None:
    named = {one["key"] for one in trained.all.page("accumulated")["metrics"]}
    assert named >= {"grad_norm", "param_norm", "update_ratio"}
    assert trained.all.layers("accumulated") == {kind: ["slope"] for kind in ("weights", "gradients", "activations")}
    assert "param_norm" not in {one["key"] for one in trained.all.page("mine")["metrics"]}


def test_a_failure_is_logged_once_and_costs_only_itself_and_each_epoch_has_its_line_if_it_is_wanted(
    trained: Trained,
) -> None:
    assert trained.found["raised"] == "out of luck"
    assert trained.all.run("failing")["state"] == "failed"
    assert trained.found["broken"] == 2
    assert LINE.findall(trained.errors) == ["1.0", "2.0"], "those of the one callback that has to write them"
    assert RESOURCES.findall(trained.errors) == ["6", "12"]
    reported = [
        line for line in RESOURCES.sub("", LINE.sub("", trained.errors)).splitlines() if line.startswith("trackside: ")
    ]
    assert len(reported) == 2, reported
    assert reported[0].startswith("trackside: Transformers: not all of the configuration can be read (")
    assert reported[1].startswith("trackside: Transformers: a step: TypeError: ")
    assert "Traceback" not in trained.errors
    assert "trackside: " not in trained.all.errors[0]
