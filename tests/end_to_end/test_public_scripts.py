"""Code like that of public projects trains the same with the documented lines, and is monitored without a false alert."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from diffs import PUBLIC, added, change, changed, shown
from end_to_end.conftest import finish
from processes import DEADLINE, alarms, eventually, require, terminated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from end_to_end.conftest import Process
    from processes import Daemon

require("torch")

SHORT = (
    *("--max_iters=20", "--eval_interval=10", "--eval_iters=2", "--n_layer=1"),
    *("--n_embd=16", "--block_size=16", "--batch_size=4"),
)
TIMES = r"time .*|saving .*|Time .*?(?=\tLoss)| *[0-9.]+/s"


def trained(
    daemon: Daemon, start_training: Callable[..., Process], folder: Path, script: str, diff: str, *arguments: str
) -> str:
    """Run a script and, at the same time, that script with a change; return their common output, without times."""
    both = []
    for name, text in (("alone", (PUBLIC / script).read_text("utf-8")), ("changed", changed(script, diff))):
        file = folder / name / script
        file.parent.mkdir()
        file.write_text(text, "utf-8")
        both.append(start_training(daemon, str(file), *(one.format(folder=file.parent) for one in arguments)))
    alone, monitored = (re.sub(TIMES, "", finish(training)) for training in both)
    assert alone == monitored
    eventually(lambda: [run["state"] for run in daemon.api("runs").json()["runs"]] == ["finished"])
    return monitored


def test_a_script_with_nanogpt_s_lines_accepts_the_change_of_the_page(
    daemon: Daemon, start_training: Callable[..., Process], tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    diff = shown("A script like nanoGPT's")
    assert len(added(diff)) <= 11
    last = count(20, 400)
    arguments = (*SHORT, f"--max_iters={last}", "--out_dir={folder}")
    seen = trained(daemon, start_training, tmp_path, "nanogpt.py", diff, *arguments)

    labels = 'rank="0",run="nanogpt"'
    page = daemon.series()
    assert page[f"trackside_training_steps_total{{{labels}}}"] == last + 1
    assert page[f"trackside_training_tokens_total{{{labels}}}"] == (last + 1) * 4 * 4 * 16
    assert page[f"trackside_training_progress_ratio{{{labels}}}"] == 1.0
    for phase in ("eval", "checkpoint", "forward", "backward", "optimizer"):
        assert page[f'trackside_training_phase_seconds_total{{phase="{phase}",{labels}}}'] > 0
    (run,) = daemon.api("runs").json()["runs"]
    keys = ("loss", "learning_rate", "eval/loss", "eval/train_loss", "grad_norm")
    losses, rates, val, train, norms = (daemon.values(run["id"], key) for key in keys)
    printed = re.findall(r"iter (\d+): loss (\S+),", seen)
    assert printed == [(str(step), f"{losses[step]:.4f}") for step in range(0, last + 1, 10)]
    printed = re.findall(r"step (\d+): train loss (\S+), val loss (\S+)", seen)
    assert printed == [(str(step), f"{train[step]:.4f}", f"{val[step]:.4f}") for step in range(0, last + 1, 10)]
    assert rates[20] == pytest.approx(1e-3 * 21 / 101)
    assert norms
    saved = [one for one in daemon.api("events").json()["events"] if one["kind"] == "checkpoint"]
    assert [(one["step"], one["fields"]) for one in saved] == [
        (step, {"path": str(tmp_path / "changed" / "ckpt.pt")}) for step in range(10, last + 1, 10)
    ]
    assert alarms(daemon) == {}


@pytest.mark.usefixtures("only_soak")
def test_its_ranks_are_one_run_that_a_resume_continues(
    daemon: Daemon, start_training: Callable[..., Process], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(changed("nanogpt.py", shown("A script like nanoGPT's")), "utf-8")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script), *SHORT)
    environ = {"GLOO_SOCKET_IFNAME": "lo", "TRACKSIDE_RUN_ID": "pretraining"}
    for attempt, more in enumerate(((), ("--init_from=resume", "--max_iters=30"))):
        training = start_training(daemon, *torchrun, "--log_interval=1", *more, f"--out_dir={tmp_path}", **environ)
        try:
            seen = finish(training, 4 * DEADLINE)
        finally:
            if training.poll() is None:
                terminated(training)
        eventually(lambda: daemon.api("runs").json()["runs"][0]["state"] == "finished")
        (run,) = daemon.api("runs").json()["runs"]
        assert (run["id"], run["attempt"], run["world_size"]) == ("pretraining", attempt, 2)
        series = daemon.api(f"series?run=pretraining&points=0&attempt={attempt}&key=loss&rank=0&rank=1").json()[
            "series"
        ]
        first, second = ([(step, float(value)) for step, _, value in one["points"]] for one in series)
        assert re.findall(r"iter (\d+): loss (\S+),", seen) == [(str(step), f"{loss:.4f}") for step, loss in first]
        assert (
            [step for step, _ in first] == [step for step, _ in second] == list(range(20 * attempt, (21, 31)[attempt]))
        )
        assert first != second
    evaluated = daemon.api("series?run=pretraining&points=0&key=eval/loss&rank=0&rank=1").json()["series"]
    assert {(one["rank"], one["attempt"]) for one in evaluated} == {(0, 0), (0, 1)}
    assert alarms(daemon) == {}


def totals(daemon: Daemon, run: str) -> tuple[float, ...]:
    """Return the steps, samples and checkpoints of rank 0 of a run, as the page has them."""
    page = daemon.series()
    counters = ("steps", "samples", "checkpoints")
    return tuple(page[f'trackside_training_{counter}_total{{rank="0",run="{run}"}}'] for counter in counters)


def test_mnist(
    daemon: Daemon, start_training: Callable[..., Process], tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    epochs = count(2, 40)
    arguments = (f"--epochs={epochs}", "--log-interval=1", "--save-model={folder}/mnist.pt", "--train-size=1280")
    seen = trained(daemon, start_training, tmp_path, "mnist.py", change("mnist.py"), *arguments)

    assert totals(daemon, "mnist") == (epochs * 20, epochs * 1280, 1)
    assert daemon.series()['trackside_training_progress_ratio{rank="0",run="mnist"}'] == 1.0
    assert daemon.series()['trackside_training_data_wait_seconds_count{rank="0",run="mnist"}'] >= epochs * 19
    (run,) = daemon.api("runs").json()["runs"]
    losses, epoch, tested, share = (
        daemon.values(run["id"], key) for key in ("loss", "epoch", "eval/loss", "eval/accuracy")
    )
    printed = re.findall(r"Train Epoch: (\d+) .*Loss: (\S+)", seen)
    assert printed == [(f"{epoch[step]:.0f}", f"{loss:.6f}") for step, loss in losses.items()]
    printed = re.findall(r"Average loss: (\S+), Accuracy: (\d+)/200", seen)
    assert printed == [(f"{tested[step]:.4f}", f"{200 * share[step]:.0f}") for step in tested]
    assert list(tested) == [20 * one + 19 for one in range(epochs)]
    assert alarms(daemon) == {}


@pytest.mark.usefixtures("only_soak")
def test_imagenet_with_two_workers(
    daemon: Daemon, start_training: Callable[..., Process], tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    epochs = count(2, 20)
    arguments = (f"--epochs={epochs}", "--print-freq=1", "--size=320", "--folder={folder}")
    seen = trained(daemon, start_training, tmp_path, "imagenet.py", change("imagenet.py"), *arguments)

    assert totals(daemon, "imagenet") == (epochs * 20, epochs * 320, epochs)
    assert daemon.series()['trackside_training_progress_ratio{rank="0",run="imagenet"}'] == 1.0
    (run,) = daemon.api("runs").json()["runs"]
    losses, top1, tested, share = (
        daemon.values(run["id"], key) for key in ("loss", "train/acc1", "eval/loss", "eval/acc1")
    )
    printed = re.findall(r"Loss (\S+) \(.*Acc@1 +(\S+) \(", seen)
    assert printed == [(f"{loss:.4e}", f"{top1[step]:.2f}") for step, loss in losses.items()]
    printed = re.findall(r"\* Acc@1 (\S+) Loss (\S+)", seen)
    assert printed == [(f"{share[step]:.3f}", f"{tested[step]:.6f}") for step in tested]
    assert alarms(daemon) == {}


@pytest.mark.usefixtures("only_soak")
def test_timm_with_accumulated_gradients(
    daemon: Daemon, start_training: Callable[..., Process], tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    epochs = count(2, 20)
    arguments = (f"--epochs={epochs}", "--amp", "--log-interval=2", "--size=640", "--output={folder}")
    seen = trained(daemon, start_training, tmp_path, "timm_train.py", change("timm_train.py"), *arguments)

    assert totals(daemon, "timm") == (epochs * 20, epochs * 640, epochs)
    (run,) = daemon.api("runs").json()["runs"]
    losses, rates, tested = (daemon.values(run["id"], key) for key in ("loss", "learning_rate", "eval/loss"))
    printed = re.findall(r"\[ *(\d+)/.*Loss: (\S+) .*LR: (\S+)", seen)
    assert printed == [(str(step), f"{loss:#.6f}", f"{rates[step]:.3e}") for step, loss in losses.items()]
    rows = [line.split(",") for line in (tmp_path / "changed" / "summary.csv").read_text().splitlines()[1:]]
    assert [float(row[2]) for row in rows] == list(tested.values())
    assert alarms(daemon) == {}
