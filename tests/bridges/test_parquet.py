"""Runs as Parquet files: every sample, complete or not there, once; on a disk and on a server with S3's API."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bridges.archives import answer, files, path_of, write
from histories import BEGIN, column, finished, history, ingested, opened
from history.builders import bits

import trackside
from trackside_daemon.bridges.mirrors.positions import Positions
from trackside_daemon.bridges.mirrors.worker import RunMirror
from trackside_daemon.bridges.parquet import layout
from trackside_daemon.bridges.parquet.fleet import QUESTIONS, ask, prepared
from trackside_daemon.bridges.parquet.layout import schemas
from trackside_daemon.bridges.parquet.mirror import make_target
from trackside_daemon.bridges.parquet.store import UNFINISHED, FileStore
from trackside_daemon.bridges.parquet.verification import Verification
from trackside_daemon.http_client.errors import SendError, SettingError
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from histories import History

BASE = round(BEGIN * 1e6)
ODD = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1, 1 / 3]
HOSTILE = "../../etc/a=b'\n"


def fill(made: History) -> None:
    """Write a run with odd values and fresh samples, one with a hostile name, and one that lives."""
    made.put([opened("odd", name="gpt", config={"lr": 0.1}, rank=rank) for rank in (0, 1)])
    made.put([ingested("odd", [(step, BASE + step, {"loss": ODD[step % 7]}) for step in range(70)], rank=1)])
    made.put([column("odd", ["loss", "lr"], 9000)])
    made.wait_until_packed()
    made.put([ingested("odd", [(9000, BASE * 2, {"loss": 3.5})], number=2), finished("odd", after=9000.0)])
    made.put([Alert("LossSpike", "warning", BEGIN + 5, "odd", {"rank": "0"}, "a spike", "")])
    made.put(
        [opened("evil", name=HOSTILE), column("evil", [HOSTILE], 10), finished("evil", state="failed", cause="SIGKILL")]
    )
    made.put([opened("live"), column("live", ["loss"], 10)])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parquet")
    with history(path) as made:
        fill(made)
    return path


def test_files_have_every_sample_and_a_second_export_changes_nothing(directory: Path, tmp_path: Path) -> None:
    assert write(directory, str(tmp_path)) == {"odd": 9001 + 9000 + 70, "evil": 10}
    written = files(tmp_path)
    assert sorted(re.sub("-[0-9a-f]{8}[.]1[.]", "-#.", name) for name in written) == sorted(
        f"{kind}/date=2023-11-14/name={name}@node-1-#.parquet"
        for kind, name in (
            ("runs", "gpt/odd"),
            ("samples", "gpt/odd"),
            ("alerts", "gpt/odd"),
            ("runs", "..%2F..%2Fetc%2Fa%3Db%27%0A/evil"),
            ("samples", "..%2F..%2Fetc%2Fa%3Db%27%0A/evil"),
        )
    )
    table = pq.ParquetFile(path_of(tmp_path, "samples", "odd")).read()
    for one in trackside.open("odd", path=directory).series():
        mask = pa.compute.and_(pa.compute.equal(table["rank"], one.rank), pa.compute.equal(table["key"], one.key))
        rows = table.filter(mask)
        assert rows["step"].to_pylist() == list(one.steps)
        assert rows["time"].cast("int64").to_pylist() == list(one.times_us)
        assert bits(rows["value"].to_pylist()) == bits(one.values)
    assert write(directory, str(tmp_path)) == {"odd": None, "evil": None}
    assert files(tmp_path) == written


def test_a_row_has_the_facts_of_the_run(directory: Path, tmp_path: Path) -> None:
    write(directory, str(tmp_path))
    (row,) = pq.ParquetFile(path_of(tmp_path, "runs", "odd")).read().to_pylist()
    assert (row["run"], row["name"], row["state"], row["attempts"], row["ranks"], row["version"]) == (
        "odd",
        "gpt",
        "finished",
        1,
        2,
        1,
    )
    assert (row["config"], row["loss"], row["git_commit"]) == ('{"lr": 0.1}', 3.5, "0123abc")
    assert sum(seconds for _, seconds in row["ledger"]) == pytest.approx(row["wall_seconds"], rel=0.01)
    assert 0 <= row["lost_gpu_hours"] <= row["gpu_hours"] == pytest.approx(row["wall_seconds"] * 2 / 3600)


def test_a_run_that_continues_is_written_again(tmp_path: Path) -> None:
    with history(tmp_path / "history") as made:
        made.put([opened("a"), column("a", ["loss"], 10), finished("a")])
        positions = Positions(tmp_path / "positions.db")
        positions.since = 0.0
        mirror = RunMirror(made.database.path, positions, make_target({"url": str(tmp_path / "out")}))
        assert (mirror.poll(), mirror.status.sent) == (0.0, 10)
        assert (mirror.poll(), mirror.status.sent) == (0.0, 10)
        made.put([opened("a", attempt=1), column("a", ["loss"], 5, attempt=1)])
        assert (mirror.poll(), mirror.status.sent) == (0.0, 10)
        made.put([finished("a", attempt=1, state="failed")])
        assert (mirror.poll(), mirror.status.sent) == (0.0, 25)
        (path,) = (tmp_path / "out" / "samples").rglob("*.parquet")
        assert len(pq.ParquetFile(path).read()) == 15
        (tmp_path / "out" / "runs").rename(tmp_path / "elsewhere")
        (tmp_path / "out" / "runs").write_text("no directory")
        made.put([opened("a", attempt=2), finished("a", attempt=2)])
        assert mirror.poll() > 0
        assert "out/runs" in mirror.status.error


def failing(*_: Any) -> Iterator[Any]:
    """Fail after the first samples, as a full disk does."""
    schema = schemas()["samples"]
    row = {"run": "odd", "attempt": 0, "rank": 0, "key": "loss", "step": 0, "time": 0, "value": 0.0}
    yield pa.Table.from_pylist([row] * 1000, schema=schema)
    raise OSError(28, "No space left on device")


def test_a_failure_half_way_leaves_no_file(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_target({"url": str(tmp_path)})
    with monkeypatch.context() as patch:
        patch.setattr("trackside_daemon.bridges.parquet.contents.SampleTables.__iter__", failing)
        with pytest.raises(SendError, match="No space left"):
            write(directory, "", target)
    assert files(tmp_path) == {}
    assert write(directory, "", target)["odd"]


def test_a_bucket_has_the_same_and_a_server_that_fails_leaves_no_run(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: Callable[[int, int], int]
) -> None:
    moto = pytest.importorskip("moto.server", reason="make soak installs a server with S3's API")
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = f"region=us-east-1&scheme=http&endpoint_override={host}:{port}&allow_bucket_creation=true"
    FileStore(f"s3://bucket?{options}").files.create_dir("bucket")
    url = f"s3://bucket/some/prefix?{options}"
    try:
        assert write(directory, url) == {"odd": 18071, "evil": 10}
        assert write(directory, url) == {"odd": None, "evil": None}
        write(directory, str(tmp_path))
        for sql in (
            prepared("worst 20 runs by lost GPU hours"),
            "SELECT run, key, sum(step) FROM samples GROUP BY ALL ORDER BY ALL",
        ):
            found = ask(FileStore(url), sql)
            assert found == ask(FileStore(str(tmp_path)), sql)
            assert len(found.rows) >= 2
        (whole, broken) = FileStore(url).files_below("samples")
        assert [*Verification(FileStore(url)).faults()] == []
        with FileStore(url).files.open_output_stream(f"bucket/some/prefix/{broken.name}") as stream:
            stream.write(b"PAR1")
        with FileStore(url).files.open_output_stream(f"bucket/some/prefix/{UNFINISHED}/1-1-00+dead.parquet") as stream:
            stream.write(b"PAR1")
        found = ask(FileStore(url), "SELECT run, count(*) FROM samples GROUP BY run")
        assert [row[0] for row in found.rows] == [layout.split(layout.place_of(whole.name)).run]
        assert [line.partition(" ")[0] for line in found.left_out] == [f"bucket/some/prefix/{broken.name}"]
        assert [line.partition(" ")[0] for line in Verification(FileStore(url)).faults()] == [
            f"bucket/some/prefix/{broken.name}"
        ]
        with monkeypatch.context() as patch:
            patch.setattr("trackside_daemon.bridges.parquet.store.ABANDONED_SECONDS", -60.0)
            assert len([*Verification(FileStore(url)).faults()]) == 2
            again = layout.split(layout.place_of(broken.name)).run
            assert [run for run, count in write(directory, url).items() if count is not None] == [again]
        assert [*Verification(FileStore(url)).faults()] == []
        other = url.replace("prefix", "other")
        with monkeypatch.context() as patch:
            patch.setattr("trackside_daemon.bridges.parquet.contents.SampleTables.__iter__", failing)
            with pytest.raises(SendError, match="bucket/some/other/"):
                write(directory, other)
        with pytest.raises(LookupError, match="no archived runs"):
            ask(FileStore(other), "SELECT * FROM runs, samples")
        for _ in range(count(0, 1)):  # the store retries for a quarter of a minute
            server.stop()
            with pytest.raises(SendError, match="bucket/some/other/"):
                write(directory, other)
    finally:
        server.stop()


def test_prepared_questions_have_answers(directory: Path, tmp_path: Path) -> None:
    write(directory, str(tmp_path))
    store = FileStore(str(tmp_path))
    answers = {question: ask(store, prepared(question)) for question in QUESTIONS}
    assert all(found.columns and found.rows for question, found in answers.items())
    assert [row[:2] for row in answers["failed runs by cause"].rows] == [("SIGKILL", 1)]
    assert answers["alerts by name"].rows == [("LossSpike", "warning", 1, 1)]
    assert len(ask(store, prepared("Worst 1 runs  by lost gpu hours")).rows) == 1
    with pytest.raises(LookupError, match="no prepared question; write one of: worst 20"):
        prepared("who is best")
    with pytest.raises(ValueError, match="nowhere"):
        ask(store, "SELECT * FROM nowhere")
    with pytest.raises(LookupError, match="no archived runs"):
        ask(FileStore(str(tmp_path / "none")), "SELECT * FROM runs")
    with pytest.raises(SettingError, match="Parquet files: Unrecognized filesystem type in URI: zz://…@x"):
        FileStore("zz://key:secret@x")


def test_a_benchmark_is_no_run_that_lost_gpu_hours(tmp_path: Path) -> None:
    with history(tmp_path / "history") as made:
        for run, tags in (("train", ()), ("bench", ("benchmark",))):
            made.put([opened(run, tags=tags), column(run, ["loss"], 10), finished(run)])
    write(tmp_path / "history", str(tmp_path))
    worst = answer(tmp_path, prepared("worst 20 runs by lost GPU hours"))
    assert [row[0] for row in worst] == ["train"]
