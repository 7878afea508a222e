"""`trackside archive` and `trackside fleet`: what cannot be written or read is named in a line, and costs only itself."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from bridges.archives import path_of
from cli.test_runs import Place
from histories import BEGIN, column, finished, history, opened

from trackside_daemon.history.record.run_changes import delete, describe
from trackside_daemon.linux.file_lock import FileLock
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from pathlib import Path

NAME = "実験\n" * 40


@pytest.fixture
def here(tmp_path: Path) -> Place:
    """A history with three ended runs; the last has an evil name."""
    place = Place(tmp_path)
    with history(place.history) as one:
        for number, name in enumerate(("a", "b", NAME)):
            run = f"run{number}"
            one.put([opened(run, name=name, started=BEGIN + number), column(run, ["loss"], 10), finished(run)])
    return place


def test_a_run_that_is_not_written_is_named_and_the_next_time_it_is_there(here: Place) -> None:
    out = here.directory / "out"
    blocking = out / "samples" / "date=2023-11-14"
    blocking.parent.mkdir(parents=True)
    blocking.mkdir()
    (blocking / "name=a").write_text("no folder")
    ended = here.run("archive", str(out))
    assert ended.status == 1
    assert ended.out.startswith("b (run1): 10 samples")
    assert ended.out.splitlines()[-1] == "written: 2 runs with 20 samples; 0 were there already"
    first, last = ended.errors.splitlines()
    assert first.startswith(f"trackside: a (run0) is not written: {out}/samples/date=2023-11-14/name=a/run0@node-1-")
    assert last == "trackside: 1 runs are not written; the next trackside archive tries again"
    (blocking / "name=a").unlink()
    ended = here.run("archive", str(out))
    assert (ended.status, ended.errors) == (0, "")
    assert ended.out.splitlines()[-1] == "written: 1 runs with 10 samples; 2 were there already"
    ended = here.run("archive", str(out), "--verify", where=False)
    assert (ended.status, ended.errors) == (0, "")
    assert ended.out == "verified: 3 runs with 30 samples in 6 files; 0 are wrong\n"


def test_a_broken_file_is_named_by_questions_and_by_a_verification(here: Place) -> None:
    out = here.directory / "out"
    here.run("archive", str(out))
    path = path_of(out, "samples", "run1")
    shutil.copyfile("/dev/null", path)
    asked = here.run(
        "fleet", "--from", str(out), "--json", "--sql", "SELECT run FROM samples GROUP BY run ORDER BY run", where=False
    )
    assert asked.status == 0
    assert json.loads(asked.out) == [{"run": "run0"}, {"run": "run2"}]
    assert asked.errors == f"trackside: left out: {path} cannot be read: Parquet file size is 0 bytes\n"
    ended = here.run("archive", str(out), "--verify", where=False)
    assert (ended.status, ended.errors) == (1, "")
    assert ended.out.splitlines() == [
        f"{path} cannot be read: Parquet file size is 0 bytes",
        "verified: 3 runs with 20 samples in 5 files; 1 are wrong",
    ]
    ended = here.run("archive", str(here.directory / "none"), "--verify", where=False)
    assert (ended.status, ended.errors) == (2, f"trackside: {here.directory}/none: no archived runs\n")


def test_without_an_archive_a_question_is_about_the_runs_of_this_machine(here: Place) -> None:
    asked = here.run("fleet", "--json", "--sql", "SELECT run, count(*) AS n FROM samples GROUP BY run ORDER BY run")
    assert asked.status == 0
    assert json.loads(asked.out) == [{"run": f"run{number}", "n": 10} for number in range(3)]
    assert asked.errors == (
        "trackside: these are the ended runs of this machine; --from and bridges.parquet.url name an archive\n"
    )
    assert "run2" in here.run("fleet", "worst 20 runs by lost GPU hours", columns=200).out
    with history(here.directory / "new"):
        pass
    nothing = here.run(
        "fleet", "--sql", "SELECT run FROM runs", f"--storage.path={here.directory / 'new'}", where=False
    )
    assert nothing.status == 2
    assert "no run of this machine has ended" in nothing.errors
    assert here.run("fleet", "best runs").errors.startswith(
        "trackside: 'best runs': no prepared question; write one of:"
    )


def test_what_a_question_about_this_machine_wrote_serves_the_next_one(here: Place) -> None:
    state = here.directory / "state"

    def ask(sql: str = "SELECT run, name, tags FROM runs ORDER BY run") -> list[Any]:
        asked = here.run("fleet", "--json", "--sql", sql)
        assert asked.status == 0, asked.errors
        return [tuple(row.values()) for row in json.loads(asked.out)]

    def written() -> dict[str, int]:
        return {path.name.partition("@")[0]: path.stat().st_ino for path in state.rglob("runs/*/*/*.parquet")}

    assert [run for run, *_ in ask()] == ["run0", "run1", "run2"]
    before, (place,) = written(), state.glob("trackside/*/fleet/*")
    assert place.stat().st_mode & 0o777 == 0o700
    with history(here.history) as one:
        one.put([opened("run3"), column("run3", ["loss"], 10), finished("run3")])
        one.writer.call(lambda store: describe(store, "run1", name="renamed", notes=None, tags=["best"])).result(60)
        one.writer.call(lambda store: delete(store, "run0")).result(60)
    assert ask() == [("run1", "renamed", ["best"]), ("run2", NAME, []), ("run3", "run3", [])]
    after = written()
    assert after.keys() == {"run1", "run2", "run3"}
    assert [run for run in before.keys() & after.keys() if before[run] == after[run]] == ["run2"]
    assert ask("SELECT run, count(*) FROM samples GROUP BY run ORDER BY run") == [
        (f"run{number}", 10) for number in (1, 2, 3)
    ]
    # Two at once, and a place that somebody else may write to: as the first question, without trace.
    (held,) = [FileLock(place / "lock")]
    assert len(ask()) == 3
    held.close()
    place.chmod(0o770)
    (place / "runs").rename(place / "moved")
    assert len(ask()) == 3
    assert not (place / "runs").exists()


def test_alerts_that_come_or_end_after_a_question_are_in_the_next_one(here: Place) -> None:
    def ask() -> list[list[Any]]:
        asked = here.run(
            "fleet", "--json", "--sql", "SELECT alert, ended IS NULL, summary FROM alerts ORDER BY alert DESC"
        )
        return [list(row.values()) for row in json.loads(asked.out)]

    died = Alert("TrainingProcessDied", "critical", BEGIN + 5, "run0", {}, "rank 0", "")
    with history(here.history) as one:
        one.put([died])
    assert ask() == [["TrainingProcessDied", True, "rank 0"]]
    with history(here.history) as one:
        one.put([replace(died, summary="rank 0; also on rank 1")])
    assert ask() == [["TrainingProcessDied", True, "rank 0; also on rank 1"]]
    with history(here.history) as one:
        one.put([replace(died, ended=BEGIN + 300), Alert("OomKilled", "critical", BEGIN + 4, "run0", {}, "late", "")])
    assert ask() == [["TrainingProcessDied", False, "rank 0"], ["OomKilled", True, "late"]]


def test_a_run_that_is_deleted_is_at_once_in_nothing_that_questions_wrote(here: Place) -> None:
    here.run("fleet", "alerts by name")
    (place,) = (here.directory / "state").glob("trackside/*/fleet/*")
    assert here.run("delete", "run0", "--yes").status == 0
    assert not place.exists()
    assert "run1" in here.run("fleet", "worst 20 runs by lost GPU hours", columns=200).out


def test_what_questions_wrote_about_a_history_is_deleted_a_month_after_the_last_one(here: Place) -> None:
    here.run("fleet", "alerts by name")
    (place,) = (here.directory / "state").glob("trackside/*/fleet/*")
    old, new = (place.with_name(name) for name in ("old", "new"))
    for path, age in ((old, 31), (new, 29)):
        path.mkdir()
        os.utime(path, (time.time() - age * 86400,) * 2)
    os.utime(place, (0, 0))
    here.run("fleet", "alerts by name")
    assert {path.name for path in place.parent.iterdir()} == {place.name, "new"}
