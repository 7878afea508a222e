"""`trackside tune` proposes thresholds from the alerts that a user has dismissed, and `replay --explain` what decided."""

from __future__ import annotations

import json
import math
import random
import re
from typing import TYPE_CHECKING

import pytest
import yaml
from histories import BEGIN, finished, history, ingested, opened
from processes import run_here

from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

MILD, SPIKE = 150, 300


def losses() -> list[float]:
    """Return falling losses that are somewhat high for four steps, and very high for five."""
    chance = random.Random(7)
    found = [2 + 3 * math.exp(-step / 80) + chance.gauss(0, 0.01) for step in range(400)]
    found[MILD : MILD + 4] = [1.6 * one for one in found[MILD : MILD + 4]]
    found[SPIKE : SPIKE + 5] = [9.0] * 5
    return found


def ask(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {"COLUMNS": "100", "XDG_RUNTIME_DIR": "/nonexistent"}
    return run_here(*arguments, f"--storage.path={place}", environ=environ)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A history with a run and two alerts, whose ids are 1 and 2."""
    pushes = [(step, round((BEGIN + step) * 1e6), {"loss": loss}) for step, loss in enumerate(losses())]
    labels = {"key": "loss", "rank": "0", "run": "net"}
    alerts = [
        Alert("LossSpike", "info", BEGIN + at, "net-1", labels, ended=BEGIN + at + 12) for at in (MILD + 3, SPIKE + 3)
    ]
    with history(tmp_path / "history") as kept:
        kept.put([opened("net-1", name="net"), ingested("net-1", pushes), *alerts, finished("net-1")])
    return tmp_path / "history"


def test_without_a_dismissed_alert_the_next_step_is_named(place: Path) -> None:
    done = ask(place, "tune")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "trackside: no alert is marked as a false alarm; mark one with trackside alerts dismiss ID\n"


def test_the_proposal_silences_the_false_alarm_alone(place: Path, tmp_path: Path) -> None:
    ask(place, "alerts", "dismiss", "1")
    done = ask(place, "tune")
    assert (done.returncode, done.stderr) == (0, "")
    head, row, gone, *rest = done.stdout.splitlines()
    assert head.split() == ["ALERT", "SETTING", "VALUE", "PROPOSED", "FALSE", "ALARMS", "OTHERS"]
    assert row.split()[0] == "LossSpike"
    assert row.split()[4:] == ["1", "to", "0", "1", "to", "1"]
    assert gone == "  no longer: 1 LossSpike of net, a false alarm"

    settings = tmp_path / "trackside.yml"
    settings.write_text("\n".join(rest))
    ((name, value),) = yaml.safe_load(settings.read_text())["alerts"]["thresholds"].items()
    assert name in {"loss-spike-ratio", "loss-spike-scales"}
    replayed = ask(place, "replay", "net", "--only=LossSpike", f"--config.file={settings}").stdout
    assert {json.loads(line)["step"] >= SPIKE for line in replayed.splitlines()} == {True}
    (proposal,) = json.loads(ask(place, "tune", "--json").stdout)["proposals"]
    assert (proposal["proposed"], proposal["before"], proposal["after"]) == (value, [1, 2], [2])


def test_a_step_is_explained_by_the_setting_that_decides(place: Path) -> None:
    fires = ask(place, "replay", "net", "--explain=LossSpike", f"--at={MILD + 3}").stdout.splitlines()
    assert fires[0] == f"LossSpike fires at step {MILD + 3} of rank 0: info, loss"
    assert any(line.startswith(f"  last samples: {MILD - 4}: ") for line in fires)
    assert fires[-1].startswith("decides: loss-spike-")
    name, value = fires[-1].split("{")[1].split("}")[0].split(": ")
    asked = ("replay", "net", "--explain=LossSpike", f"--at={MILD + 3}", f"--storage.path={place}")
    variable = f"TRACKSIDE_ALERTS__THRESHOLDS__{name.replace('-', '_').upper()}"
    changed = run_here(*asked, environ={"XDG_RUNTIME_DIR": "/nonexistent", variable: value}).stdout
    assert changed.startswith(f"LossSpike does not fire at step {MILD + 3} of rank 0\n")
    assert "FIRES AT" in changed


def test_the_test_that_decides_is_named_with_its_numbers(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1 + step % 2 + (step > 90)} for step in range(120)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = run_here("replay", str(tmp_path / "rows.jsonl"), "--explain=LossDiverging", "--at=110")
    assert re.search(r"^loss  rise, with the noise of samples +1 +[3-9]", run.stdout, re.MULTILINE)
    assert "the test 'rise, with the noise of samples' decides" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--explain=LossSpike"], "--explain ALERT and --at STEP need each other"),
        (
            ["--explain=LossSpik", "--at=3"],
            "--explain LossSpik: this alert is not replayed; give one of EntropyCollapse, GradientExplosion",
        ),
        (["--explain=LossSpike", "--at=900"], "--at 900: rank 0 has not pushed this step; the nearest is 399"),
        (["--explain=LossSpike", "--at=9", "--rank=3"], "--at 9: rank 3 has pushed nothing"),
        (["--explain=LossSpike", "--at=9", "--summary"], "--explain is about one alert; give it without --only"),
    ],
)
def test_what_cannot_be_explained_is_one_line(place: Path, arguments: list[str], message: str) -> None:
    done = ask(place, "replay", "net", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"trackside: {message}")
