"""Runs of other tools in directories and files: recognised, imported, and not imported twice."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from shutil import copy
from typing import TYPE_CHECKING, Any

import pytest
from bridges.directories import BEGIN, events, file_name
from histories import history

from trackside_daemon.bridges.file_runs import table
from trackside_daemon.bridges.finding import find_runs
from trackside_daemon.bridges.foreign_run import ForeignRunError
from trackside_daemon.bridges.mirrors.target import MirroredRun, Row
from trackside_daemon.bridges.mlflow.rest_client import RestClient
from trackside_daemon.bridges.tensorboard.mirror import EventFiles
from trackside_daemon.history.files.importing import import_run
from trackside_daemon.history.files.items import Push, RunEntry
from trackside_daemon.history.files.run_file import RunFile
from trackside_daemon.history.read import reader
from trackside_daemon.http_client.errors import SendError

if TYPE_CHECKING:
    from trackside_daemon.bridges.foreign_run import ForeignRun

FILES = Path(__file__).parent / "files"


def found(place: Path) -> dict[str, list[ForeignRun]]:
    runs: dict[str, list[ForeignRun]] = {}
    for run in find_runs(str(place), {}):
        runs.setdefault(run.name, []).append(run)
    return runs


def samples(run: ForeignRun) -> list[tuple[int, int, str, float]]:
    """Return attempt, step, key and value of all samples."""
    pushes = [item for item in run.items() if isinstance(item, Push)]
    return [(p.attempt, p.step, key, value) for p in pushes for key, value in zip(p.keys, p.values, strict=True)]


def header(run: ForeignRun) -> dict[str, Any]:
    *_, last = run.items()
    assert isinstance(last, RunEntry)
    return dict(last.fields)


def test_directories_of_tensorboard_are_runs_and_those_of_one_writer_in_another_belong_together(tmp_path: Path) -> None:
    events(tmp_path / "exp1" / file_name(), range(3))
    events(tmp_path / "exp1" / "loss_a" / file_name(), range(2))  # of add_scalars
    events(tmp_path / "exp1" / "1700000001.25" / file_name(), range(1), "accuracy")  # of add_hparams
    events(tmp_path / "exp1" / "other" / file_name(pid=8), range(4))
    events(tmp_path / "keras" / "train" / file_name(), range(2))
    events(tmp_path / "keras" / "validation" / file_name(), range(2))
    runs = found(tmp_path)
    assert sorted(runs) == ["exp1", "exp1/other", "keras"]
    assert {key for _, _, key, _ in samples(runs["exp1"][0])} == {"loss", "loss_a/loss", "accuracy"}
    assert {key for _, _, key, _ in samples(runs["keras"][0])} == {"train/loss", "validation/loss"}
    (alone,) = find_runs(str(tmp_path / "exp1" / "other"), {})
    assert (alone.name, alone.id) == ("other", runs["exp1/other"][0].id)


def test_steps_that_begin_again_are_the_next_attempt(tmp_path: Path) -> None:
    events(tmp_path / "run" / file_name(BEGIN), range(10))
    events(tmp_path / "run" / file_name(BEGIN + 100), range(6, 12), at=BEGIN + 100)
    events(tmp_path / "run" / file_name(BEGIN + 200), range(12, 14), at=BEGIN + 200)
    (run,) = find_runs(str(tmp_path / "run"), {})
    assert [(attempt, step) for attempt, step, _, _ in samples(run)] == [
        *((0, step) for step in range(10)),
        *((1, step) for step in range(6, 14)),
    ]
    assert [one["state"] for one in header(find_runs(str(tmp_path / "run"), {})[0])["attempt_list"]] == [
        "stopped",
        "finished",
    ]


def test_files_of_workers_at_the_same_time_are_read_by_time_as_one_attempt(tmp_path: Path) -> None:
    events(tmp_path / "run" / file_name(BEGIN, 1), range(0, 20, 2))
    events(tmp_path / "run" / file_name(BEGIN + 1, 2), range(1, 20, 2))
    events(tmp_path / "run" / file_name(BEGIN + 2, 3), range(4, 9))  # the same steps
    events(tmp_path / "run" / file_name(BEGIN + 90, 1), range(10, 14, 2), at=BEGIN + 90)
    events(tmp_path / "run" / file_name(BEGIN + 91, 2), range(11, 14, 2), at=BEGIN + 90)
    (run,) = find_runs(str(tmp_path / "run"), {})
    found = [(attempt, step) for attempt, step, _, _ in samples(run)]
    assert found == sorted([(0, step) for step in (*range(20), *range(4, 9))]) + [(1, step) for step in range(10, 14)]


def test_names_that_are_not_utf8_and_control_characters_come_with_replacements(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/x\xff\ny"
    strange = Path(os.fsdecode(place))
    events(strange / "tb" / file_name(), range(3))
    events(strange / "tb" / os.fsdecode(b"a\xfe\x1b") / file_name(), range(3))
    mlflow_store(strange)
    run = strange / "mlruns" / "1" / "0123abcd"
    for name in ("metrics", "params", "tags"):
        (run / name / os.fsdecode(b"k\xff")).write_text(f"{BEGIN}000 5 0\n")
    (run / "meta.yaml").write_bytes(b"run_id: 0123abcd\nrun_name: ml\xff\n")
    trackio_database(strange / os.fsdecode(b"t\xff.db"))
    (strange / os.fsdecode(b"c\xff")).mkdir()
    (strange / os.fsdecode(b"c\xff") / "metrics.csv").write_bytes(b"step,l\xff,ok\n0,1,2\n")
    (strange / os.fsdecode(b"h\xff")).mkdir()
    (strange / os.fsdecode(b"h\xff") / "trainer_state.json").write_bytes(b'[{"step": 1, "l\xff": 2, "\\ud800": 3}]')
    copy(FILES / "plain.wandb", strange / os.fsdecode(b"run-w\xff.wandb"))
    with history(tmp_path / "history") as one:
        for found in find_runs(str(tmp_path), {}):
            result = import_run(one.writer, RunFile(found.items(), found.place, id=found.id, name=found.name))
            assert result.samples
        with one.database.reading() as connection:
            runs = {run["name"]: run for run in map(partial(reader.run, connection), ids(connection))}
    assert sorted(runs) == ["brave-cat", "ml\ufffd", "w?", "x?\ny/c?", "x?\ny/h?", "x?\ny/tb"]
    keys = {name: {metric["key"] for metric in run["metrics"]} for name, run in runs.items()}
    assert keys["ml\ufffd"] == {"k?", "loss", "eval/acc"}
    assert keys["x?\ny/tb"] == {"loss", "a?\x1b/loss"}
    assert keys["x?\ny/c?"] == {"l\ufffd", "ok"}
    assert keys["x?\ny/h?"] == {"l\ufffd", "?"}


def ids(connection: sqlite3.Connection) -> list[str]:
    return [run["id"] for run in reader.runs(connection)]


def test_a_mirror_of_trackside_is_not_followed_as_a_run_of_its_own(tmp_path: Path) -> None:
    target = EventFiles(tmp_path)
    run = MirroredRun("abc", "gpt", "running", (), 0.0, None, "", {}, {})
    target.send(run, [Row(0, 0, True, 1, BEGIN * 10**6, {"loss": 1.0})], target.begin(run, {}))
    (mirrored,) = find_runs(str(tmp_path), {})
    assert list(mirrored.read()) == []
    (path,) = tmp_path.glob("gpt-abc/*tfevents*")
    assert samples(find_runs(str(path), {})[0]) == [(0, 1, "loss", 1.0)]


def mlflow_store(place: Path) -> None:
    directory = place / "mlruns" / "1" / "0123abcd"
    for name, text in {
        "meta.yaml": "run_id: 0123abcd\nrun_name: ml\nstatus: 4\nuser_id: ann\n",
        "metrics/loss": f"{BEGIN}000 1.5 0\n{BEGIN}500 nan 1\nbroken\n",
        "metrics/eval/acc": f"{BEGIN}500 0.5 1\n",
        "params/lr": "0.1",
        "params/act": "gelu",
        "tags/team": "x",
        "tags/mlflow.source.name": "train.py",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def mlflow_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE experiments (experiment_id, name);
            CREATE TABLE runs (run_uuid, name, status, user_id, lifecycle_stage, start_time);
            CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan);
            CREATE TABLE params (key, value, run_uuid);
            CREATE TABLE tags (key, value, run_uuid);
            INSERT INTO runs VALUES ('r1', 'sql', 'FINISHED', 'ann', 'active', 1), ('r2', 'gone', 'FAILED', '', 'deleted', 2);
            INSERT INTO metrics VALUES ('loss', 0.5, 1700000001000, 'r1', 1, 0), ('loss', 1.7976931348623157e308, 1700000002000,
                'r1', 2, 0), ('loss', 0, 1700000000000, 'r1', 0, 1), ('loss', 3, 'now', 'r1', 'x', 0);
            INSERT INTO params VALUES ('lr', '0.1', 'r1');
            """
        )


def trackio_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id, timestamp, run_name, step INTEGER, metrics);
            CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id, run_name, config);
            INSERT INTO configs VALUES (1, 'u1', 'brave-cat', '{"lr": 0.1, "_Group": null}');
            INSERT INTO metrics VALUES (1, 'u1', '2023-11-14T22:13:20+00:00', 'brave-cat', 0, '{"loss": 2, "m": {"a": 1.5}}'),
                (2, 'u1', '2023-11-14T22:13:21', 'brave-cat', 1, '{"loss": "NaN", "words": "x"}'), (3, 'u1', 'never', 'brave-cat', 2, '{"loss": 1}');
            """
        )


TRAINER = {
    "global_step": 20,
    "max_steps": 20,
    "log_history": [
        {"epoch": 0.5, "loss": 2.5, "learning_rate": 1e-4, "step": 10},
        {"epoch": 1.0, "eval_loss": 2.25, "step": 10},
        {"epoch": 1.0, "loss": 2.0, "step": 20},
        {"train_runtime": 3},
    ],
}


def test_stores_of_mlflow_and_trackio_are_read(tmp_path: Path) -> None:
    mlflow_store(tmp_path)
    mlflow_database(tmp_path / "mlflow.db")
    trackio_database(tmp_path / "project.db")
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE x (y)")
    runs = {name: one for name, (one,) in found(tmp_path).items()}
    assert sorted(runs) == ["brave-cat", "ml", "sql"]
    assert repr(samples(runs["ml"])) == repr(
        [(0, 0, "loss", 1.5), (0, 1, "loss", float("nan")), (0, 1, "eval/acc", 0.5)]
    )
    about = header(runs["ml"])
    assert about["tags"] == ["team=x"]
    (attempt,) = about["attempt_list"]
    assert (attempt["state"], attempt["user"], attempt["command"]) == ("failed", "ann", "train.py")
    assert attempt["config"] == {"lr": 0.1, "act": "gelu"}
    assert any("1 damaged line: " in note for note in runs["ml"].notes())
    assert repr([value for *_, value in samples(runs["sql"])]) == "[nan, 0.5, inf]"
    assert repr(samples(runs["brave-cat"])) == repr(
        [(0, 0, "loss", 2.0), (0, 0, "m.a", 1.5), (0, 1, "loss", float("nan"))]
    )
    assert len(runs["brave-cat"].notes()) == 2
    assert header(runs["brave-cat"])["attempt_list"][0]["config"] == {"lr": 0.1}
    with pytest.raises(ForeignRunError, match="neither of MLflow nor of trackio"):
        find_runs(str(tmp_path / "other.db"), {})


def test_states_of_a_trainer_tables_and_lightnings_csv_are_read(tmp_path: Path) -> None:
    for step in (10, 20):
        (tmp_path / "out" / f"checkpoint-{step}").mkdir(parents=True)
        state = {**TRAINER, "log_history": TRAINER["log_history"][: step // 5 - 1]}  # type: ignore[index]
        (tmp_path / "out" / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps(state))
    (tmp_path / "version_0").mkdir()
    (tmp_path / "version_0" / "metrics.csv").write_text("epoch,grad,lr,step,train_loss\n0,1,0.1,9,2.5\n0,,,19,2.25\n")
    (tmp_path / "version_0" / "hparams.yaml").write_text("depth: 3\n")
    runs = {name: one for name, (one,) in found(tmp_path).items()}
    assert sorted(runs) == ["out/checkpoint-20", "version_0"]
    assert [(step, key) for _, step, key, _ in samples(runs["out/checkpoint-20"])] == [
        *((10, key) for key in ("epoch", "loss", "learning_rate", "epoch", "eval_loss")),
        *((20, key) for key in ("epoch", "loss")),
    ]
    assert samples(runs["version_0"])[-1] == (0, 19, "train_loss", 2.25)
    assert header(runs["version_0"])["attempt_list"][0]["config"] == {"depth": 3}
    (tmp_path / "version_0" / "hparams.yaml").write_text("a: &a [1]\nb: [*a, *a]\n")
    assert header(find_runs(str(tmp_path / "version_0"), {})[0])["attempt_list"][0]["config"] is None
    rows: list[dict[str, Any]] = [
        {"_step": 0, "_timestamp": BEGIN, "loss": 2.0},
        {"_step": 1, "_timestamp": BEGIN + 1, "loss": None, "x": 1},
    ]
    columns = {
        key: {str(at): row.get(key) for at, row in enumerate(rows)} for key in ("_step", "_timestamp", "loss", "x")
    }
    for name, document in (("rows.json", rows), ("columns.json", columns)):
        (tmp_path / name).write_text(json.dumps(document))
        (run,) = find_runs(str(tmp_path / name), {})
        assert samples(run) == [(0, 0, "loss", 2.0), (0, 1, "x", 1.0)]


def test_an_imported_run_has_its_samples_and_its_header_and_is_imported_once(tmp_path: Path) -> None:
    copy(FILES / "torch-hparams.tfevents", tmp_path / file_name())
    events(tmp_path / file_name(BEGIN + 1), range(600))
    (run,) = find_runs(str(tmp_path), {})
    with history(tmp_path / "history") as one:
        result = import_run(one.writer, RunFile(run.items(), run.place, id=run.id, name="baseline"))
        with one.database.reading() as connection:
            stored = reader.run(connection, run.id)
    assert result.samples == len(samples(find_runs(str(tmp_path), {})[0]))
    (attempt,) = stored["attempt_list"]
    assert attempt["config"] == {"lr": 0.1, "act": "gelu", "on": True}
    assert (stored["name"], stored["state"], stored["cause"]) == ("baseline", "finished", "imported from TensorBoard")
    (loss,) = [metric for metric in stored["metrics"] if metric["key"] == "loss"]
    assert (loss["count"], loss["last"], loss["last_step"], loss["last_time"]) == (600, 299.5, 599, BEGIN + 599.0)


def test_a_damaged_page_of_a_database_costs_what_comes_after_it_and_no_other_key(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    mlflow_database(path)
    with sqlite3.connect(path) as connection:
        for key in ("a", "b"):
            rows = [(key, float(step), BEGIN * 1000 + step, "r1", step, 0) for step in range(2000)]
            connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.execute("CREATE TABLE latest_metrics AS SELECT DISTINCT key, run_uuid FROM metrics")
        connection.execute("CREATE INDEX covering ON metrics (key, timestamp, step, run_uuid, value, is_nan)")
        connection.execute("INSERT INTO metrics VALUES ('loss', 'high', 1700000003000, 'r1', 3, 0)")
    connection.close()
    data = bytearray(path.read_bytes())
    leaves = [at for at in range(0, len(data), 4096) if data[at] == 10]  # of the index
    data[leaves[5] : leaves[5] + 8] = b"\xff" * 8
    path.write_bytes(data)
    (run,) = find_runs(str(path), {})
    counts = Counter(key for _, _, key, _ in samples(run))
    assert (counts["b"], counts["loss"]) == (2000, 3)
    assert 0 < counts["a"] < 2000
    notes = run.notes()
    assert notes[0].startswith(
        "left out: 2 damaged parts of the database, with all that follows: r1 (database disk image"
    )
    assert "left out: 2 damaged rows: loss" in notes


def test_the_columns_of_a_json_table_take_no_more_memory_than_its_cells() -> None:
    columns = {f"c{column}": {str(column * 300 + row): 1.0 for row in range(300)} for column in range(300)}
    rows = table(columns)
    assert rows is not None
    assert sum(map(len, rows)) == 300 * 300


def test_a_damaged_row_of_a_json_table_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    text = json.dumps({**TRAINER, "log_history": [{"step": step, "loss": step / 2} for step in range(9)]}, indent=2)
    for damaged, steps in (
        (text.replace('"step": 4', '"step": x4'), [0, 1, 2, 3, 5, 6, 7, 8]),
        (text.partition('"loss": 3.0')[0], [0, 1, 2, 3, 4, 5]),
    ):
        path.write_text(damaged)
        (run,) = find_runs(str(path), {})
        assert [step for _, step, _, _ in samples(run)] == steps
        assert run.notes()[0].startswith("left out: 1 damaged part of the document: ")


def test_keys_of_a_json_table_that_differ_by_their_case_alone_are_all_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"Step": 1, "Time": 1.7e9, "Loss": 1.0, "loss": 2.0}]))
    assert samples(find_runs(str(path), {})[0]) == [(0, 1, "Loss", 1.0), (0, 1, "loss", 2.0)]


def test_hostile_files_cost_only_themselves(tmp_path: Path) -> None:
    for name in ("metrics.csv", "x.db", "trainer_state.json"):
        os.mkfifo(tmp_path / name)  # reading it would wait
    store = tmp_path / "store"
    (store / "metrics").mkdir(parents=True)
    bomb = "\n".join([f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 20)])
    (store / "meta.yaml").write_text(f"a0: &a0 x\n{bomb}\nrun_id: *a19\n")
    with pytest.raises(ForeignRunError, match="has aliases"):
        find_runs(str(store), {})
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([{"step": 1, "time": 10**400, "loss": 1.0}]))
    assert [value for *_, value in samples(find_runs(str(rows), {})[0])] == [1.0]
    (store / "meta.yaml").unlink()
    with pytest.raises(ForeignRunError, match="no runs"):
        find_runs(str(tmp_path), {})


def test_a_broken_run_costs_only_itself_and_is_reported(tmp_path: Path) -> None:
    mlflow_store(tmp_path)
    broken = tmp_path / "mlruns" / "1" / "broken" / "meta.yaml"
    (broken.parent / "metrics").mkdir(parents=True)
    broken.write_text("run_id: [")
    reported: list[str] = []
    assert [run.name for run in find_runs(str(tmp_path), {}, reported.append)] == ["ml"]
    assert [line.partition(": ")[0] for line in reported] == [str(broken)]


def test_a_server_that_repeats_a_page_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    page = {"metrics": [{"value": 1.0, "step": 3, "timestamp": 5}], "next_page_token": "x"}
    monkeypatch.setattr(RestClient, "_request", lambda *_: page)
    client = RestClient("http://127.0.0.1:1", {})
    with pytest.raises(SendError, match="the same page again"):
        list(client.get_pages("metrics/get-history", "metrics"))
    with pytest.raises(SendError, match="the same page again"):
        list(client.pages("runs/search", "runs", {}))


def test_a_directory_without_runs_reports_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(ForeignRunError, match="there are no runs in this directory; these are read: event files"):
        find_runs(str(tmp_path), {})
    assert find_runs(str(tmp_path / "notes.txt"), {}) == []
    (tmp_path / "empty" / file_name()).parent.mkdir()
    (tmp_path / "empty" / file_name()).write_bytes(b"")
    with pytest.raises(ForeignRunError, match="it has no scalars"):
        list(find_runs(str(tmp_path / "empty"), {})[0].items())
