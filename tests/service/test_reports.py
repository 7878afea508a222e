"""The reports that the daemon writes at the end of runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, column, finished, history, opened

from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import RunState
from trackside_daemon.service.reports import Reports

if TYPE_CHECKING:
    from pathlib import Path

ENDED = RunState("run", 0, "finished", "", BEGIN + 60)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory for reports next to a history of one run."""
    with history(tmp_path / "history") as one:
        one.put([opened("run", name="gpt</title>"), column("run", ["loss"], 10), finished("run")])
    (tmp_path / "reports").mkdir()
    return tmp_path


def reports(place: Path, directory: str = "reports", **more: Any) -> Reports:
    return Reports(place / directory, place / "history", CostSection, lambda _: None, memory=1 << 29, **more)


def ended(runs: Reports, *records: RunState) -> None:
    """Report ends, and write what waits."""
    runs.start()
    runs.accept(Batch("training", records=records))
    runs.stop()


def test_each_run_that_ends_gets_one_report_and_the_end_names_it(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trackside")
    runs = reports(place)
    ended(runs, RunState("run", 0, "running"), ENDED, ENDED)
    (file,) = (place / "reports").iterdir()
    assert (file, runs.link("run")) == (runs.file("run"), f"report: {file}")
    assert "<title>gpt&lt;/title&gt;: trackside report</title>" in file.read_text()
    assert caplog.messages == [f"report of run run: {file}"]


def test_no_id_leads_out_of_the_directory(place: Path) -> None:
    runs = reports(place)
    files = {runs.file(run) for run in ("../x", "a/b", ".", "", "x" * 500, "run")}
    assert len(files) == 6
    assert {file.parent for file in files} == {place / "reports"}


def test_what_fails_is_one_line_and_the_next_is_written(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended(reports(place), RunState("gone", 0, "lost"))
    ended(reports(place, "missing"), ENDED)
    assert caplog.messages[0] == "run gone gets no report: run 'gone': there is none"
    assert caplog.messages[1].startswith(f"run run gets no report: {place / 'missing'}")
    assert caplog.messages[1].endswith("no such file or directory")


def test_a_stop_does_not_wait_for_long(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended(reports(place, stop_seconds=0.0), ENDED)
    assert caplog.messages == ["run run gets no report: the daemon stops"]
