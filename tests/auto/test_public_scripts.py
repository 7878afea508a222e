"""Unchanged scripts like those of public projects: what they print stays, and their steps and losses are found.

Those of a tracker, and TRL's, run where these are installed: in `make soak`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from integrations.in_turn import THEN
from integrations.trainings import Trained, in_turn, trained
from processes import DEADLINE, ROOT, clean_environ, eventually, require

from trackside.auto.environment import variables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processes import Daemon

require("torch")

TIMES = re.compile(
    r"time \S+ms|ms/batch +\S+|Time .*?(?=\tLoss)| *[0-9.]+/s|\d+:\d\d:\d\d\.\d+|.*(?:runtime|per_second).*\n|/tmp/ts-\w+/\w+"
)
PUBLIC = "{root}/tests/public"
SHORT = ("--max_iters=12", "--eval_interval=10", "--eval_iters=2", "--n_layer=1", "--n_embd=16", "--block_size=16")
PLAIN: dict[str, tuple[str, ...]] = {
    "nanogpt": (*SHORT, "--batch_size=4", "--log_interval=1"),
    "mnist": ("--epochs=2", "--log-interval=1", "--train-size=640"),
    "imagenet": ("--epochs=1", "--print-freq=1", "--size=160", "--workers=0"),
    "word_language_model": ("--epochs=1", "--words=8000"),
    "gan": ("--niter=1",),
    "mixed_precision": ("--steps=12",),
}
FRAMEWORKS: dict[str, tuple[str, ...]] = {
    "run_clm": (
        *("--train_file={root}/LICENSE", "--do_train", "--max_steps=6", "--logging_steps=1", "--save_strategy=steps"),
        *(
            "--save_steps=3",
            "--per_device_train_batch_size=4",
            "--use_cpu=true",
            "--output_dir=clm",
            "--report_to=none",
        ),
        "--disable_tqdm=true",
    ),
    "accelerate_example": ("--cpu",),
    "lightning_autoencoder": (),
    "framework_searches": (),
}


def scripts(of: dict[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [(f"{PUBLIC}/{name}.py", *arguments) for name, arguments in of.items()]


def watched(of: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return "{root}/tests/auto/watched.py", *in_turn(*scripts(of))[1:]


class Both:
    """Scripts without and with the hooks.

    Args:
        found: Results, first those without.
        names: Names of the scripts.
    """

    def __init__(self, found: Trained, names: list[str]) -> None:
        self.found = found
        half = len(found.printed) // 2
        self.alone = dict(zip(names, found.printed[:half], strict=True))
        self.watched = dict(zip(names, found.printed[half:], strict=True))

    def losses(self, name: str, pattern: str) -> list[tuple[str, float]]:
        """Return what a script has printed, by a pattern with one group, next to what was found at that step."""
        printed = re.findall(pattern, self.watched[name])
        losses = self.found.points(name, "loss")
        assert list(losses) == list(range(len(printed)))
        return list(zip(printed, losses.values(), strict=True))


@pytest.fixture(scope="module")
def plain() -> Iterator[Both]:
    with trained(in_turn(*scripts(PLAIN)), watched(PLAIN)) as found:
        yield Both(found, list(PLAIN))


def test_what_a_script_prints_stays(plain: Both) -> None:
    for name, text in plain.alone.items():
        assert TIMES.sub("", text) == TIMES.sub("", plain.watched[name]), name
    assert plain.found.errors[1] == plain.found.errors[0]


@pytest.mark.parametrize(
    ("name", "pattern", "form", "samples"),
    [
        ("nanogpt", r"iter \d+: loss (\S+),", "{:.4f}", None),
        ("mnist", r"Train Epoch: .*Loss: (\S+)", "{:.6f}", 2 * 640),
        ("imagenet", r"Loss (\S+) \(", "{:.4e}", 160),
        ("word_language_model", r"batches .*\| loss (\S+) ", "{:5.4f}", None),
        ("gan", r"Loss_D: (\S+)", "{:.4f}", 320),
        ("mixed_precision", r"step \d+ loss (\S+)", "{:.6f}", 12 * 4 * 16),
    ],
)
def test_each_step_has_the_loss_that_the_script_prints(
    plain: Both, name: str, pattern: str, form: str, samples: int | None
) -> None:
    for printed, loss in plain.losses(name, pattern):
        assert form.format(loss) == printed
    steps = len(plain.found.points(name, "loss"))
    page = plain.found.daemon.series()
    of = f'rank="0",run="{name}"'
    assert page[f"trackside_training_steps_total{{{of}}}"] == steps > 5
    assert page[f"trackside_training_step_duration_seconds_count{{{of}}}"] == steps - 1
    assert page.get(f"trackside_training_samples_total{{{of}}}") == samples
    assert plain.found.run(name)["state"] == "finished"
    assert plain.found.alarms(name) == {}


def test_waits_for_data_and_evaluations_are_phases(plain: Both) -> None:
    page, of = plain.found.daemon.series(), 'rank="0",run="mnist"'
    for phase in ("data", "eval"):
        assert page[f'trackside_training_phase_seconds_total{{phase="{phase}",{of}}}'] > 0
    assert (
        page[f"trackside_training_data_wait_seconds_count{{{of}}}"] == 2 * 10 - 2
    )  # the first of an epoch stand apart


def test_what_torch_save_has_written_is_a_checkpoint(plain: Both) -> None:
    assert plain.found.intact("mixed_precision") == {"model.pt": "torch"}
    assert set(plain.found.intact("gan")) >= {"netG.pth"}
    assert plain.found.intact("nanogpt") == {"ckpt.pt": "torch"}


def test_values_that_were_found_are_marked(plain: Both) -> None:
    attempt = plain.found.page("gan")["attempt_list"][0]
    assert attempt["auto"] == ["learning_rate", "loss", "loss/2", "samples"]
    infos = [line for line in plain.found.daemon.series() if line.startswith("trackside_training_run_info")]
    assert {'source="auto"' in line for line in infos} == {True}


@pytest.fixture(scope="module")
def frameworks() -> Iterator[Both]:
    for library in ("accelerate", "lightning", "optuna", "transformers"):
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    with trained(in_turn(*scripts(FRAMEWORKS)), watched(FRAMEWORKS)) as found:
        yield Both(found, list(FRAMEWORKS))


def test_frameworks_get_their_callbacks_and_checkpoints_stay_as_they_are(frameworks: Both) -> None:
    for name, text in frameworks.alone.items():
        assert TIMES.sub("", text) == TIMES.sub("", frameworks.watched[name]), name
    found = frameworks.found
    logged = [float(loss) for loss in re.findall(r"'loss': '?([\d.]+)", frameworks.watched["run_clm"])]
    rates = [float(rate) for rate in re.findall(r"'learning_rate': '?([\d.e-]+)", frameworks.watched["run_clm"])]
    assert list(found.points("run_clm", "loss").values()) == pytest.approx(logged, abs=1e-3)
    assert list(found.points("run_clm", "learning_rate").values()) == pytest.approx(rates, rel=1e-3)
    printed = dict(re.findall(r"^(\w+) (\S+)$", frameworks.watched["lightning_autoencoder"], re.MULTILINE))
    losses, validated = (found.points("lightning_autoencoder", key) for key in ("loss", "val_loss"))
    assert list(losses) == list(range(1, int(printed["steps"]) + 1))
    assert f"{losses[len(losses)]:.6f}" == printed["train_loss"]
    assert f"{validated[len(losses)]:.6f}" == printed["val_loss"]
    accelerated = list(found.points("accelerate_example", "loss").values())
    means = [float(text.split()[-1]) for text in frameworks.watched["accelerate_example"].splitlines()]
    assert [sum(accelerated[first : first + 8]) / 8 for first in (0, 8, 16)] == pytest.approx(means, abs=1e-6)
    for name in list(FRAMEWORKS)[:3]:
        assert found.run(name)["state"] == "finished"
        assert found.page(name)["attempt_list"][0].get("auto", []) == (
            ["learning_rate", "loss", "samples"] if name == "accelerate_example" else []
        )
    paths = [event["fields"]["path"] for event in found.events("run_clm", "checkpoint")]
    assert [path.rpartition("/")[2] for path in paths] == ["checkpoint-3", "checkpoint-6"]
    for folder in found.folder.glob("*/clm/checkpoint-*"):
        assert "trackside" not in (folder / "trainer_state.json").read_text()


def test_each_trial_of_a_search_over_a_framework_is_a_run(frameworks: Both) -> None:
    found = frameworks.found
    printed = re.findall(r"^\[.*", frameworks.watched["framework_searches"], re.MULTILINE)
    assert len(printed) == 4
    for number, losses, params in map(json.loads, printed):
        name = f"framework_searches-trial-{number}"
        assert list(found.points(name, "loss").values()) == pytest.approx(losses, abs=1e-4)
        assert found.config(name).items() >= params.items()
        assert (found.run(name)["state"], found.run(name)["tags"]) == ("finished", ["tune"])


def test_each_rank_of_torchrun_finds_its_own(daemon: Daemon, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("three processes import PyTorch; make soak runs it")
    arguments = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    known = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    alone, watching = (
        subprocess.run(  # not forked: the ranks get the hooks by the start-up module
            [*arguments, str(ROOT / "tests/public/ddp.py"), "--snapshot_path", str(tmp_path / "snapshot.pt")],
            env=clean_environ(environ),
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE,
        )
        for environ in ({**known, "TRACKSIDE_DISABLED": "1"}, {**known, **variables(known)})
    )
    line = re.compile(r"\[GPU(\d)\] Epoch (\d+) \| Steps: \d+ \| Last: (\d\.\d{6})")  # both write, also into one line
    assert sorted(line.findall(alone.stdout)) == sorted(line.findall(watching.stdout))
    eventually(lambda: [run["state"] for run in daemon.api("runs").json()["runs"]] == ["finished"])
    [run] = daemon.api("runs").json()["runs"]
    page = daemon.api(f"series?run={run['id']}&key=loss&rank=0&rank=1&by=step&points=0").json()
    found = {series["rank"]: [float(value) for *_, value in series["points"]] for series in page["series"]}
    for rank, epoch, last in line.findall(watching.stdout):
        assert f"{found[int(rank)][8 * int(epoch) + 7]:.6f}" == last
    [run] = daemon.api("runs").json()["runs"]
    for rank in (0, 1):
        of = f"series?run={run['id']}&key=loss&rank={rank}&by=step&points=0"
        [series] = daemon.api(of).json()["series"]
        losses = {step: float(value) for step, _, value in series["points"]}
        printed = re.findall(rf"\[GPU{rank}\] Epoch (\d+) \| Steps: \d+ \| Last: (\d\.\d{{6}})", watching.stdout)
        assert [(epoch, f"{losses[8 * int(epoch) + 7]:.6f}") for epoch, _ in printed] == printed


def failed_hooks(found: Trained, wanted: int) -> list[str]:
    """Return the lines of the daemon's log on hooks that failed, once there are so many."""

    def lines() -> list[str]:
        return [line for line in found.daemon.log if "the hook " in line]

    eventually(lambda: len(lines()) >= wanted)
    return lines()


def test_a_hook_that_fails_is_a_line_in_the_daemon_s_log_and_the_training_continues(plain: Both) -> None:
    names = ("mnist", "mixed_precision")
    broken = {name: PLAIN[name] for name in names}
    with trained(watched(broken), environ={"BROKEN": "1"}) as found:
        for name, text in zip(names, found.printed, strict=True):
            assert text == plain.alone[name]
        lines = failed_hooks(found, 11)
    hooks = sorted(
        re.findall(r"rank 0: the hook (.*?) failed and is off, training goes on: ArithmeticError: broken", str(lines))
    )
    assert len(lines) == len(set(hooks)) == 11, lines


TRACKERS = ("wandb", "tensorboard", "tensorboardX", "mlflow", "trackio", "swanlab", "aim", "tensorflow", "clu")


INSTALLED = [name for name in TRACKERS if find_spec(name) is not None]


@contextmanager
def tracked(tracker: str, **environ: str) -> Iterator[Trained]:
    """The script with a tracker, without and with the hooks."""
    script = f"{PUBLIC}/trackers.py"
    environ |= {"WANDB_SILENT": "true", "PYTHONWARNINGS": "ignore"}
    with trained((script, tracker), ("{root}/tests/auto/watched.py", script, tracker), environ=environ) as found:
        if tracker != "swanlab":  # which prints times and random names
            assert found.printed[0] == found.printed[1]
        yield found


@pytest.mark.parametrize("tracker", INSTALLED)
def test_what_a_tracker_gets_is_pushed_with_its_keys_and_steps(tracker: str) -> None:
    with tracked(tracker) as found:
        name = "first-try" if tracker in {"wandb", "mlflow", "trackio", "swanlab"} else "trackers"
        printed = [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", found.printed[1])]
        for key in ("loss", "train/loss"):
            assert list(found.points(name, key).values()) == pytest.approx(printed, abs=1e-6)
        means = [sum(printed[first : first + 10]) / 10 for first in (0, 10, 20)]
        assert list(found.points(name, "train/epoch_loss").values()) == pytest.approx(means, abs=1e-5)
        own = {"wandb": [10, 21, 32], "trackio": [10, 21, 32], "swanlab": [10, 21, 32]}
        assert list(found.points(name, "train/epoch_loss")) == own.get(tracker, [0, 1, 2])
        page = found.daemon.series()
        assert page[f'trackside_training_steps_total{{rank="0",run="{name}"}}'] == 30
        if tracker == "tensorflow":
            again = list(found.points(name, "test/train/epoch_loss").values())  # another directory
            assert again == list(found.points(name, "train/epoch_loss").values())
        elif not tracker.startswith("tensorboard"):
            assert {key: float(value) for key, value in found.config(name).items()} == {"epochs": 3, "lr": 0.05}
        tags = {"wandb": ["baseline"], "mlflow": ["kind=baseline"]}
        assert found.run(name)["tags"] == tags.get(tracker, [])


HOOKS = {
    "wandb": 3,
    "tensorboard": 1,
    "tensorboardX": 1,
    "mlflow": 4,
    "trackio": 3,
    "swanlab": 3,
    "aim": 2,
    "tensorflow": 2,
    "clu": 3,
}
"""Number of hooks that the script of a tracker calls."""


@pytest.mark.parametrize("tracker", INSTALLED)
def test_a_fault_in_each_hook_of_a_tracker_is_a_line_and_the_tracker_works_on(tracker: str) -> None:
    with tracked(tracker, BROKEN="1") as found:
        wanted = HOOKS[tracker] + 7  # and those of PyTorch
        lines = failed_hooks(found, wanted)
    assert len({line.partition("the hook ")[2] for line in lines}) == len(lines) == wanted, lines


@pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
def test_trl_has_the_callback_of_transformers() -> None:
    arguments = ("--max_steps=10", "--logging_steps=1", "--save_strategy=no", "--use_cpu=true", "--report_to=none")
    script = (f"{PUBLIC}/trl_sft.py", *arguments, "--disable_tqdm=true", "--output_dir=sft")
    with trained(script, ("{root}/tests/auto/watched.py", *script)) as found:
        assert TIMES.sub("", found.printed[0]) == TIMES.sub("", found.printed[1])
        [name] = [run["name"] for run in found.daemon.api("runs").json()["runs"]]
        states = [Path(path).read_text() for path in found.folder.glob("*/sft/trainer_state.json")]
        assert len(states) == 2
        logged = [float(loss) for loss in re.findall(r'"loss": ([\d.]+)', states[1])]
        assert list(found.points(name, "loss").values()) == pytest.approx(logged[:10], abs=1e-4)
    assert THEN not in found.printed[0]
