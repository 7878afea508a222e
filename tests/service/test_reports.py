"""The reports that the daemon writes at the end of runs."""

from __future__ import annotations

import json
import logging
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, column, finished, history, ingested, opened
from processes import DEADLINE, eventually
from session_records import batch_ingested

from trackside.media.pixels import encode
from trackside.wire import MediaItem
from trackside_daemon.diagnosis.report import read_contents
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents import experiment
from trackside_daemon.history.read.offline import Offline
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import BatchIngested, MachineSample, RunState
from trackside_daemon.questions.diagnosis import SIZE
from trackside_daemon.service.assembly import _reports
from trackside_daemon.service.config import Config
from trackside_daemon.service.reports import LAST_SECONDS, MAX_WAITING, WRITTEN_SECONDS, Reports

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
ENDED = RunState("run", 0, "finished", "", BEGIN + 60)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory for reports next to a history of one run."""
    with history(tmp_path / "history") as one:
        one.put([opened("run", name="gpt</title>"), column("run", ["loss"], 10), finished("run")])
    (tmp_path / "reports").mkdir()
    return tmp_path


def reports(place: Path, directory: str = "reports", **more: Any) -> Reports:
    options: dict[str, Any] = {"memory": 1 << 29, "stop_seconds": DEADLINE, **more}
    return Reports(place / directory, None, place / "history", CostSection, lambda _: None, **options)


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
    assert {file and file.parent for file in files} == {place / "reports"}


def test_what_fails_is_one_line_and_the_next_is_written(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended(reports(place), RunState("gone", 0, "lost"))
    ended(reports(place, "missing"), ENDED)
    assert caplog.messages[0] == "run gone gets no report: run 'gone': there is none"
    assert caplog.messages[1].startswith(f"run run gets no report: {place / 'missing'}")
    assert caplog.messages[1].endswith("no such file or directory")


def test_a_stop_does_not_wait_for_long(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended(reports(place, stop_seconds=0.0), ENDED)
    assert caplog.messages == ["run run gets no report: the daemon stops"]


def test_runs_that_ended_come_before_those_that_live_of_which_the_first_give_way(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live = [f"live{number}" for number in range(MAX_WAITING)]
    runs, order = experiments(place, every=1), list[str]()
    monkeypatch.setattr(runs, "_write", lambda run, *_: order.append(run))
    for run in live:
        opened(run)
        runs.accept(Batch("training", records=[ingested(run, [(5, round(BEGIN * 1e6), {"x": 1.0})])]))
    runs.accept(Batch("training", records=[ENDED]))
    runs.stop()
    runs.start()
    runs.stop()
    assert (order, caplog.messages) == (["run", *live[1:]], [])


def test_the_last_report_of_a_run_waits_longer_for_its_values_than_one_before(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()
    (place / "e").mkdir()
    runs = Reports(None, place / "e", place / "history", CostSection, waits.append, memory=1 << 30, every=1)
    monkeypatch.setattr(runs, "_write", lambda *_: None)
    opened("a")
    runs.start()
    runs.accept(Batch("training", records=[ingested("a", [(5, round(BEGIN * 1e6), {"x": 1.0})])]))
    eventually(lambda: waits)
    runs.accept(Batch("training", records=[ENDED]))
    eventually(lambda: len(waits) == 2)
    runs.stop()
    assert waits == [WRITTEN_SECONDS, LAST_SECONDS]


def test_a_stop_complains_of_no_run_that_lives(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs = experiments(place, every=1, stop_seconds=0.0)
    opened("a")
    runs.accept(Batch("training", records=[ingested("a", [(5, round(BEGIN * 1e6), {"x": 1.0})])]))
    runs.stop()
    runs.start()
    runs.stop()
    assert caplog.messages == []


def experiments(place: Path, **options: Any) -> Reports:
    return Reports(None, place / "e", place / "history", CostSection, lambda _: None, memory=1 << 30, **options)


def test_an_experiment_has_the_files_of_its_directory_also_while_it_lives(tmp_path: Path) -> None:
    place = tmp_path / "own"
    (place / "e").mkdir(parents=True)
    image = MediaItem("image", "frequencies", round((BEGIN + 1) * 1e9), encode(2, 1, 1, b"\x00\xff"), 1000)
    pushes = [
        (step, round((BEGIN + step / 20) * 1e6), {"loss": 7 - step / 1000, "learning_rate": 0.1})
        for step in range(0, 1201, 10)
    ]
    with history(place / "history") as one:
        record = opened("run", name="wave rgd/qfe", config={"lr": 0.001, "clip": float("inf")})
        batches = [ingested("run", pushes), batch_ingested(record.session.id, 2, media=[image])]
        ticks = [
            MachineSample(BEGIN + 5 * tick, {"trackside_host_memory_available_bytes": 1e9 + tick}) for tick in range(12)
        ]
        one.put([record, *batches, *ticks])
        runs = experiments(place, every=1000)
        runs.start()
        runs.accept(Batch("training", records=batches))
        root = place / "e" / "wave_rgd_qfe-run"
        eventually((root / "visualizations" / ".trackside.json").exists)
        runs.stop()
    metrics = [json.loads(line) for line in (root / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 121
    assert (metrics[0]["step"], metrics[0]["loss"], metrics[-1]["loss"]) == (0, 7.0, 5.8)
    config, results = (json.loads((root / name).read_text()) for name in ("config.json", "results.json"))
    assert (config["experiment_id"], config["git_hash"], config["config"]) == (
        root.name,
        "0123abc",
        {"lr": 0.001, "clip": "inf"},
    )
    assert (results["state"], results["step"], results["final_metrics"]["loss"]) == ("starting", 1200, 5.8)
    assert results["metrics"]["loss"]["best"] == 5.8
    drawn = {path.name for path in (root / "visualizations").iterdir()}
    assert {"training_dynamics_step_1200.png", "frequencies_step_1000.png", "loss.png", "loss-dark.svg"} <= drawn
    assert {f"resources_host_memory_available{end}" for end in (".svg", "-dark.svg", ".png", "-dark.png")} <= drawn
    assert b"resources/host_memory_available" in (root / "report.html").read_bytes()
    assert not list(root.rglob("*.unfinished"))


def test_an_experiment_directory_that_is_a_link_or_of_another_user_is_refused(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (place / "e").mkdir()
    (place / "elsewhere").mkdir()
    (place / "e" / "gpt_title-run").symlink_to(place / "elsewhere")
    ended(experiments(place), ENDED)
    assert caplog.messages[0].startswith("run run gets no directory: ")
    assert list((place / "elsewhere").iterdir()) == []


def test_an_experiment_keeps_the_files_of_its_user_and_deletes_plots_of_before(place: Path) -> None:
    (place / "e").mkdir()
    ended(experiments(place), ENDED)
    (root,) = (place / "e").iterdir()
    plots = root / "visualizations"
    (plots / "mine.png").write_bytes(b"x")
    (plots / ".trackside.json").write_text(json.dumps(["old.svg", "../config.json"]))
    (plots / "old.svg").write_bytes(b"x")
    ended(experiments(place), ENDED)
    left = {path.name for path in plots.iterdir()}
    assert {"mine.png", "loss.svg"} <= left
    assert "old.svg" not in left
    assert (root / "config.json").exists()


def test_the_metrics_of_an_experiment_need_little_memory_and_are_the_newest_steps(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "VALUES", 4)
    (place / "e").mkdir()
    offline = Offline(place / "history", lambda _: None)
    with offline.reading() as connection:
        contents = read_contents(connection, "run", CostSection(), SIZE)
    root = experiment.write_experiment(offline, contents, place / "e")
    lines = (root / "logs" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [6, 7, 8, 9]
    (root / "logs" / "metrics.jsonl").unlink()
    monkeypatch.setattr(experiment, "_metrics", lambda *_: (b"x" * MIB for _ in range(100)))
    tracemalloc.start()
    experiment.write_experiment(offline, contents, place / "e")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (root / "logs" / "metrics.jsonl").stat().st_size == 100 * MIB
    assert peak < 50 * MIB
    offline.close()


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "_plots", lambda _: ())


def write_metrics(place: Path) -> tuple[Path, list[tuple[int, int, dict[str, float]]]]:
    """Write the run's directory as the daemon's process does, and return metrics.jsonl, and attempt, step and values of its lines."""
    (place / "e").mkdir(exist_ok=True)
    offline = Offline(place / "history", lambda _: None)
    with offline.reading() as connection:
        contents = read_contents(connection, "run", CostSection(), SIZE)
    file = experiment.write_experiment(offline, contents, place / "e") / "logs" / "metrics.jsonl"
    offline.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return file, [(one.pop("attempt"), one.pop("step"), {k: v for k, v in one.items() if k != "time"}) for one in lines]


def pushed(first: int, count: int, attempt: int = 0, number: int = 1, rank: int = 0) -> BatchIngested:
    """Return pushes of a step each, with a second key at every third step."""
    return ingested(
        "run",
        [
            (s, round((BEGIN + 100 * attempt + s) * 1e6), {"loss": s / 4} | ({} if s % 3 else {"acc": s / 8}))
            for s in range(first, first + count)
        ],
        attempt=attempt,
        number=number,
        rank=rank,
    )


def lines_of(first: int, count: int, attempt: int = 0) -> list[tuple[int, int, dict[str, float]]]:
    return [(attempt, s, {"loss": s / 4} | ({} if s % 3 else {"acc": s / 8})) for s in range(first, first + count)]


@pytest.mark.usefixtures("no_plots")
def test_metrics_of_an_experiment_grow_and_go_on_after_a_restart_of_either(tmp_path: Path) -> None:
    place = tmp_path / "own"
    place.mkdir()
    with history(place / "history") as one:
        one.put([opened("run", name="gpt"), pushed(0, 500)])
        file, found = write_metrics(place)
        assert found == lines_of(0, 500)
        before, inode = file.read_bytes(), file.stat().st_ino
        one.put([pushed(500, 2000, number=2)])
        file, found = write_metrics(place)
        assert found == lines_of(0, 2500)
        assert (file.stat().st_ino, file.read_bytes()[: len(before)]) == (inode, before)
    with history(place / "history") as one:  # the daemon has restarted, and then the training, from its checkpoint
        one.put([opened("run", name="gpt", attempt=1), pushed(2400, 200, attempt=1)])
        file, found = write_metrics(place)
        assert (file.stat().st_ino, found) == (inode, lines_of(0, 2500) + lines_of(2400, 200, attempt=1))
        size = file.stat().st_size
        assert write_metrics(place)[1] == found
        assert file.stat().st_size == size


@pytest.mark.parametrize("what", ["torn", "shorter", "missing", "place missing", "place torn", "another file"])
@pytest.mark.usefixtures("no_plots")
def test_metrics_of_an_experiment_that_are_not_as_they_were_left_are_whole_again(tmp_path: Path, what: str) -> None:
    place = tmp_path / "own"
    place.mkdir()
    with history(place / "history") as one:
        one.put([opened("run", name="gpt"), pushed(0, 50)])
        file, _ = write_metrics(place)
        noted = file.with_name(".metrics.json")
        if what == "torn":  # a process that was killed while it appended
            file.write_bytes(file.read_bytes() + b'{"step": 50, "ti')
        elif what == "shorter":
            file.write_bytes(file.read_bytes()[:-5])
        elif what == "place torn":
            noted.write_text('{"byt')
        elif what == "another file":
            file.write_bytes(b"x" * 1_000_000)
        else:
            (file if what == "missing" else noted).unlink()
        one.put([pushed(50, 10, number=2)])
        assert write_metrics(place)[1] == lines_of(0, 60)


@pytest.mark.usefixtures("no_plots")
def test_metrics_of_an_experiment_are_written_anew_when_they_are_twice_too_long_or_a_lower_rank_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "own"
    place.mkdir()
    monkeypatch.setattr(experiment, "ROWS", 10)
    with history(place / "history") as one:
        one.put([opened("run", name="gpt", rank=1), pushed(0, 8, rank=1)])
        for begin in (8, 16, 24):
            assert [step for _, step, _ in write_metrics(place)[1]] == [*range(begin)]
            one.put([pushed(begin, 8, number=begin, rank=1)])
        assert [step for _, step, _ in write_metrics(place)[1]] == [*range(22, 32)]
        one.put([opened("run", name="gpt"), pushed(30, 5)])
        assert write_metrics(place)[1] == lines_of(30, 5)


def test_with_little_memory_an_experiment_has_no_png_and_all_else(place: Path) -> None:
    (place / "e").mkdir()
    ended(Reports(None, place / "e", place / "history", CostSection, lambda _: None, memory=1 << 28), ENDED)
    names = {path.name for path in (place / "e").rglob("*") if path.is_file()}
    assert names == {
        "config.json",
        "results.json",
        "report.html",
        "metrics.jsonl",
        "loss.svg",
        "loss-dark.svg",
        ".trackside.json",
        ".metrics.json",
    }


def test_steps_without_a_directory_of_experiments_are_warned_to_have_no_effect(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config.model_validate({"reports": {"every": "1000 steps"}})
    unused: Any = None
    assert _reports(config, place, unused, unused, 1 << 29) is None
    (line,) = caplog.messages
    assert line == "reports.every has no effect: set storage.experiment-directory, the directory that it writes to"
