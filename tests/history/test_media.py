"""The media of runs as files: checked, within quotas, for this user alone, and gone with their run."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest
from histories import BEGIN, History, finished, ingested, opened
from msgspec.structs import replace
from session_records import batch_ingested

import trackside
from trackside.media.pixels import encode
from trackside.wire import MediaItem
from trackside_daemon.history.media import index
from trackside_daemon.history.media.store import MediaStore, Quotas
from trackside_daemon.history.record.maintenance import WriterIntervals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUN = "../../evil/id"
SESSION = opened(RUN, name="train").session
IMAGE = encode(3, 2, 1, b"abcdef")
TABLE = json.dumps({"columns": ["a"], "rows": [[1.5], ["<b>"], [{"x": 1}]], "omitted": 2}).encode()

HISTOGRAM = {"edges": [0.0, 1.5], "counts": [3], "nonfinite": 0}


def item(kind: str, data: bytes, key: str = "key", step: int | None = 1) -> MediaItem:
    return MediaItem(kind, key, 2_000_000_000, data, step)


@pytest.fixture
def store(tmp_path: Path) -> MediaStore:
    return MediaStore(tmp_path)


def test_each_kind_becomes_a_private_file_with_an_entry(tmp_path: Path, store: MediaStore) -> None:
    items = [item("image", IMAGE, "a/b"), item("text", b"<script>\xc3\xa9"), item("table", TABLE, step=None)]
    store.write(SESSION, 1, items, 1_000_000_000)
    store.write(SESSION, 1, items, 1_000_000_000)  # the batch comes again
    image, text, table = index.read(tmp_path, RUN)
    assert (image.key, image.kind, image.step, image.width, image.height, image.time) == ("a/b", "image", 1, 3, 2, 3.0)
    assert index.content(tmp_path, RUN, image) == IMAGE
    assert index.content(tmp_path, RUN, text).decode() == "<script>é"
    assert json.loads(index.content(tmp_path, RUN, table))["rows"] == [[1.5], ["<b>"], ["{'x': 1}"]]
    assert table.step is None
    directory = index.directory_of(tmp_path, RUN)
    assert directory.parent == tmp_path / "media"
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (directory, directory.parent)} == {0o700}


@pytest.mark.parametrize(
    "wrong",
    [
        item("image", b"<svg onload=alert(1)>"),
        item("image", IMAGE[:-1]),
        item("svg", b"<svg/>"),
        item("text", b"\xff"),
        item("text", b"x" * 400_000),
        item("histogram", b'{"edges":[1,0],"counts":[1],"nonfinite":0}'),
        item("histogram", b'{"edges":[0,1],"counts":[-1],"nonfinite":0}'),
        item("histogram", b'{"edges":[0],"counts":[],"nonfinite":0}'),
        item("histogram", b'{"edges":[0,1],"counts":[1,2],"nonfinite":0}'),
        item("table", b"[]"),
        item("table", b'{"columns":["a"],"rows":[[NaN]],"omitted":0}'),
        item("table", b"[" * 100_000),
    ],
)
def test_what_is_not_what_it_states_costs_only_itself(
    tmp_path: Path, store: MediaStore, wrong: MediaItem, caplog: pytest.LogCaptureFixture
) -> None:
    store.write(SESSION, 1, [wrong, item("text", b"good"), wrong], 0)
    assert [one.bytes for one in index.read(tmp_path, RUN)] == [4]
    assert store.refused == 2
    assert len(caplog.records) == 1


def test_a_damaged_index_costs_its_line_and_a_planted_name_nothing(tmp_path: Path, store: MediaStore) -> None:
    store.write(SESSION, 1, [item("text", b"one")], 0)
    directory = index.directory_of(tmp_path, RUN)
    planted = {"file": "../../secret", "kind": "text", "key": "", "attempt": 0, "rank": 0, "time": 0, "bytes": 1}
    with (directory / "index.jsonl").open("a") as file:
        file.write(f'{json.dumps(planted)}\n{{"file": "torn')
    store.write(SESSION, 2, [item("text", b"two")], 0)
    store.write(SESSION, 3, [item("text", b"three")], 0)
    assert [one.bytes for one in index.read(tmp_path, RUN)] == [3, 5]


def test_on_a_disk_with_less_than_its_free_room_no_media_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MediaStore(tmp_path, Quotas(min_free=1 << 60))
    store.write(SESSION, 1, [item("text", b"one"), item("text", b"two")], 0)
    assert (store.refused, index.read(tmp_path, RUN)) == (2, [])
    assert "the disk has less free than storage.min-free" in caplog.text


def test_the_oldest_files_of_a_run_and_the_oldest_runs_go(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, Quotas(1000, 3000))
    for number in range(50):
        store.write(SESSION, number, [item("text", b"x" * 100, str(number))], 0)
    assert [one.key for one in index.read(tmp_path, RUN)][-9:] == [str(number) for number in range(41, 50)]
    assert sum(one.bytes for one in index.read(tmp_path, RUN)) <= 1000
    for run in "abcdef":
        store.write(opened(run).session, 1, [item("text", b"x" * 900)], 0)
    assert index.read(tmp_path, RUN) == []
    assert index.read(tmp_path, "f")
    assert sum(path.stat().st_size for path in (tmp_path / "media").glob("*/*")) <= 3000 + 1000


def test_on_a_full_disk_they_are_counted_and_nothing_else_fails(
    tmp_path: Path, store: MediaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "media").write_text("in the way")
    store.write(SESSION, 1, [item("text", b"one")], 0)
    assert store.refused == 1


@pytest.fixture
def history(place: Path) -> Iterator[History]:
    made = History(place / "history", intervals=WriterIntervals(trim=0.0))
    yield made
    made.close()


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_an_export_has_them_and_an_import_restores_them(history: History, form: str) -> None:
    run = opened("id-1", name="train")
    media = [item("image", IMAGE), item("text", "é".encode(), "t"), item("table", TABLE, "r", None)]
    media.append(item("histogram", json.dumps(HISTOGRAM).encode(), "h"))
    history.put([run, ingested("id-1", [(1, round(BEGIN * 1e6), {"loss": 1.0})])])
    history.put([batch_ingested(run.session.id, 2, media=media), finished("id-1")])
    exported = history.export("id-1", form)
    history.import_file(exported, f"run.{form}", id="id-2")
    before, after = (index.read(history.directory, one) for one in ("id-1", "id-2"))
    assert len(before) == 4
    assert [replace(one, file="") for one in before] == [replace(one, file="") for one in after]
    contents = [[one.read() for one in trackside.open(run, path=history.directory).media()] for run in ("id-1", "id-2")]
    assert (
        contents[0]
        == contents[1]
        == [IMAGE, "é", {"columns": ["a"], "rows": [[1.5], ["<b>"], ["{'x': 1}"]], "omitted": 2}, HISTOGRAM]
    )
    assert [one.key for one in trackside.open("id-2", path=history.directory).media("t", kind="text")] == ["t"]


def test_they_are_deleted_with_their_run(tmp_path: Path) -> None:
    store = MediaStore(tmp_path)  # of no open history, which would sweep runs that it does not have
    store.write(SESSION, 1, [item("text", b"one")], 0)
    store.write(opened("other").session, 1, [item("text", b"one")], 0)
    store.sweep(["other"])
    assert index.read(tmp_path, RUN) == []
    assert index.read(tmp_path, "other")
