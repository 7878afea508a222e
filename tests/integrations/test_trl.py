"""Trainings of TRL with the callback of Transformers. TRL is large, so that only `make soak` installs it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from diffs import change, changed
from integrations.trainings import Trained, trained
from processes import require

if TYPE_CHECKING:
    from collections.abc import Iterator

require("trl")

STEPS = 100
COMMON = (
    *(f"--max_steps={STEPS}", "--logging_steps=1", "--save_steps=50", "--learning_rate=1e-3"),
    *("--use_cpu=true", "--disable_tqdm=true"),
)
SCRIPTS = {
    "trl_sft.py": (
        *(
            "--packing=true",
            "--packing_strategy=wrapped",
            "--max_length=32",
            "--rows=400",
            "--dataloader_drop_last=true",
        ),
        *("--eval_strategy=steps", "--eval_steps=50", "--per_device_train_batch_size=4", "--report_to=trackside"),
    ),
    "trl_grpo.py": (
        *("--per_device_train_batch_size=8", "--num_generations=4", "--max_completion_length=8"),
        *("--beta=0.02", "--report_to=none"),
    ),
}
TIMES = ("runtime", "per_second", "step_time")


@pytest.fixture(scope="module")
def tuned() -> Iterator[Trained]:
    """Supervised fine-tuning and GRPO, each without and with the documented lines."""
    alone = [
        (f"{{root}}/tests/public/{name}", *COMMON, *flags, f"--output_dir={{folder}}/alone-{name}", "--report_to=none")
        for name, flags in SCRIPTS.items()
    ]
    monitored = [
        (f"{{folder}}/{name}", *COMMON, *flags, f"--output_dir={{folder}}/out-{name}", f"--run_name={name}")
        for name, flags in SCRIPTS.items()
    ]
    with trained(*alone, *monitored, changed={name: changed(name, change(name)) for name in SCRIPTS}) as found:
        yield found


def logged(tuned: Trained, folder: str) -> list[dict[str, Any]]:
    """Return the log history of Trainer, without times."""
    history = json.loads((tuned.folder / folder / "trainer_state.json").read_text())["log_history"]
    return [{key: value for key, value in one.items() if not any(time in key for time in TIMES)} for one in history]


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_trains_the_same_and_each_logged_value_is_stored(tuned: Trained, name: str) -> None:
    log = logged(tuned, f"out-{name}")
    assert log == logged(tuned, f"alone-{name}")
    steps = [one for one in log if "loss" in one]
    assert len(steps) == STEPS
    for key in steps[0].keys() - {"step", "loss", "epoch"}:
        assert tuned.points(name, key) == {one["step"]: one[key] for one in steps}, key
    for key in ("loss", "loss_logged"):
        assert tuned.points(name, key) == {one["step"]: one["loss"] for one in steps}
    evaluated = {one["step"]: one["eval_loss"] for one in log if "eval_loss" in one}
    assert evaluated.keys() == ({50, 100} if name == "trl_sft.py" else set())
    if evaluated:
        assert tuned.points(name, "eval/loss") == evaluated
    assert [one["step"] for one in tuned.events(name, "checkpoint")] == [50, 100]
    assert tuned.run(name)["state"] == "finished"
    # The limit of eight tokens cuts nearly all answers of a model that is not trained.
    alarms = {"trl_sft.py": [], "trl_grpo.py": ['alert="TruncationRising"']}
    assert [one.partition("{")[2].partition(",")[0] for one in tuned.alarms(name)] == alarms[name]


def test_samples_tokens_and_phases_of_a_step(tuned: Trained) -> None:
    page = tuned.daemon.series()
    for name, batch in (("trl_sft.py", 4), ("trl_grpo.py", 8)):
        of = f'rank="0",run="{name}"'
        assert page[f"trackside_training_samples_total{{{of}}}"] == STEPS * batch
        assert page[f"trackside_training_progress_ratio{{{of}}}"] == 1.0
        phases = ("data", "forward", "backward", "optimizer", "checkpoint")
        for phase in (*phases, *(("generate", "reward") if name == "trl_grpo.py" else ("eval",))):
            assert page[f'trackside_training_phase_seconds_total{{phase="{phase}",{of}}}'] > 0
    assert page['trackside_training_tokens_total{rank="0",run="trl_sft.py"}'] == STEPS * 4 * 32
    assert page['trackside_training_tokens_total{rank="0",run="trl_grpo.py"}'] > STEPS * 8 * 5
