"""Archives that several processes and machines write and read: whole, once, whatever a run is called and whatever is broken."""

from __future__ import annotations

import errno
import os
import random
import sys
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bridges.archives import KINDS, answer, as_before, files, path_of, write
from fork_server import ForkedProcess
from histories import BEGIN, column, finished, history, ingested, opened
from processes import DEADLINE, clean_environ

from trackside_daemon.bridges.mirrors.positions import Positions
from trackside_daemon.bridges.mirrors.worker import RunMirror
from trackside_daemon.bridges.parquet import contents
from trackside_daemon.bridges.parquet import mirror as parquet
from trackside_daemon.bridges.parquet import store as stores
from trackside_daemon.bridges.parquet.fleet import ask, prepared
from trackside_daemon.bridges.parquet.mirror import make_target
from trackside_daemon.bridges.parquet.store import UNFINISHED, FileStore
from trackside_daemon.bridges.parquet.verification import Verification
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.http_client.errors import SendError
from trackside_daemon.linux.file_lock import FileLock
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from histories import History

    from trackside_daemon.history.record.store import RecordStore

BASE = round(BEGIN * 1e6)
COUNTS = "SELECT run, count(*) FROM samples GROUP BY run ORDER BY run"
TWICE = "SELECT run FROM samples GROUP BY run, attempt, rank, key, step, time HAVING count(*) > 1"


def filled(place: Path, *runs: str, host: str = "node-1", rank: int = 0, samples: int = 10) -> Path:
    """Return the directory of a new history with some ended runs."""
    with history(place) as made:
        for run in runs:
            made.put([opened(run, rank=rank, host=host, started=BEGIN + rank / 1000)])
            made.put([column(run, ["loss"], samples, rank=rank), finished(run)])
    return place


def faults(place: Path | str) -> list[str]:
    """Return what a verification finds, without the path of the archive."""
    return [line.removeprefix(f"{place}/") for line in Verification(FileStore(str(place))).faults()]


def within(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Do something once, in the middle of the next writing of samples."""
    whole = contents.SampleTables.__iter__

    def groups(self: contents.SampleTables) -> Iterator[Any]:
        monkeypatch.setattr(contents.SampleTables, "__iter__", whole)
        tables = list(whole(self))
        yield tables[0].slice(0, 5)
        work()
        yield tables[0].slice(5)
        yield from tables[1:]

    monkeypatch.setattr(contents.SampleTables, "__iter__", groups)


def test_a_second_archiver_that_fails_half_way_does_not_break_what_the_first_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, out = filled(tmp_path / "history", "a"), tmp_path / "out"

    def second() -> None:
        def full() -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            within(patch, full)
            with pytest.raises(SendError, match="No space left"):
                write(directory, out)

    within(monkeypatch, second)
    assert write(directory, out) == {"a": 10}
    assert answer(out, COUNTS) == [("a", 10)]
    assert faults(out) == []
    assert list((out / UNFINISHED).iterdir()) == []


def test_two_archivers_of_one_run_write_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, out = filled(tmp_path / "history", "a"), tmp_path / "out"
    second: list[dict[str, int | None]] = []
    within(monkeypatch, lambda: second.append(write(directory, out)))
    assert write(directory, out) == {"a": None}
    assert second == [{"a": 10}]
    assert answer(out, COUNTS) == [("a", 10)]


def test_an_archiver_that_has_read_an_older_state_does_not_replace_the_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with history(tmp_path / "history") as made:
        made.put([opened("a"), column("a", ["loss"], 10), finished("a")])

        def more() -> None:
            made.put([ingested("a", [(10, BASE + 10, {"loss": 1.0})], number=2)])
            assert write(made.directory, out) == {"a": 11}

        within(monkeypatch, more)
        assert write(made.directory, out) == {"a": None}
    assert answer(out, COUNTS) == [("a", 11)]
    assert faults(out) == []


def test_publishing_waits_for_another_process_and_then_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = filled(tmp_path / "history", "a")
    monkeypatch.setattr(parquet, "LOCK_SECONDS", 0.0)
    lock = FileLock(directory / "archive.lock")
    with pytest.raises(SendError, match=rf"archive.lock: process {os.getpid()} has it for 0 s") as raised:
        write(directory, tmp_path / "out")
    assert raised.value.retry == "later"
    lock.close()
    assert write(directory, tmp_path / "out") == {"a": 10}


def test_a_file_without_its_rows_after_writing_does_not_count_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, out = filled(tmp_path / "history", "a"), tmp_path / "out"

    def break_it() -> None:
        for path in (out / UNFINISHED).iterdir():
            path.write_bytes(b"\0" * 100)
            path.chmod(0o600)
            os.truncate(path, 0)

    within(monkeypatch, break_it)
    with pytest.raises(SendError, match="10 rows were written, and it cannot be read: "):
        write(directory, out)
    assert [name for name in files(out) if name.startswith(KINDS)] == []
    assert write(directory, out) == {"a": 10}


@pytest.mark.parametrize("kind", ["samples", "alerts", "runs"])
def test_a_file_that_is_broken_or_gone_is_written_again(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    with history(tmp_path / "history") as made:
        made.put([opened("a"), column("a", ["loss"], 10), finished("a")])
        made.put([Alert("LossSpike", "warning", BEGIN + 5, "a", {"rank": "0"}, "a spike", "", BEGIN + 9)])
    write(made.directory, out)
    path = path_of(out, kind, "a")
    path.write_bytes(bytes(path.stat().st_size))  # as large as before
    assert write(made.directory, out) == {"a": 10}
    path_of(out, kind, "a").unlink()
    assert write(made.directory, out) == {"a": 10}
    assert write(made.directory, out) == {"a": None}
    assert faults(out) == []


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "half": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "no footer": lambda data: data[:-40] + bytes(40),
    "a page": lambda data: data[:4] + bytes([data[4] ^ 0x40]) + data[5:],
    "text": lambda _: b"a text\n" * 100,
}


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("damage", BROKEN)
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.only_soak)])
def test_a_broken_file_is_left_out_and_named(tmp_path: Path, damage: str, number: int, *, local: bool) -> None:
    out = tmp_path / "out [a]*"
    write(filled(tmp_path / "history", "a", "b"), out)
    path = path_of(out, "samples", "ab"[number])
    path.write_bytes(BROKEN[damage](path.read_bytes()))
    store = FileStore(str(out))
    store.local = local  # else it reads as from an object store
    found = ask(store, "SELECT run, sum(value), max(step), max(key) FROM samples GROUP BY run")
    if found.left_out:
        assert [row[0] for row in found.rows] == ["ba"[number]]
        (line,) = found.left_out
        assert line.startswith(f"{path} cannot be read: ")
        assert "\n" not in line
    else:
        assert damage == "a page"  # which only a checksum shows
    assert len(faults(out)) == 1
    assert answer(out, "SELECT count(*) FROM runs") == [(2,)]


def test_files_of_others_and_folders_stop_no_question(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(filled(tmp_path / "history", "b"), out)
    folder = path_of(out, "runs", "b").parent
    (folder / "a.parquet").mkdir()
    (folder / "notes.txt").write_text("mine")
    for kind in ("runs", "samples"):
        other = folder.parents[1].with_name(kind) / folder.relative_to(out / "runs") / "a@x.parquet"
        pq.write_table(pa.table({"x": [1]}), other)
    found = ask(FileStore(str(out)), f"SELECT run FROM runs UNION {COUNTS.replace(', count(*)', '')}")
    assert found.rows == [("b",)]
    assert [line.rpartition("/")[2] for line in found.left_out] == ["a@x.parquet has no column version"] * 1 + [
        "a@x.parquet has no column run"
    ]
    with pytest.raises(ValueError, match="nowhere"):
        ask(FileStore(str(out)), "SELECT nowhere FROM runs")
    with pytest.raises(ValueError, match="Could not convert"):
        ask(FileStore(str(out)), "SELECT CAST(run AS INTEGER) FROM samples")


NAMES = [
    "実験" * 20,
    "🔥" * 80,
    "опыт-" * 16,
    "x" * 300,
    "%" * 80,
    "",
    ".",
    "..",
    "-rf",
    "a/../../b",
    "a=b",
    "date=2020-01-01",
    "*?[x]",
    "a\0b",
    "a\nb",
    "'; DROP TABLE runs; --",
]


def test_any_name_and_any_id_has_a_place(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with history(tmp_path / "history") as made:
        for number, name in enumerate(NAMES):
            made.put([opened(f"{number:04}", name=name), column(f"{number:04}", ["loss"], 1), finished(f"{number:04}")])
            uid = f"{number:06}{name}"
            made.put([opened(uid), column(uid, ["loss"], 1), finished(uid)])
    assert set(write(made.directory, out).values()) == {1}
    assert set(write(made.directory, out).values()) == {None}
    assert answer(out, "SELECT count(*), count(DISTINCT run) FROM samples") == [(2 * len(NAMES),) * 2]
    assert {name for (name,) in answer(out, "SELECT name FROM runs")} >= set(NAMES) - {""}
    assert faults(out) == []
    assert max(len(os.fsencode(part)) for name in files(out) for part in name.split("/")) <= 255


def test_a_run_that_cannot_be_written_costs_only_itself(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with history(tmp_path / "history") as made:
        for number, run in enumerate("abcd"):
            made.put([opened(run, started=BEGIN + number), column(run, ["loss"], BLOCK), finished(run)])
        made.wait_until_packed()
        (out / "samples" / "date=2023-11-14").mkdir(parents=True)
        (out / "samples" / "date=2023-11-14" / "name=a").write_text("no folder")
        made.writer.call(partial(_change, "UPDATE block SET data = x'01' WHERE id >> 24 = 2")).result(60)
        target = make_target({"url": str(out)})
        positions = Positions(tmp_path / "positions.db")
        positions.since = 0.0
        mirror = RunMirror(made.database.path, positions, target)
        assert mirror.poll() > 0
        assert mirror.status.error.startswith(f"a (a): {out}/samples/date=2023-11-14/name=a/")
        assert mirror.status.error.endswith(" (and 1 more)")
        assert (mirror.status.sent, mirror.status.failures) == (2 * BLOCK, 1)
        assert mirror.status.oldest == BEGIN + 60.0
    assert answer(out, COUNTS) == [("c", BLOCK), ("d", BLOCK)]


def _change(change: str, store: RecordStore) -> None:
    store.connection.execute(change)


def test_ranks_of_several_machines_are_one_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    directories = [filled(tmp_path / f"{rank}", "a", "b", host=f"node-{rank}", rank=rank) for rank in range(3)]
    for directory in directories * 2:
        write(directory, out)
    written = files(out)
    assert [write(directory, out) for directory in directories] == [{"a": None, "b": None}] * 3
    assert files(out) == written
    assert answer(out, "SELECT run, rank, count(*) FROM samples GROUP BY run, rank ORDER BY run, rank") == [
        (run, rank, 10) for run in "ab" for rank in range(3)
    ]
    assert answer(out, "SELECT run, name, host, state, attempts, ranks, step FROM runs ORDER BY run") == [
        (run, run, "node-0, node-1, node-2", "finished", 1, 3, 9) for run in "ab"
    ]
    whole = answer(out, "SELECT sum(gpu_hours), max(wall_seconds), list_sum(map_values(max(ledger))) FROM runs")[0]
    each = answer(out, "SELECT sum(gpu_hours), max(wall_seconds), list_sum(map_values(max(ledger))) FROM parts")[0]
    assert whole == pytest.approx(each, rel=1e-3)
    assert sorted(row[:2] for row in answer(out, prepared("worst 20 hosts by lost GPU hours"))) == [
        (f"node-{rank}", 2) for rank in range(3)
    ]
    assert faults(out) == []


def test_a_run_that_went_on_elsewhere_has_all_attempts_and_the_state_of_the_last(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with history(tmp_path / "1") as made:
        made.put([opened("a"), column("a", ["loss"], 10), finished("a", state="failed", cause="SIGKILL")])
    with history(tmp_path / "2") as made:
        made.put([opened("a", name="again", host="node-2", attempt=1), column("a", ["lr"], 7, attempt=1)])
        made.put([finished("a", attempt=1)])
    for directory in (tmp_path / "2", tmp_path / "1"):
        write(directory, out)
    assert answer(out, COUNTS) == [("a", 17)]
    row = answer(out, "SELECT name, state, cause, attempts, ranks, epoch(ended) - epoch(started) FROM runs")
    assert row == [("again", "finished", "", 2, 1, 1060.0)]


def test_a_failure_on_one_machine_is_that_of_the_run(tmp_path: Path) -> None:
    for rank, state in enumerate(("stopped", "failed", "stopped")):
        with history(tmp_path / f"{rank}") as made:
            made.put([opened("a", rank=rank, host=f"node-{rank}"), column("a", ["loss"], 10, rank=rank)])
            made.put([finished("a", state=state, cause=f"{state} {rank}", after=60.0 + rank)])
        write(tmp_path / f"{rank}", tmp_path / "out")
    assert answer(tmp_path / "out", "SELECT state, cause FROM runs") == [("failed", "failed 1")]


def test_a_run_is_there_once_when_its_name_and_its_start_change(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with history(tmp_path / "history") as made:
        made.put([opened("a", name="first", started=BEGIN + 90_000), column("a", ["loss"], 10), finished("a")])
        write(made.directory, out)
        made.put([opened("a", name="second", attempt=1, started=BEGIN + 95_000), column("a", ["loss"], 10, attempt=1)])
        made.put([finished("a", attempt=1)])
        write(made.directory, out)
        made.put([opened("a", name="third", rank=1), column("a", ["loss"], 10, rank=1), finished("a")])  # a late spool
        write(made.directory, out)
    assert answer(out, COUNTS) == [("a", 30)]
    assert answer(out, "SELECT name, attempts, ranks FROM runs") == [("third", 2, 2)]
    assert len(files(out)) == 2
    assert faults(out) == []


def test_what_the_history_has_deleted_stays_in_the_archive(tmp_path: Path) -> None:
    out = tmp_path / "out"
    target = make_target({"url": str(out)})
    with history(tmp_path / "history") as made:
        made.put([opened("a"), column("a", ["loss", "lr"], BLOCK + 10), finished("a")])
        made.wait_until_packed()
        write(made.directory, out, target)
        for attempt in (1, 2):  # and twice, since a file may begin behind what is deleted
            more = [(step, BASE + step, {"loss": step / 7}) for step in range(attempt * BLOCK)]
            made.put([opened("a", attempt=attempt), ingested("a", more, attempt=attempt)])
            made.put([finished("a", attempt=attempt)])
            made.wait_until_packed()
            for change in ("UPDATE block SET data = NULL WHERE id & 0xffffff = 0", "UPDATE series SET trimmed = 1"):
                made.writer.call(partial(_change, change)).result(60)
            write(made.directory, out, target)
            lost = BLOCK if attempt == 1 else 2 * BLOCK
            assert target.lost == lost
            expected = 2 * (BLOCK + 10) + (0 if attempt == 1 else BLOCK)
            assert answer(out, COUNTS) == [("a", expected)]
    assert answer(out, TWICE) == []
    steps = answer(out, "SELECT list(step ORDER BY step) FROM samples WHERE attempt = 0 AND key = 'loss'")
    assert steps == [(list(range(BLOCK + 10)),)]
    assert faults(out) == []


def test_a_deleted_run_that_continues_retains_what_the_archive_has(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with history(tmp_path / "history") as made:
        made.put([opened("a"), column("a", ["loss"], 10), finished("a")])
        write(made.directory, out)
    with history(tmp_path / "anew") as made:
        made.put([opened("a", attempt=1), column("a", ["loss"], 5, attempt=1), finished("a", attempt=1)])
        write(made.directory, out)
    assert answer(out, "SELECT attempt, count(*) FROM samples GROUP BY attempt ORDER BY attempt") == [(0, 10), (1, 5)]
    assert answer(out, "SELECT attempts, ranks FROM runs") == [(2, 1)]


def test_a_copy_of_a_history_and_an_import_of_a_run_add_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    directory = filled(tmp_path / "history", "a")
    with history(tmp_path / "copy") as made:
        made.put([opened("a"), column("a", ["loss"], 10), finished("a")])
    with history(tmp_path / "history") as made:
        made.put([ingested("a", [(10, BASE + 10, {"loss": 1.0})], number=2)])
        exported = made.export("a", "json")
    with history(tmp_path / "imported") as made:
        made.import_file(exported, "run.json")
    write(directory, out)
    assert write(tmp_path / "copy", out) == {"a": None}
    assert write(tmp_path / "imported", out) == {"a": None}
    assert answer(out, COUNTS) == [("a", 11)]
    assert write(tmp_path / "imported", tmp_path / "other") == {"a": 11}
    write(directory, tmp_path / "other")
    assert answer(tmp_path / "other", COUNTS) == [("a", 11)]


def test_an_archive_of_an_earlier_version_stays_readable_and_gets_no_duplicates(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with history(tmp_path / "history") as made:
        for run in ("same", "late", "named"):
            made.put([opened(run), column(run, ["loss"], 10), finished(run)])
        write(made.directory, out)
        as_before(out, {"named": "first"})
        assert write(made.directory, out) == {"same": None, "late": None, "named": None}
        before = files(out)
        made.put([ingested("late", [(10, BASE + 10, {"loss": 1.0})], number=2)])
        made.put([opened("named", name="second", attempt=1), column("named", ["loss"], 5, attempt=1)])
        made.put([finished("named", attempt=1)])
        assert write(made.directory, out) == {"same": None, "late": 11, "named": 15}
        assert len(files(out)) == len(before)
    write(filled(tmp_path / "other", "late", "named", host="node-2", rank=1), out)
    assert answer(out, COUNTS) == [("late", 21), ("named", 25), ("same", 10)]
    assert answer(out, "SELECT run, name, ranks FROM runs ORDER BY run") == [
        ("late", "late", 2),
        ("named", "second", 2),
        ("same", "same", 1),
    ]
    assert faults(out) == []


def test_a_run_that_an_earlier_version_left_under_two_names_is_read_once_and_then_is_there_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with history(tmp_path / "history") as made:
        made.put([opened("a"), column("a", ["loss"], 10), finished("a")])
        write(made.directory, out)
        as_before(out, {"a": "first"})
        made.put([opened("a", name="second", attempt=1), column("a", ["loss"], 5, attempt=1)])
        made.put([finished("a", attempt=1)])
        write(made.directory, tmp_path / "now")
        as_before(tmp_path / "now")
        for path in (tmp_path / "now").rglob("a.parquet"):
            (out / path.relative_to(tmp_path / "now")).parent.mkdir(parents=True)
            path.rename(out / path.relative_to(tmp_path / "now"))
        assert len(files(out)) == 4
        assert answer(out, COUNTS) == [("a", 15)]
        assert answer(out, "SELECT name FROM runs") == [("second",)]
        assert [line.partition(" ")[2] for line in faults(out)] == [
            "is of a run that is there twice; the other is date=2023-11-14/name=first/a"
        ]
        assert write(made.directory, out) == {"a": 15}
        assert len(files(out)) == 2
    assert answer(out, COUNTS) == [("a", 15)]
    assert faults(out) == []


def test_files_of_killed_writers_are_deleted_and_those_of_live_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, out = filled(tmp_path / "history", "a"), tmp_path / "out"
    store = FileStore(str(out))
    monkeypatch.setattr(stores, "YOUNG_SECONDS", -1.0)
    with store.unfinished("samples/date=2023-11-14/name=b/live.parquet"):
        here = f"{UNFINISHED}/{stores._boot()}-1-00+dead.parquet"
        other = f"{UNFINISHED}/00000000-1-00+dead.parquet"
        before = f"{UNFINISHED}/samples+date=2023-11-14+name=a+dead.parquet"
        for name in (here, other, before):
            (out / name).write_bytes(b"x")
        assert store.abandoned() == [here]
        for name in (other, before):
            os.utime(out / name, (1, 1))
        assert sorted(store.abandoned()) == sorted([here, other, before])
        assert sum("left over" in line for line in faults(filled_archive(tmp_path, out))) == 3
        write(directory, out)
        (left,) = (out / UNFINISHED).iterdir()
        assert left.name.endswith("+live.parquet")
    assert list((out / UNFINISHED).iterdir()) == []
    assert faults(out) == []


def filled_archive(tmp_path: Path, out: Path) -> Path:
    """Write a run of another history to an archive, and leave what is unfinished there as it is."""
    names = {path: path.read_bytes() for path in (out / UNFINISHED).iterdir()}
    write(filled(tmp_path / "another", "z"), out)
    for path, data in names.items():
        if not path.exists():
            path.write_bytes(data)
            os.utime(path, (1, 1))
    return out


def test_a_verification_names_what_is_damaged_missing_twice_and_left_over(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs = ("damaged", "short", "missing", "twice", "rowless", "fine")
    write(filled(tmp_path / "history", *runs), out)
    samples = {run: path_of(out, "samples", run) for run in runs}
    data = bytearray(samples["damaged"].read_bytes())
    data[20] ^= 1
    samples["damaged"].write_bytes(data)
    short = pq.ParquetFile(samples["short"]).read()
    pq.write_table(short.slice(0, 9), samples["short"])
    samples["missing"].unlink()
    for kind in ("runs", "samples"):
        path = path_of(out, kind, "twice")
        (path.parent / "twice@other-00000000.1.parquet").write_bytes(path.read_bytes())
    path_of(out, "runs", "rowless").unlink()
    found = {line.partition("@")[0].rpartition("/")[2]: line.partition(" ")[2] for line in faults(out)}
    assert found.pop("damaged").startswith("cannot be read: ")
    assert found.pop("twice").startswith("is of a run that is there twice; the other is ")
    assert found == {
        "short": "has 9 rows, and its row in runs says 10",
        "missing": "is missing",
        "rowless": "is left over: its run has no row in runs",
    }
    with pytest.raises(LookupError, match="no archived runs"):
        faults(tmp_path / "none")


def test_what_a_killed_writer_has_published_of_a_run_without_its_row_is_deleted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with history(tmp_path / "history") as made:
        made.put([opened("a", name="first"), column("a", ["loss"], 10), finished("a")])
        made.put([Alert("LossSpike", "warning", BEGIN + 5, "a", {"rank": "0"}, "a spike", "", BEGIN + 9)])
        write(made.directory, out)
        write(filled(tmp_path / "other", "a", host="node-2", rank=2), out)
        (row,) = (out / "runs").rglob("a@node-1*")
        row.unlink()
        made.put([opened("a", name="second", rank=1), column("a", ["loss"], 10, rank=1), finished("a")])
        assert write(made.directory, out) == {"a": 20}
    assert faults(out) == []
    assert len(files(out)) == 5
    assert answer(out, COUNTS) == [("a", 30)]


ARCHIVER = """
import sys
from pathlib import Path
from bridges.archives import write
from trackside_daemon.bridges.mirrors.positions import Positions
from trackside_daemon.bridges.mirrors.worker import RunMirror
from trackside_daemon.bridges.parquet.mirror import make_target
kind, out, positions, *directories = sys.argv[1:]
if kind == "mirror":
    positions = Positions(Path(positions))
    positions.since = 0.0
    mirror = RunMirror(Path(directories[0], "history.db"), positions, make_target({"url": out}))
print("ready", flush=True)
while True:
    if kind == "mirror":
        mirror.poll()
        if mirror.status.error:
            print(mirror.status.error, flush=True)
    else:
        for directory in directories:
            write(directory, out)
"""
IMPORTS = (
    (
        "pyarrow.parquet",
        "pyarrow.dataset",
        "pyarrow.compute",
        "bridges.archives",
        "trackside_daemon.bridges.mirrors.worker",
    ),
)


class Archiver:
    """A process that archives until it is killed, and another after it."""

    def __init__(self, *arguments: Path | str) -> None:
        self._arguments = [*map(str, arguments)]
        self.output: list[str] = []
        self._start()

    def kill(self) -> None:
        """Kill the process with SIGKILL, and keep what it printed."""
        self._process.kill()
        self.output += self._process.communicate()[0].splitlines()

    def restart(self) -> None:
        """Kill the process, and start another."""
        self.kill()
        self._start()

    def _start(self) -> None:
        environ = clean_environ({"PYTHONPATH": os.pathsep.join(sys.path)})
        command = [sys.executable, "-c", ARCHIVER, *self._arguments]
        self._process: subprocess.Popen[str] = ForkedProcess(
            command, IMPORTS, env=environ, stdout=-1, stderr=-2, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"


class Reader(Thread):
    """Asks an archive again and again; `wrong` has what was answered wrongly."""

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True)
        self.answers = 0
        self.wrong: list[str] = []
        self._out = out
        self._ending = Event()
        self._rows = 0

    def run(self) -> None:
        """Ask until the end."""
        while not self._ending.is_set():
            try:
                self._ask()
            except LookupError as error:
                if self.answers:
                    self.wrong.append(repr(error))
            except Exception as error:  # noqa: BLE001  a question that has no answer is what this looks for
                self.wrong.append(repr(error))

    def end(self) -> None:
        """End."""
        self._ending.set()
        self.join(DEADLINE)

    def _ask(self) -> None:
        store = FileStore(str(self._out))
        for sql in (
            TWICE,
            "SELECT run FROM runs GROUP BY run HAVING count(*) > 1",
            prepared("lost GPU hours by cause"),
        ):
            found = ask(store, sql)
            if found.left_out or (found.rows and "HAVING" in sql):
                self.wrong.append(f"{sql}: {found}")
        ((rows,),) = ask(store, "SELECT count(*) FROM samples").rows
        if rows < self._rows:
            self.wrong.append(f"{rows} rows after {self._rows}")
        self._rows = rows
        self.answers += 1


class Changes:
    """Random changes of two histories: new runs, late pushes, further attempts with other names."""

    def __init__(self, chance: random.Random, one: History, two: History) -> None:
        self._chance = chance
        self._hosts = (one, two)
        self.rows: set[tuple[str, int, int, int]] = set()
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._attempts: dict[str, int] = {}

    def change(self) -> None:
        """Change something."""
        runs = list(self._attempts)
        run = self._chance.choice(runs) if runs and self._chance.random() < 0.6 else f"r{len(runs)}"
        if run not in self._attempts or self._chance.random() < 0.4:
            self._attempts[run] = self._attempts.get(run, -1) + 1
        for rank in self._chance.sample((0, 1), self._chance.choice((1, 2))):
            self._push(run, self._attempts[run], rank)

    def _push(self, run: str, attempt: int, rank: int) -> None:
        place = (run, attempt, rank)
        number = self._numbers[place] = self._numbers.get(place, 0) + 1
        begin = 1000 * (number - 1)
        steps = range(begin, begin + self._chance.choice((1, 50, 400)))
        name = f"{self._chance.choice(('gpt', '実験', 'a/b'))}-{attempt}"
        host: dict[str, Any] = {"host": f"node-{rank}", "started": BEGIN + 1000 * attempt + rank}
        records: list[Any] = [] if number > 1 else [opened(run, name=name, attempt=attempt, rank=rank, **host)]
        rows = [(step, BASE + step, {"loss": step / 7}) for step in steps]
        records += [ingested(run, rows, number=number, attempt=attempt, rank=rank), finished(run, attempt=attempt)]
        self._hosts[rank].put(records)
        self.rows |= {(run, attempt, rank, step) for step in steps}


def test_archivers_that_are_killed_and_readers_at_one_directory(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    chance = random.Random(17)
    out = tmp_path / "out"
    with history(tmp_path / "1") as one, history(tmp_path / "2") as two:
        changes = Changes(chance, one, two)
        archivers = [
            Archiver("mirror", out, tmp_path / "positions.db", one.directory),
            Archiver("command", out, "", one.directory, two.directory),
        ]
        readers = [Reader(out) for _ in range(2)]
        for reader in readers:
            reader.start()
        for _ in range(count(3, 300)):
            changes.change()
            Event().wait(chance.uniform(0, 0.2))  # the moment is what varies
            chance.choice(archivers).restart()
        for archiver in archivers:
            archiver.kill()
        for directory in (one.directory, two.directory):
            write(directory, out)
        for reader in readers:
            reader.end()
        assert [reader.wrong for reader in readers] == [[], []]
        assert [archiver.output for archiver in archivers] == [[], []]
        assert set(answer(out, "SELECT run, attempt, rank, step FROM samples")) == changes.rows
        assert answer(out, "SELECT count(*) FROM samples") == [(len(changes.rows),)]
        assert [line for line in faults(out) if "a process that was killed" not in line] == []
        assert {write(place.directory, out)[run] for place in (one, two) for run in write(place.directory, out)} == {
            None
        }
        assert all(reader.answers for reader in readers)
