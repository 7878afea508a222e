"""`trackside checkpoints` lists what a run has saved, and prints the path to resume from."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cli.test_runs import Place, answering
from histories import BEGIN, column, history, opened

from trackside_daemon.checkpoints.audit.audit import audit
from trackside_daemon.checkpoints.audit.request import AuditRequest
from trackside_daemon.model.checkpoint import Checkpoint
from trackside_daemon.model.records import Event

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path) -> None:
    """Write a checkpoint, as `torch.save` does."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data/0", os.urandom(5000))


def record(path: Path, step: int, state: str = "complete", **fields: float | None) -> Checkpoint:
    """Return the record of a checkpoint as of its audit."""
    checked = fields.get("checked", BEGIN + step)
    return Checkpoint(
        "aaaa1111",
        str(path),
        0,
        BEGIN + step,
        "event",
        state,
        step,
        "torch",
        5132,
        checked,
        path.name if state == "damaged" else "",
        f"{path.name}: it is cut off" if state == "damaged" else "",
        {},
        audit(AuditRequest(str(path))).files if checked and state == "complete" else (),
    )


@pytest.fixture
def here(tmp_path: Path) -> Place:
    """A history with five checkpoints: gone, two intact, one that is damaged, and one that was torn since its audit."""
    place = Place(tmp_path)
    paths = {step: tmp_path / f"step-{step}.pt" for step in (10, 20, 30, 40, 50)}
    for step, path in paths.items():
        if step > 10:
            write(path)
    records = [
        record(paths[10], 10, "gone", checked=None),
        record(paths[20], 20),
        record(paths[30], 30, "writing", checked=None),
        record(paths[40], 40, "damaged"),
        record(paths[50], 50),
    ]
    os.truncate(paths[50], 3000)
    with history(place.history) as one:
        one.put([opened("aaaa1111", name="gpt"), column("aaaa1111", ["train/loss", "eval/acc"], 60), *records])
        one.put([opened("bbbb2222", name="none")])
    return place


def test_checkpoints_are_a_table(here: Place) -> None:
    answer = here.run("checkpoints", "gpt", columns=200)
    assert answer.status == 0
    lines = [line.split() for line in answer.out.splitlines()]
    assert lines[0] == ["STEP", "WRITTEN", "STATE", "FORMAT", "SIZE", "TRAIN/LOSS", "PATH"]
    assert [(line[0], line[3]) for line in lines[1:]] == [
        ("10", "gone"),
        ("20", "complete"),
        ("30", "writing"),
        ("40", "damaged"),
        ("50", "complete"),
    ]
    assert answer.out.splitlines()[4].endswith("step-40.pt: it is cut off")
    found = json.loads(here.run("checkpoints", "gpt", "--json", "--metric=eval/acc").out)
    assert [one["value"] for one in found["checkpoints"]] == [10.1, 20.1, 30.1, 40.1, 50.1]
    with answering(here) as api:
        here.run("checkpoints", "none", "--audit").refusal(1)
        assert "POST /api/v1/runs/none/checkpoints/audit" in api.asked
        assert json.loads(here.run("checkpoints", "gpt", "--json", "--metric=eval/acc").out) == found
        assert "GET /api/v1/runs/gpt/checkpoints" in api.asked


def test_the_path_is_all_that_is_printed(here: Place) -> None:
    """With --good, what changed since its audit and what was not audited yet are read."""
    latest = here.run("checkpoints", "latest", "gpt")
    assert (latest.status, latest.out) == (0, f"{here.directory}/step-50.pt\n")
    good = here.run("checkpoints", "latest", "gpt", "--good")
    assert (good.status, good.out) == (0, f"{here.directory}/step-30.pt\n")
    reported = [line for line in good.errors.splitlines() if "skipped" in line]
    assert len(reported) == 2
    assert reported[0].startswith(f"trackside: {here.directory}/step-50.pt is skipped: step-50.pt: ")
    assert reported[1] == f"trackside: {here.directory}/step-40.pt is skipped: step-40.pt: it is cut off"
    for flags, step in (([], 20), (["--max", "--metric=eval/acc"], 50), (["--good", "--max"], 30)):
        best = here.run("checkpoints", "best", "gpt", *flags)
        assert (best.status, best.out) == (0, f"{here.directory}/step-{step}.pt\n")


def test_the_latest_is_the_one_that_was_saved_last_whatever_its_step_and_time(tmp_path: Path) -> None:
    place = Place(tmp_path)
    records = []
    for sequence, step in enumerate((3000, 200, 100), 10**15):
        write(path := tmp_path / f"step-{step}.pt")
        records.append(replace(record(path, step), sequence=sequence))
    with history(place.history) as one:
        one.put([opened("aaaa1111", name="gpt"), *records])
    assert place.run("checkpoints", "latest", "gpt").out == f"{tmp_path}/step-100.pt\n"
    with answering(place):
        assert place.run("checkpoints", "latest", "gpt", "--good").out == f"{tmp_path}/step-100.pt\n"
        listed = json.loads(place.run("checkpoints", "gpt", "--json").out)["checkpoints"]
    assert [one["step"] for one in listed] == [3000, 200, 100]


def test_the_latest_is_one_that_was_reported_and_is_not_listed_yet(here: Place) -> None:
    """Or that was listed before it was written anew: a busy machine may list it a minute later."""
    paths = {name: here.directory / f"{name}.pt" for name in ("step-60", "step-40")}

    def reported(path: str, seconds: float) -> Event:
        return Event("aaaa1111", 0, BEGIN + seconds, "checkpoint", fields={"path": path})

    def latest() -> str:
        printed: str = here.run("checkpoints", "latest", "gpt", "--good").out
        return printed.removeprefix(f"{here.directory}/").removesuffix(".pt\n")

    with history(here.history) as one:
        one.put(
            [
                reported(str(paths["step-40"]), 40),
                reported("step-30.pt", 70),
                reported("s3://step-70.pt", 70),
                reported(f"/{300 * 'x'}.pt", 80),
            ]
        )
    assert latest() == "step-30"
    write(paths["step-60"])
    with history(here.history) as one:
        one.put([reported(str(paths["step-60"]), 60)])
    assert latest() == "step-60"
    with history(here.history) as one:
        one.put([reported(str(paths["step-40"]), 61.5), reported(str(paths["step-40"]), 61)])
    assert latest() == "step-40"
    with history(here.history) as one:
        one.put([replace(record(paths["step-40"], 40, "damaged"), time=BEGIN + 61.0)])
    assert latest() == "step-60", "another rank reports what is listed"


def test_without_one_the_status_is_1_and_nothing_is_printed(here: Place) -> None:
    assert "run none has no checkpoint" in here.run("checkpoints", "latest", "none").refusal(1).splitlines()[-1]
    assert "run none has no checkpoints that are known" in here.run("checkpoints", "none").refusal(1)
    for path in here.directory.glob("*.pt"):
        path.unlink()
    assert "run gpt has no intact checkpoint" in here.run("checkpoints", "latest", "gpt", "--good").refusal(1)
    assert "nosuch" in here.run("checkpoints", "latest", "nosuch").refusal(1)
    assert "nosuch" in here.run("checkpoints", "nosuch").refusal()
    with answering(here):
        assert "nosuch" in here.run("checkpoints", "latest", "nosuch").refusal(1)
    refusal = here.run("checkpoints", "best", "gpt", "--metric=nosuch").refusal(1)
    assert "run gpt: no checkpoint has a value of nosuch" in refusal
    assert "latest: name a run after it" in here.run("checkpoints", "latest").refusal()
    assert "give one run, with latest or best before it" in here.run("checkpoints", "last", "gpt").refusal()
    assert "latest" in here.run("checkpoints", "a", "b", "c").refusal()
    assert "no daemon answers here" in here.run("checkpoints", "gpt", "--audit").refusal(1)
