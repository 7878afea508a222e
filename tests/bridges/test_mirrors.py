"""Mirrors: each sample of the history is at the target once, whatever happens to the target, the worker or the daemon."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import sys
import time
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import layer_frames
import pytest
from bridges.extras import put_extras
from bridges.mlflow_server import MlflowServer
from histories import BEGIN, column, finished, history, ingested, opened, session
from processes import DEADLINE, eventually, require
from session_records import batch_ingested

from trackside.wire import MediaItem
from trackside_daemon.bridges.finding import find_runs
from trackside_daemon.bridges.mirrors import messages, worker
from trackside_daemon.bridges.mirrors import worker as mirrors
from trackside_daemon.bridges.mirrors.positions import Positions, RankKey
from trackside_daemon.bridges.mirrors.supervisor import Mirrors, _Mirror
from trackside_daemon.bridges.mirrors.target import make_target
from trackside_daemon.bridges.mirrors.unsent import CURVES, unsent_curves
from trackside_daemon.bridges.mirrors.worker import Mirror
from trackside_daemon.bridges.mlflow import mirror as mlflow
from trackside_daemon.bridges.otlp import mirror as otlp
from trackside_daemon.bridges.settings import BridgesSection, MirrorSection
from trackside_daemon.bridges.tensorboard.event_file import EventFile
from trackside_daemon.bridges.tensorboard.mirror import EventFiles
from trackside_daemon.bridges.wandb import mirror as wandb
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.files.left_out import LeftOut
from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.model.families import daemon
from trackside_daemon.model.records import MachineSample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from histories import History

    from trackside_daemon.bridges.mirrors.target import MirroredRun, Row, State, Target
    from trackside_daemon.history.record.store import RecordStore


@pytest.fixture(autouse=True)
def _started_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mirrors start before the runs of these tests, which began in 2023."""
    monkeypatch.setattr("trackside_daemon.bridges.mirrors.positions.time", SimpleNamespace(time=lambda: BEGIN))


def mirror_to(target: Target, one: History, **options: Any) -> Mirror:
    """Return a mirror with the positions of the last one of this history."""
    return Mirror(one.database.path, Positions(one.directory / "positions.db"), target, **options)


def scalars(place: Path) -> list[tuple[str, int, float, float]]:
    """Return all scalars in the event files below a directory, file by file."""
    paths = sorted(place.rglob("*tfevents*"))
    return [scalar for path in paths for events in EventFile(path, LeftOut()).read() for scalar in events.scalars]


class Recorded:
    """A target that keeps rows in memory, and fails when it should.

    Attributes:
        fails: Raises the error to raise for some rows, or returns.
    """

    histograms = False
    refused: Sequence[str] = ()

    def __init__(self, *, machine: bool = False) -> None:
        self.machine = machine
        self.rows: list[tuple[str, Row]] = []
        self.ended: list[tuple[str, str]] = []
        self.fails: Callable[[Sequence[Row]], None] = lambda _: None

    def begin(self, run: MirroredRun, state: State) -> State:
        return state

    def send(self, run: MirroredRun, rows: Sequence[Row], state: State) -> State:
        self.fails(rows)
        self.rows += [(run.name, row) for row in rows]
        return {"count": state.get("count", 0) + len(rows)}

    def end(self, run: MirroredRun, state: State) -> State:
        self.ended.append((run.name, run.state))
        return state

    def close(self) -> None:
        pass

    def steps(self, name: str = "a") -> list[int]:
        return [row.step for run, row in self.rows if run == name]


def test_rows_come_whole_in_order_and_once_also_when_they_are_packed_meanwhile(tmp_path: Path) -> None:
    target = Recorded()
    with history(tmp_path) as one:
        running = mirror_to(target, one, max_values=700)
        one.put([opened("a"), column("a", ["loss", "lr"], 1000)])
        running.poll()
        assert target.steps() == list(range(1000))
        more = [(step, round((BEGIN + step) * 1e6), {"loss": step + 0.5}) for step in range(1000, BLOCK + 900)]
        one.put([ingested("a", more, number=2)])
        one.wait_until_packed()
        running.poll()
        one.put([finished("a", after=1.0), opened("b"), column("b", ["x"], 3)])
        one.wait_until_packed()
        running.poll()
    assert target.steps() == list(range(BLOCK + 900))
    assert all(len(row.values) == 2 for name, row in target.rows[:1000] if name == "a")
    assert target.steps("b") == [0, 1, 2]
    assert target.ended == [("a", "finished")]
    assert (running.status.sent, running.status.lost, running.status.oldest) == (2000 + BLOCK - 100 + 3, 0, None)


def test_what_retention_has_deleted_is_counted(tmp_path: Path) -> None:
    target = Recorded()
    with history(tmp_path) as one:
        one.put([opened("a"), column("a", ["loss"], BLOCK + 10), finished("a", after=1.0)])
        one.wait_until_packed()
        for change in ("UPDATE block SET data = NULL WHERE count = 4096", "UPDATE series SET trimmed = 1"):
            one.writer.call(partial(_change, change)).result(60)
        running = mirror_to(target, one)
        running.poll()
    assert target.steps() == list(range(BLOCK, BLOCK + 10))
    assert (running.status.sent, running.status.lost) == (10, BLOCK)


def test_runs_of_before_and_imported_ones_are_left_out_and_late_pushes_are_not(tmp_path: Path) -> None:
    target = Recorded()
    with history(tmp_path) as one:
        one.put([opened("old", started=BEGIN - 50), column("old", ["x"], 2), finished("old", after=-10.0)])
        one.import_file(b"step,time,x\n0,1800000000,1\n", id="imported")
        one.put([opened("a"), column("a", ["x"], 2), finished("a", after=5.0)])
        running = mirror_to(target, one)
        running.poll()
        assert {name for name, _ in target.rows} == {"a"}
        one.put([ingested("a", [(7, round(BEGIN * 1e6), {"x": 1.0})], number=2)])  # from a spool
        running.poll()
        running.poll()
    assert target.steps() == [0, 1, 7]
    assert target.ended == [("a", "finished")] * 2


def test_other_ranks_have_keys_of_their_own_if_they_are_wanted(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put([record for rank in (1, 3) for record in (opened("a", rank=rank), column("a", ["x"], 1, rank=rank))])
        lowest, every = Recorded(), Recorded()
        Mirror(one.database.path, Positions(tmp_path / "1.db"), lowest).poll()
        Mirror(one.database.path, Positions(tmp_path / "2.db"), every, every_rank=True).poll()
    assert [row.named() for _, row in lowest.rows] == [{"x": 0.0}]
    assert [row.named() for _, row in every.rows] == [{"x": 0.0}, {"x/rank_3": 0.0}]


def test_a_row_that_the_target_refuses_costs_only_itself(tmp_path: Path) -> None:
    target = Recorded()

    def refuse(rows: Sequence[Row]) -> None:
        if any(row.step == 37 for row in rows):
            raise SendError("bad", "never")

    target.fails = refuse
    with history(tmp_path) as one:
        one.put([opened("a"), column("a", ["x"], 100)])
        running = mirror_to(target, one)
        assert running.poll() == 0.0
    assert target.steps() == [step for step in range(100) if step != 37]
    assert (running.status.sent, running.status.rejected) == (99, 1)


def test_a_target_that_does_not_answer_is_asked_less_and_less_and_then_has_everything(tmp_path: Path) -> None:
    target = Recorded()
    down = True

    def fail(_: Sequence[Row]) -> None:
        if down:
            raise SendError("nobody answers")

    target.fails = fail
    with history(tmp_path) as one:
        one.put([opened("a"), column("a", ["x"], 10)])
        running = mirror_to(target, one)
        pauses = [running.poll() for _ in range(9)]
        assert all(2**n / 2 <= pause <= 2**n for n, pause in enumerate(pauses[:6]))
        assert messages.LONGEST_SECONDS / 2 <= pauses[-1] <= messages.LONGEST_SECONDS
        assert (running.status.error, running.status.failures, running.status.oldest) == ("nobody answers", 9, BEGIN)
        down = False
        assert running.poll() == 0.0
    assert target.steps() == list(range(10))
    assert (running.status.error, running.status.oldest) == ("", None)


def test_the_lag_is_that_of_the_oldest_run_that_waits_also_behind_one_that_the_target_did_not_accept(
    tmp_path: Path,
) -> None:
    target = Recorded()
    with history(tmp_path) as one:
        late = [(step, round((BEGIN + 500 + step) * 1e6), {"x": 1.0}) for step in range(3)]
        one.put([opened("a"), ingested("a", late), opened("b", started=BEGIN + 1), column("b", ["x"], 3)])
        running = mirror_to(target, one)

        def fail(_: Sequence[Row]) -> None:
            raise SendError("nobody answers")

        target.fails = fail
        for _ in range(2):
            running.poll()
            assert running.status.oldest == BEGIN
        target.fails = lambda _: None
        running.poll()
        assert (target.steps("a"), target.steps("b"), running.status.oldest) == ([0, 1, 2], [0, 1, 2], None)


def test_the_lag_grows_while_the_end_of_a_run_or_the_history_itself_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Recorded()
    now = BEGIN + 1000
    monkeypatch.setattr(mirrors, "time", SimpleNamespace(time=lambda: now))
    with history(tmp_path) as one:
        one.put([opened("a"), column("a", ["x"], 3), finished("a")])
        running = mirror_to(target, one)
        with monkeypatch.context() as patch:
            patch.setattr(target, "end", raising(SendError("nobody answers")))
            running.poll()
            now += 100
            running.poll()
            assert running.status.oldest == BEGIN + 1000
        running.poll()
        assert running.status.oldest is None
        with monkeypatch.context() as patch:
            patch.setattr(mirrors, "open_reader", raising(sqlite3.OperationalError("disk I/O error")))
            running.poll()
            now += 100
            running.poll()
            assert running.status.oldest == BEGIN + 1100
        running.poll()
        assert (running.status.oldest, running.status.error) == (None, "")


def raising(error: Exception) -> Callable[..., Any]:
    """Return a function that raises an error."""

    def fail(*_: Any) -> None:
        raise error

    return fail


def test_a_run_that_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    target = Recorded()
    with history(tmp_path) as one:
        for number, run in enumerate("ab"):
            one.put([opened(run, started=BEGIN + number), column(run, ["x"], BLOCK), finished(run)])
        one.wait_until_packed()
        one.writer.call(partial(_change, "UPDATE block SET data = x'01' WHERE id >> 24 = 1")).result(60)
        running = mirror_to(target, one)
        assert running.poll() > 0
        assert running.status.error.startswith("a (a): the history cannot be read: ")
        assert running.status.oldest is not None
    assert target.steps("b") == list(range(BLOCK))


def test_a_long_name_and_a_folder_that_cannot_be_made_stop_no_other_run(tmp_path: Path) -> None:
    place = tmp_path / "tb"
    with history(tmp_path) as one:
        for number, name in enumerate(("実験" * 60, "taken", "c")):
            run = f"{number}"
            one.put([opened(run, name=name, started=BEGIN + number), column(run, ["x"], 3), finished(run)])
        place.mkdir()
        (place / "taken-1").write_text("no folder")
        running = mirror_to(EventFiles(place), one)
        running.poll()
        assert running.status.error == f"taken (1): {place}/taken-1: file exists"
    assert len(scalars(place)) == 6


def test_runs_of_one_name_and_ids_that_begin_alike_have_folders_of_their_own(tmp_path: Path) -> None:
    runs = {"slurm-4711.0": "gpt", "slurm-4712.0": "gpt", "slurm-4712_0": "gpt", "4712.0": "gpt-slurm"}
    with history(tmp_path) as one:
        for run, name in runs.items():
            one.put([opened(run, name=name), column(run, ["x"], 30), finished(run)])
        mirror_to(EventFiles(tmp_path / "tb"), one).poll()
    folders = sorted((tmp_path / "tb").iterdir())
    assert [one.name for one in folders] == ["gpt-slurm-4712.0", *(f"gpt@{run}" for run in [*runs][:3])]
    assert all([step for _, step, _, _ in scalars(one)] == list(range(30)) for one in folders)


def test_event_files_have_each_sample_once_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    class Killing(Positions):
        """Positions of a worker that is killed right after the target has got rows."""

        def advance(self, *_: object) -> None:
            raise KeyboardInterrupt

    place = tmp_path / "tb"
    with history(tmp_path) as one:
        for number in range(1, 6):
            pushes = [
                (s, round((BEGIN + s) * 1e6), {"loss": s / 4, "lr": 0.5}) for s in range(10 * number, 10 * number + 10)
            ]
            one.put([opened("a", name="gpt/x"), ingested("a", pushes, number=number)])
            if number % 2:
                with pytest.raises(KeyboardInterrupt):
                    Mirror(one.database.path, Killing(one.directory / "positions.db"), EventFiles(place)).poll()
            mirror_to(EventFiles(place), one).poll()
        one.put([opened("a", name="gpt/x", attempt=1), column("a", ["loss"], 30, attempt=1)])
        mirror_to(EventFiles(place), one).poll()
    first, second = sorted(place.glob("gpt_x-a/*"))
    assert scalars(place)[:100] == [
        (key, s, BEGIN + s, v) for s in range(10, 60) for key, v in (("loss", s / 4), ("lr", 0.5))
    ]
    assert [step for _, step, _, _ in scalars(place)[100:]] == list(range(30))
    assert [events.restart for events in EventFile(second, LeftOut()).read() if events.restart is not None] == [0]
    (read,) = find_runs(str(first), {})
    assert len(list(read.items())) == 101


def test_event_files_have_the_distributions_of_layers_once(tmp_path: Path) -> None:
    with history(tmp_path / "history") as one:
        record = opened("id-1", name="train")
        frames = [layer_frames.frame(step, {"embed": layer_frames.normal(step)}) for step in range(40)]
        heads = [layer_frames.attention(3, {"attn/0": (0.5, 9.0)})]
        one.put([record, batch_ingested(record.session.id, 1, distributions=[*frames, *heads])])
        for _ in range(2):  # the second is a worker that starts again
            mirror_to(EventFiles(tmp_path / "events"), one).poll()
        (path,) = (tmp_path / "events").rglob("*tfevents*")
        read = [*EventFile(path, LeftOut()).read()]
    found = [(value.kind, value.tag, step) for events in read for value, step, _ in events.others]
    assert found == [("histograms", "weights/embed", step) for step in range(40)]
    assert [scalar[:2] for events in read for scalar in events.scalars] == [
        ("attention/entropy/attn/0", 3),
        ("attention/logit/attn/0", 3),
    ]


def mirrored(tmp_path: Path) -> Path:
    """Return the event files of a run with extras, whose mirror was killed after curves and after media, and went on."""

    class Killing(Positions):
        """Positions of a worker that is killed when the target has got curves, and when it has got media."""

        def advance(self, place: RankKey, sent: Mapping[str, int], state: State) -> None:
            if (CURVES in sent or place.attempt < 0) and not killed.get(place):
                killed[place] = True
                raise KeyboardInterrupt
            super().advance(place, sent, state)

    place, killed = tmp_path / "tb", dict[RankKey, bool]()
    with history(tmp_path / "h") as one:
        put_extras(one)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                Mirror(one.database.path, Killing(one.directory / "positions.db"), EventFiles(place)).poll()
        for _ in range(2):
            mirror_to(EventFiles(place), one).poll()
        one.put([finished("a", after=119.0)])
        mirror_to(EventFiles(place), one).poll()
    return next(place.iterdir())


def test_event_files_have_the_curves_of_the_machine_and_the_media_once(tmp_path: Path) -> None:
    (path,) = mirrored(tmp_path).iterdir()
    read = list(EventFile(path, LeftOut()).read())
    others = sorted((value.kind, value.tag, step) for events in read for value, step, _ in events.others)
    assert others == [("histograms", "spread", 3), ("images", "sample", 2), ("text", "rows", 3), ("text", "said", 3)]
    curve = [one[1:] for events in read for one in events.scalars if one[0] == "resources/host_cpu"]
    assert curve == [(step, BEGIN + after, 4.0) for step, after in ((1, 10), (4, 40), (7, 70), (10, 100), (11, 118))]


def test_a_real_reader_of_event_files_finds_the_curves_and_the_media(tmp_path: Path) -> None:
    require("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(mirrored(tmp_path)), size_guidance=dict.fromkeys(("images", "tensors", "scalars"), 0))
    read.Reload()
    tags = read.Tags()
    assert (tags["images"], tags["histograms"], sorted(tags["tensors"])) == (["sample"], ["spread"], ["rows", "said"])
    assert sorted(tags["scalars"]) == ["loss", "resources/gpu_utilization/gpu_0", "resources/host_cpu"]
    cells = [(one.step, one.wall_time - BEGIN) for one in read.Scalars("resources/gpu_utilization/gpu_0")]
    assert cells == [(1, 10), (4, 40), (7, 70), (10, 100), (11, 118)]
    assert {round(one.value, 5) for one in read.Scalars("resources/host_cpu")} == {4.0}
    (image,), (reported,), (rows,) = read.Images("sample"), read.Tensors("said"), read.Tensors("rows")
    assert (image.step, image.width, image.height, image.encoded_image_string[1:4]) == (2, 2, 1, b"PNG")
    assert reported.tensor_proto.string_val[0].decode() == "Grüße"
    assert rows.tensor_proto.string_val[0].decode() == "| a |\n| --- |\n| 1 |\n| x\\|y |\n\n2 more rows"
    assert read.PluginTagToContent("text").keys() == {"rows", "said"}
    (spread,) = read.Histograms("spread")
    assert (spread.step, spread.histogram_value.num, spread.histogram_value.max) == (3, 6.0, 3.0)


def test_mlflow_gets_the_curves_of_the_machine_and_the_media_as_artifacts(tmp_path: Path) -> None:
    settings = {"url": "", "experiment": "e", "token_file": "", "ca_file": ""}
    with MlflowServer() as server, history(tmp_path) as one:
        settings["url"] = server.url
        put_extras(one)
        assert [mirror_to(mlflow.make_target(settings), one).poll() for _ in range(2)] == [0.0, 0.0]
        assert [step for step, _, _ in server.metrics("resources/gpu_utilization/gpu_0")] == [1, 4, 7, 10]
        names = sorted(path.rpartition("media/")[2].rpartition("-")[0] for path in server.artifacts)
        assert names == ["rows/step-3", "said/step-3", "sample/step-2", "spread/step-3"]
        assert "Grüße".encode() in server.artifacts.values()
        server.keeps_artifacts = False
        one.put(
            [opened("b"), batch_ingested(session("b"), 1, media=[MediaItem("text", "x", 0, b"y", 1)]), finished("b")]
        )
        running = mirror_to(mlflow.make_target(settings), one)
        assert (running.poll(), running.status.rejected) == (0.0, 1)


def test_the_name_of_a_medium_leads_to_no_artifact_of_another_run(tmp_path: Path) -> None:
    settings = {"url": "", "experiment": "e", "token_file": "", "ca_file": ""}
    with MlflowServer() as server, history(tmp_path) as one:
        settings["url"] = server.url
        text = [MediaItem("text", "a/../../../../run1/./x", 0, b"y", 1)]
        one.put([opened("a"), batch_ingested(session("a"), 1, media=text)])
        assert mirror_to(mlflow.make_target(settings), one).poll() == 0.0
        (name,) = server.artifacts
    assert name.rpartition("media/")[2].startswith("a/run1/x/step-")


@pytest.mark.parametrize("status", [401, 500])
def test_an_artifact_store_that_fails_holds_up_no_other_run_and_then_has_all_media(tmp_path: Path, status: int) -> None:
    settings = {"url": "", "experiment": "e", "token_file": "", "ca_file": ""}
    with MlflowServer() as server, history(tmp_path) as one:
        settings["url"], server.artifact_error = server.url, status
        put_extras(one)
        one.put([opened("b", started=BEGIN + 1), column("b", ["x"], 3)])
        running = mirror_to(mlflow.make_target(settings), one)
        assert running.poll() > 0.0
        assert f"answered {status}" in running.status.error
        assert any(metric[0] == "x" for run in server.runs.values() for metric in run["metrics"])
        server.artifact_error = 0
        assert (running.poll(), running.status.rejected, len(server.artifacts)) == (0.0, 0, 4)


@pytest.mark.parametrize("status", [401, 500])
def test_the_end_of_a_run_waits_for_refused_media_only_for_a_time_and_the_next_start_sends_them(
    tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"url": "", "experiment": "e", "token_file": "", "ca_file": ""}
    with MlflowServer() as server, history(tmp_path) as one:
        settings["url"], server.artifact_error = server.url, status
        put_extras(one)
        one.put([finished("a")])
        running = mirror_to(mlflow.make_target(settings), one)
        assert [running.poll() > 0.0 for _ in range(2)] == [True, True]
        (run,) = server.runs.values()
        assert (run["info"]["status"], running.status.rejected) == ("RUNNING", 0)
        monkeypatch.setattr(worker, "MEDIA_SECONDS", 0.0)
        assert [running.poll() for _ in range(3)] == [0.0, 0.0, 0.0]
        assert (run["info"]["status"], running.status.rejected, running.status.error) == ("FINISHED", 4, "")
        assert "gpt (a): 4 media, for which the run's end does not wait any longer" in running.status.left_out
        assert f"answered {status}" in running.status.left_out
        server.artifact_error = 0
        assert [mirror_to(mlflow.make_target(settings), one).poll() for _ in range(2)] == [0.0, 0.0]
        assert len(server.artifacts) == 4
        requests = server.requests
        assert mirror_to(mlflow.make_target(settings), one).poll() == 0.0
        assert server.requests == requests


def test_an_artifact_store_that_does_not_answer_holds_up_no_other_run(tmp_path: Path) -> None:
    target = Recorded()

    tries: list[Row] = []

    def fail(rows: Sequence[Row]) -> None:
        if rows[0].media:
            tries.append(rows[0])
            raise SendError("no response")

    target.fails = fail
    with history(tmp_path) as one:
        put_extras(one)
        text = [MediaItem("text", "x", 0, b"y", 1)]
        one.put([opened("b", started=BEGIN + 1), column("b", ["x"], 3), batch_ingested(session("b"), 2, media=text)])
        running = mirror_to(target, one)
        assert running.poll() > 0.0
        assert [row.step for name, row in target.rows if name == "b" and "x" in row.values] == [0, 1, 2]
        assert len(tries) == 1  # one try of media, not one of each run


def test_media_that_the_client_of_wandb_refuses_are_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened_run = SimpleNamespace(entity="e", project="p", id="a", logged=[], finish=lambda **_: None)
    opened_run.define_metric = lambda *_, **__: None
    opened_run.log = lambda values, **_: opened_run.logged.append(values)

    def refuse(**_: object) -> None:
        raise ValueError("too many\nbins")

    kinds = {"Html": lambda *_, **__: "html", "Table": lambda **_: "table", "Histogram": refuse, "Image": lambda _: "i"}
    client = SimpleNamespace(init=lambda **_: opened_run, Settings=lambda **_: None, **kinds)
    settings = {"project": "p", "entity": "", "mode": "offline", "directory": str(tmp_path / "w")}
    with history(tmp_path) as one:
        put_extras(one)
        running = mirror_to(wandb.WandbClient(settings, client), one)
        assert running.poll() == 0.0
    assert {"said", "rows", "sample"} <= {key for values in opened_run.logged for key in values}
    assert running.status.rejected == 1
    assert running.status.left_out == "gpt (a): spread: ValueError: too many bins"
    mirrors_log = _Mirror("wandb", MirrorSection(), tmp_path / "history.db")
    mirrors_log.worker = SimpleNamespace(busy=True, poll=lambda _: running.status)  # type: ignore[assignment]
    for _ in range(2):
        mirrors_log.ask()
    assert [one.message for one in caplog.records if "left out" in one.message] == [
        f"bridges: wandb: left out: {running.status.left_out}"
    ]


def test_two_runs_with_ids_that_differ_in_one_character_are_two_at_wandb(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("define_metric", "finish", "log"), lambda *_, **__: None)
    ids: list[str] = []

    def init(**given: str) -> SimpleNamespace:
        ids.append(given["id"])
        return SimpleNamespace(entity="e", project="p", id=given["id"], **nothing)

    client = SimpleNamespace(init=init, Settings=lambda **_: None)
    settings = {"project": "p", "entity": "", "mode": "offline", "directory": str(tmp_path / "w")}
    with history(tmp_path) as one:
        for run in ("slurm-4711.0", "slurm-4711-0", "slurm-4711:0"):
            one.put([opened(run), column(run, ["x"], 3)])
        mirror_to(wandb.WandbClient(settings, client), one).poll()
        with closing(sqlite3.connect(one.directory / "positions.db")) as positions, positions:
            positions.execute("UPDATE run SET state = '{\"rows\":3}'")  # as a version before had it
        one.put([column("slurm-4711.0", ["x"], 3, number=2)])
        mirror_to(wandb.WandbClient(settings, client), one).poll()
    *fresh, later = ids
    assert len({*fresh}) == 3
    assert "slurm-4711-0" in fresh
    assert later == "slurm-4711-0", "the id that this run has at W&B"


def test_a_run_with_a_quote_in_its_id_is_no_other_one_at_mlflow(tmp_path: Path) -> None:
    settings = {"url": "", "experiment": "e", "token_file": "", "ca_file": ""}
    with MlflowServer() as server, history(tmp_path) as one:
        settings["url"] = server.url
        for number, run in enumerate(("victim", "vic'tim")):
            one.put([opened(run, started=BEGIN + number), column(run, ["x"], 3)])
        assert mirror_to(mlflow.make_target(settings), one).poll() == 0.0
        assert sorted(run["tags"]["trackside.run"] for run in server.runs.values()) == ["vic'tim", "victim"]
        assert [len(run["metrics"]) for run in server.runs.values()] == [3, 3]


def test_a_series_of_the_machine_that_the_history_deleted_is_sent_again_once_it_begins_anew(tmp_path: Path) -> None:
    target = Recorded(machine=True)
    with history(tmp_path) as one:
        running = mirror_to(target, one)
        one.put([MachineSample(BEGIN, {"trackside_x": 0.0})])
        running.poll()
        one.put([MachineSample(BEGIN + second, {"trackside_x": second}) for second in range(1, 5)])
        running.poll()
        one.writer.call(partial(_change, "DELETE FROM log")).result(60)
        one.put([MachineSample(BEGIN + 9.0, {"trackside_x": 9.0})])
        running.poll()
    assert [row.values["trackside_x"] for _, row in target.rows] == [1.0, 2.0, 3.0, 4.0, 9.0]


def test_a_training_with_a_clock_years_behind_costs_no_reading_of_these_years(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []

    def counted(*given: Any, **named: Any) -> Any:
        reads.append(given)
        return unsent_curves(*given, **named)

    monkeypatch.setattr(mirrors, "unsent_curves", counted)
    with history(tmp_path) as one:
        one.put([opened("a"), ingested("a", [(1, 1_000_000, {"x": 1.0}), (2, round(BEGIN * 1e6), {"x": 1.0})])])
        one.put([MachineSample(BEGIN + 2 * tick, {"trackside_host_memory_available_bytes": 1.0}) for tick in range(60)])
        target = Recorded()
        mirror_to(target, one, ending=lambda: len(reads) > 9).poll()
    assert len(reads) < 4
    assert any("resources/host_memory_available" in row.values for _, row in target.rows)


def test_mlflow_has_each_sample_once_after_every_kind_of_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_request, "PATIENCE_SECONDS", 0.3)
    settings = {"url": "", "experiment": "e", "token_file": "", "ca_file": ""}
    with MlflowServer() as server, history(tmp_path) as one:
        settings["url"] = server.url
        one.put([opened("a", name="gpt", config={"lr": 0.1, "model": {"depth": 3}}, tags=("x",))])
        for number, mode in enumerate(("ok", "500", "lose", "slow", "ok", "lose"), 1):
            pushes = [
                (s, round((BEGIN + s) * 1e6), {"loss": s / 4, "a b/ü": -s}) for s in range(9 * number, 9 * number + 9)
            ]
            one.put([ingested("a", pushes, number=number)])
            server.mode = mode
            failed = mirror_to(mlflow.make_target(settings), one).poll()
            assert bool(failed) is (mode != "ok")
        server.mode = "ok"
        server.continues.set()
        one.put([finished("a", after=100.0)])
        running = mirror_to(mlflow.make_target(settings), one)
        assert running.poll() == 0.0
        asked = server.requests
        assert running.poll() == 0.0
        assert server.requests == asked
        expected = [(s, s / 4, round((BEGIN + s) * 1000)) for s in range(9, 63)]
        assert server.metrics("loss") == expected
        assert len(server.metrics("a b/_")) == len(expected)
        (run,) = server.runs.values()
        assert run["params"] == {"lr": "0.1", "model.depth": "3"}
        assert (run["info"]["run_name"], run["info"]["status"], run["tags"]["trackside.run"]) == (
            "gpt",
            "FINISHED",
            "a",
        )
        (back,) = find_runs(server.url, {})
        assert sum(len(getattr(item, "keys", ())) for item in back.items()) == 2 * len(expected)
        assert (back.name, back.state, back.config["lr"]) == ("gpt", "finished", 0.1)


def test_otlp_requests_have_the_names_labels_and_values_of_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    posted: list[bytes] = []
    monkeypatch.setattr(http_request, "post", lambda *arguments: posted.append(arguments[1]))
    target = otlp.make_target({"url": "http://127.0.0.1:9/v1/metrics", "headers_file": "", "ca_file": ""})
    values = {"loss": 2.5, "lr": 0.1, "tokens": 100.0, "eval/bleu": 31.0}
    with history(tmp_path) as one:
        one.put([MachineSample(BEGIN - 5, {"trackside_load1": 1.0})])  # before the first start of the mirror
        running = mirror_to(target, one)
        running.poll()
        pushes = [(step, round((BEGIN + step) * 1e6), values) for step in (1, 2)]
        power = 'trackside_gpu_power_watts{gpu="0",uuid="GPU-\\"1"}'
        one.put([opened("a", name="gpt", rank=3), ingested("a", pushes, rank=3), MachineSample(BEGIN, {power: 300.0})])
        running.poll()
    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = {}
    for body in posted:
        for metric in ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0].metrics:
            assert metric.HasField("sum") is metric.name.endswith("_total")
            for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points:
                labels = tuple((one.key, one.value.string_value) for one in point.attributes)
                series.setdefault((metric.name, labels), []).append((point.time_unix_nano / 1e9, point.as_double))
    rank = (("run", "gpt"), ("rank", "3"))
    times = (BEGIN + 1, BEGIN + 2)
    assert series == {
        ("trackside_gpu_power_watts", (("gpu", "0"), ("uuid", 'GPU-"1'))): [(BEGIN, 300.0)],
        ("trackside_training_step", rank): [(times[0], 1.0), (times[1], 2.0)],
        ("trackside_training_loss", rank): [(at, 2.5) for at in times],
        ("trackside_training_learning_rate", rank): [(at, 0.1) for at in times],
        ("trackside_training_tokens_total", rank): [(times[0], 100.0), (times[1], 200.0)],
        ("trackside_training_value", (*rank, ("key", "eval/bleu"))): [(at, 31.0) for at in times],
    }


class OtlpServer(ThreadingHTTPServer):
    """A server for OTLP, on a free port, which keeps what it accepts, and can fail.

    Attributes:
        mode: ``ok``, ``500``, ``lose`` (it keeps the request, and closes the connection) or ``slow`` (it keeps the
            request, and answers when *continues* is set).
        bodies: The requests that it has kept.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _OtlpHandler)
        self.mode, self.bodies, self.continues = "ok", list[bytes](), Event()


class _OtlpHandler(BaseHTTPRequestHandler):
    server: OtlpServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.mode == "500":
            self.send_error(500)
            return
        self.server.bodies.append(body)
        if self.server.mode == "lose":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if self.server.mode == "slow":
            self.server.continues.wait(DEADLINE)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def test_otlp_has_each_sample_after_every_kind_of_failure_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    monkeypatch.setattr(http_request, "PATIENCE_SECONDS", 0.3)
    with OtlpServer() as server, history(tmp_path) as one:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1/metrics"
        one.put([opened("a", name="gpt")])
        for number, mode in enumerate(("ok", "500", "lose", "slow", "ok"), 1):
            pushes = [(s, round((BEGIN + s) * 1e6), {"loss": s / 4}) for s in range(9 * number, 9 * number + 9)]
            one.put([ingested("a", pushes, number=number)])
            server.mode = mode
            target = otlp.make_target({"url": url, "headers_file": "", "ca_file": ""})
            assert bool(mirror_to(target, one).poll()) is (mode != "ok")
        server.continues.set()
        server.shutdown()
        serving.join()
    points = [
        (point.time_unix_nano / 1e9, point.as_double)
        for body in server.bodies
        for metric in ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics[0].metrics
        for point in metric.gauge.data_points
        if metric.name == "trackside_training_loss"
    ]
    # What a failed request had brought comes again, at the same time: the same point of the series.
    assert len(points) > 45
    assert sorted(set(points)) == [(BEGIN + s, s / 4) for s in range(9, 54)]


def test_workers_mirror_are_restarted_when_they_die_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tb"
    monkeypatch.setattr(MirrorSection, "interval", 0.1)
    sections = BridgesSection.model_validate({"tensorboard": {"directory": str(place)}}).configured()
    with history(tmp_path) as one:
        running = Mirrors(sections, one.database.path)
        running.start()
        now = time.time()
        one.put([opened("a", started=now), *(ingested("a", [(1, round(now * 1e6), {"loss": 1.0})]),)])
        eventually(lambda: _value(running, daemon.BRIDGE_SAMPLES) == 1.0)
        (mirror,) = running.mirrors
        assert mirror.worker.pid is not None
        os.kill(mirror.worker.pid, signal.SIGKILL)
        one.put([ingested("a", [(2, round(now * 1e6), {"loss": 2.0})], number=2)])
        eventually(lambda: len(scalars(place)) == 2)
        eventually(lambda: _value(running, daemon.BRIDGE_SAMPLES) == 2.0)
        one.put([ingested("a", [(3, round(now * 1e6), {"loss": 3.0})], number=3)])
        running.stop()
    assert [step for _, step, _, _ in scalars(place)] == [1, 2, 3]
    assert _value(running, daemon.BRIDGE_FAILURES) == 0.0


def test_a_worker_that_does_not_start_has_a_lag(tmp_path: Path) -> None:
    sections = BridgesSection.model_validate({"parquet": {"url": "zz://nowhere"}}).configured()
    running = Mirrors(sections, tmp_path / "history.db")
    (worker,) = running.mirrors
    while not worker.error:
        worker.ask()
    assert _value(running, daemon.BRIDGE_LAG) > 0.0
    worker.close()


def test_a_mirror_that_fails_in_an_unexpected_way_ends_its_worker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    worker._run(SimpleNamespace(poll=lambda: os.environ["NO SUCH"]), None, 0.1, Event())  # type: ignore[arg-type]
    assert (ends, capsys.readouterr().err) == ([1], "KeyError: 'NO SUCH'\n")


def test_positions_that_another_process_has_locked_are_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "positions.db"
    Positions(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            Positions(path)
    assert path.exists()


def test_positions_and_what_sqlite_has_beside_them_are_for_this_user_alone(tmp_path: Path) -> None:
    old = tmp_path / "positions.db-wal"
    old.touch()
    old.chmod(0o644)
    positions = Positions(tmp_path / "positions.db")
    positions.finish("a", {}, "x")
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        ("positions.db", "positions.db-wal", "positions.db-shm"), 0o600
    )
    positions.close()


def _change(statement: str, store: RecordStore) -> None:
    store.connection.execute(statement)


def _value(running: Mirrors, metric: object) -> float:
    (value,) = [sample.value for sample in running.batch().samples if sample.metric is metric]
    assert isinstance(value, float)
    return value


def test_without_its_library_the_archive_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("trackside_daemon.bridges.parquet.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(SettingError, match=r"numpy is not installed; pip install 'trackside\[arrow\]'"):
        make_target("parquet", {"url": "runs"})
