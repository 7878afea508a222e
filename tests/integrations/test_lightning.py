"""Lightning with its callback and its logger, as real fits: /metrics and the history have Lightning's values."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from diffs import added, change, changed, shown
from integrations.test_epoch_line import LINE, RESOURCES
from integrations.trainings import Trained, in_turn, trained
from processes import eventually, require

if TYPE_CHECKING:
    from collections.abc import Iterator

require("lightning")

EPOCHS, STEPS, NAN = 2, 100, 150
EXAMPLE = ("{root}/examples/lightning_fit.py", f"--epochs={EPOCHS}", f"--nan-at={NAN}", "--folder={folder}/out")
PUBLIC = "lightning_autoencoder.py"
MANUAL = ("lightning_transformer.py", "--max_epochs=2")
FABRIC = ("fabric_loop.py", "--epochs=2")
FITS = ("{root}/tests/integrations/lightning_fits.py", "{folder}/fits")


@pytest.fixture(scope="module")
def fitted(request: pytest.FixtureRequest) -> Iterator[Trained]:
    """The small fits, the example, and public scripts without and with the documented lines."""
    scripts = (f"{{root}}/tests/public/{PUBLIC}",), ("{folder}/changed.py",)
    texts = {"changed.py": changed(PUBLIC, shown("Lightning"))}
    texts |= {name: changed(name, change(name)) for name in (MANUAL[0], FABRIC[0])}
    size = "--size=3200" if request.config.getoption("--soak") else "--size=128"
    others = [
        in_turn((f"{{root}}/tests/public/{name}", *flags, size), (f"{{folder}}/{name}", *flags, size))
        for name, *flags in (MANUAL, FABRIC)
    ]
    with trained(in_turn(FITS, EXAMPLE, *scripts), *others, changed=texts) as found:
        yield found


@pytest.fixture(scope="module")
def printed_values(fitted: Trained) -> dict[str, Any]:
    """The values that the small fits have printed."""
    return dict(json.loads(fitted.printed[0].splitlines()[-1]))


def test_what_the_example_prints_stands_on_the_page(fitted: Trained) -> None:
    printed = {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", fitted.printed[1], re.MULTILINE)}
    page, of = fitted.daemon.series(), 'rank="0",run="lightning_fit"'
    for key in ("train_loss", "val_loss", "val_accuracy"):
        assert page[f'trackside_training_value{{key="{key}",{of}}}'] == pytest.approx(printed[key], abs=1e-6)
    assert page[f"trackside_training_loss{{{of}}}"] == pytest.approx(printed["train_loss"], abs=1e-6)
    assert page[f"trackside_training_steps_total{{{of}}}"] == printed["steps"] == EPOCHS * STEPS
    assert page[f"trackside_training_samples_total{{{of}}}"] == EPOCHS * STEPS * 256
    assert page[f"trackside_training_progress_ratio{{{of}}}"] == 1.0
    assert page[f"trackside_training_remaining_seconds{{{of}}}"] == 0.0
    assert page[f"trackside_training_epoch{{{of}}}"] == EPOCHS - 1
    assert page[f'trackside_training_nonfinite_total{{key="loss",{of}}}'] == 1.0
    assert page[f"trackside_training_data_wait_seconds_count{{{of}}}"] >= EPOCHS * (STEPS - 1)
    for phase in ("data", "eval", "checkpoint"):
        assert page[f'trackside_training_phase_seconds_total{{phase="{phase}",{of}}}'] > 0
    assert page['trackside_alerts_total{alert="NonFinite",run="lightning_fit",severity="critical"}'] == 1.0


def test_checkpoints_are_reported_with_their_size_and_how_long_they_took(
    fitted: Trained, printed_values: dict[str, Any]
) -> None:
    written = sorted((fitted.folder / "out").rglob("*.ckpt"))
    events = [one["fields"] for one in fitted.events("lightning_fit", "checkpoint")]
    assert {one["path"]: one["bytes"] for one in events} == {str(path): path.stat().st_size for path in written}
    assert all(one["seconds"] > 0 for one in events)
    assert fitted.intact("lightning_fit") == {path.name: "lightning" for path in written}
    assert [one["step"] for one in fitted.events("both", "checkpoint")] == [4, 8]
    assert sorted(one["fields"]["bytes"] for one in fitted.events("both", "checkpoint")) == sorted(
        printed_values["both"]["bytes"]
    )
    assert printed_values["both"]["given_back"]
    [logged] = fitted.events("logged", "checkpoint")
    assert logged["fields"]["bytes"] > 0


def test_an_accumulated_step_counts_once_and_its_loss_is_the_mean(
    fitted: Trained, printed_values: dict[str, Any]
) -> None:
    losses = printed_values["both"]["losses"]
    epochs = [losses[first : first + 7] for first in range(0, 14, 7)]
    means = [sum(part) / len(part) for one in epochs for part in (one[:2], one[2:4], one[4:6], one[6:])]
    points = fitted.points("both", "loss")
    assert list(points) == list(range(1, 9))
    assert list(points.values()) == pytest.approx(means, rel=1e-6, nan_ok=True)
    assert [math.isnan(value) for value in points.values()] == [step in {1, 5} for step in range(8)]
    of = 'rank="0",run="both"'
    page = fitted.daemon.series()
    assert page[f"trackside_training_steps_total{{{of}}}"] == 8
    assert page[f"trackside_training_samples_total{{{of}}}"] == 14 * 4
    assert page[f"trackside_training_progress_ratio{{{of}}}"] == 1.0


def test_callback_and_logger_push_to_one_run_and_nothing_twice(fitted: Trained, printed_values: dict[str, Any]) -> None:
    logged, called = printed_values["both"]["logged"], printed_values["both"]["called"]
    assert list(fitted.points("both", "learning_rate").values()) == printed_values["both"]["rates"]
    for key in ("train_loss", "val_loss"):
        points = fitted.points("both", key)
        assert points.keys() <= set(range(1, 9))
        assert points[8] == pytest.approx(logged[key], nan_ok=True)
    assert fitted.points("both", "val_quietly")[8] == called["val_quietly"]
    assert list(fitted.points("both", "val_loss")) == [4, 8]
    assert fitted.points("both", "lr-SGD").keys() == set(range(1, 8))  # of the next step, logged in the one before
    assert fitted.daemon.series()['trackside_training_client_dropped_total{rank="0",run="both"}'] == 0
    config = fitted.config("both")
    assert (config["author"], config["width"], config["nan_at"]) == ("me", 3, 2)
    assert config["trainer"]["accumulate_grad_batches"] == 2
    assert printed_values["both"]["bases"] == [True, True]


def test_the_logger_alone_pushes_what_is_logged(fitted: Trained, printed_values: dict[str, Any]) -> None:
    assert list(fitted.points("logged", "train_loss").items()) == list(enumerate(printed_values["logged"]["losses"]))
    assert fitted.points("logged", "val_loss") == {6: printed_values["logged"]["called"]}  # of the test after the fit
    assert set(fitted.points("logged", "epoch").values()) == {0.0}
    assert fitted.daemon.series()['trackside_training_steps_total{rank="0",run="logged"}'] == 7
    assert fitted.run("logged")["state"] == "finished"
    assert fitted.config("logged")["width"] == 3


def test_a_fit_that_fails_reports_its_error(fitted: Trained) -> None:
    two = eventually(lambda: (run := fitted.run("two"))["cause"] and run)
    assert (two["state"], two["cause"]) == ("failed", "KeyError: 'third'")
    assert list(fitted.points("two", "learning_rate/1.0").items()) == [(2, 0.2), (4, 0.2)]
    silent = eventually(lambda: (run := fitted.run("silent"))["cause"] and run)
    assert silent["state"] == "failed"
    assert silent["cause"].startswith("MemoryError")


def test_a_test_after_a_fit_continues_its_run(fitted: Trained, printed_values: dict[str, Any]) -> None:
    attempts = [one["state"] for one in fitted.page("tested")["attempt_list"]]
    assert attempts == ["finished"] * 2
    assert fitted.points("tested", "val_loss")[7] == pytest.approx(printed_values["tested"][-1])
    assert fitted.points("tested", "loss").keys() == set(range(1, 8))


def test_a_resume_from_a_checkpoint_is_the_next_attempt_of_its_run_with_the_logger_alone_too(fitted: Trained) -> None:
    for name, key, steps in (("carried", "loss", range(1, 15)), ("logged_on", "train_loss", range(14))):
        assert [one["attempt"] for one in fitted.page(name)["attempt_list"]] == [0, 1]
        assert list(fitted.points(name, key)) == list(steps)
    [resumed] = fitted.events("carried", "resume")
    assert (resumed["attempt"], resumed["fields"]["step"]) == (1, 7)


def test_the_logger_is_one_of_fabric_too(fitted: Trained, printed_values: dict[str, Any]) -> None:
    assert list(fitted.points("fabric", "loss").values()) == pytest.approx(printed_values["fabric"])
    page = fitted.daemon.series()
    assert page['trackside_training_samples_total{rank="0",run="fabric"}'] == 5 * 4
    assert fitted.run("fabric")["state"] == "finished"


def test_watch_is_an_argument(fitted: Trained) -> None:
    named = {one["key"] for one in fitted.page("tested")["metrics"]}
    assert named >= {"grad_norm", "param_norm", "update_ratio"}
    assert fitted.layers("tested") == {"weights": ["layer"], "gradients": ["layer"]}
    assert "param_norm" not in {one["key"] for one in fitted.page("both")["metrics"]}


def test_a_run_that_the_user_has_opened_is_the_users(fitted: Trained, printed_values: dict[str, Any]) -> None:
    assert printed_values["given"]
    assert fitted.points("given", "loss").keys() == {1, 2}
    assert fitted.points("given", "after") == {2: 1.0}
    assert fitted.run("given")["state"] == "stopped"
    assert not [one for one in fitted.daemon.api("runs").json()["runs"] if one["name"] == "mine"]


def test_a_script_like_that_of_the_readme_needs_two_lines(fitted: Trained) -> None:
    assert len(added(shown("Lightning"))) <= 3
    plain, changed = fitted.printed[2:4]
    assert plain == changed
    printed = dict(re.findall(r"^(\w+) (\S+)$", changed, re.MULTILINE))
    points = fitted.points("changed", "loss")
    assert list(points) == list(range(1, int(printed["steps"]) + 1))
    assert f"{points[len(points)]:.6f}" == printed["train_loss"]
    assert f"{fitted.points('changed', 'val_loss')[len(points)]:.6f}" == printed["val_loss"]
    assert len(fitted.events("changed", "checkpoint")) == 2
    assert fitted.run("changed")["state"] == "finished"


def test_two_optimizers_by_hand_train_the_same_and_count_the_steps_of_both(fitted: Trained) -> None:
    plain, changed = (text[text.index("batch 0") :] for text in fitted.printed[4:6])
    assert plain == changed
    name = "lightning_transformer"
    losses, printed = fitted.points(name, "loss"), re.findall(r"batch \d+: (\S+)", changed)
    assert printed == [f"{loss:.6f}" for loss in losses.values()]
    last = 2 * len(printed)
    assert list(losses) == list(range(2, last + 1, 2))
    for key in ("val_loss", "test_loss"):
        assert f"{key} {fitted.points(name, key)[last]:.6f}" in changed
    assert set(fitted.points(name, "epoch").values()) == {0, 1}
    assert set(fitted.points(name, "learning_rate").values()) == {20.0}
    assert set(fitted.points(name, "learning_rate/1.0").values()) == {1e-3}
    assert fitted.run(name)["step"] == last
    page, of = fitted.daemon.series(), f'rank="0",run="{name}"'
    assert page[f"trackside_training_samples_total{{{of}}}"] == 16 * len(printed)
    assert fitted.alarms(name) == {}


def test_the_loop_of_a_fabric_is_a_run_with_the_name_of_the_logger(fitted: Trained) -> None:
    plain, changed = fitted.printed[6:]
    assert plain == changed
    losses, tested = fitted.points("classifier", "loss"), fitted.points("classifier", "eval/loss")
    assert re.findall(r"step (\d+): (\S+)", changed) == [(str(step), f"{loss:.6f}") for step, loss in losses.items()]
    assert re.findall(r"epoch \d+: (\S+)", changed) == [f"{loss:.6f}" for loss in tested.values()]
    assert fitted.config("classifier")["epochs"] == 2
    page, of = fitted.daemon.series(), 'rank="0",run="classifier"'
    assert page[f"trackside_training_samples_total{{{of}}}"] == 32 * len(losses)
    assert page[f"trackside_training_data_wait_seconds_count{{{of}}}"] == len(losses) - 2
    assert page[f"trackside_training_checkpoints_total{{{of}}}"] == 2
    assert fitted.alarms("classifier") == {}


def test_nothing_of_the_integration_has_failed_and_each_epoch_has_its_line_if_it_is_wanted(fitted: Trained) -> None:
    errors = "".join(fitted.errors)
    assert LINE.findall(errors) == ["0", "1"], "those of the one callback that has to write them"
    assert set(RESOURCES.findall(errors)) == {"4"}
    assert "trackside:" not in RESOURCES.sub("", LINE.sub("", errors))
