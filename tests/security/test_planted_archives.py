"""Archives that others may write, too: what they put there has no file elsewhere written or deleted."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bridges.archives import files, write
from histories import column, finished, history, opened

from trackside_daemon.bridges.parquet.store import UNFINISHED, FileStore
from trackside_daemon.http_client.errors import SendError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def filled(place: Path) -> Path:
    """The directory of a history with an ended run."""
    with history(place / "history") as made:
        made.put([opened("a", name="first"), column("a", ["loss"], 10), finished("a")])
    return place / "history"


@pytest.fixture
def data(place: Path) -> Path:
    """A directory of the victim, with old Parquet files that no process has open."""
    directory = place / "data"
    (directory / "sub").mkdir(parents=True)
    for name in ("a.parquet", "sub/b.parquet"):
        (directory / name).write_bytes(b"precious")
        os.utime(directory / name, (1, 1))
    return directory


def test_no_file_behind_a_link_counts_as_left_by_a_killed_writer(place: Path, filled: Path, data: Path) -> None:
    out = place / "out"
    (out / UNFINISHED).mkdir(parents=True)
    (out / UNFINISHED / "more").symlink_to(data / "sub")
    write(filled, out)
    assert len(files(data)) == 2
    (out / UNFINISHED / "more").unlink()
    (out / UNFINISHED).rmdir()
    (out / UNFINISHED).symlink_to(data)
    for kind in ("runs", "samples"):
        next((out / kind).rglob("*.parquet")).unlink()
    with pytest.raises(SendError, match=UNFINISHED):
        write(filled, out)
    assert len(files(data)) == 2


@pytest.mark.parametrize("kind", ["runs", "samples"])
def test_no_file_is_written_behind_a_link(place: Path, filled: Path, data: Path, kind: str) -> None:
    out, before = place / "out", files(data)
    out.mkdir()
    (out / kind).symlink_to(data)
    with pytest.raises(SendError, match=kind):
        write(filled, out)
    assert files(data) == before
    assert sorted(path.name for path in data.iterdir()) == ["a.parquet", "sub"]


def test_what_replaces_an_unfinished_file_is_not_written(
    place: Path, filled: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = FileStore.unfinished

    @contextmanager
    def replaced(store: FileStore, name: str) -> Iterator[Any]:
        with unfinished(store, name) as file:
            own = Path(file.path)
            own.unlink()
            own.symlink_to(data / "a.parquet")
            yield file

    monkeypatch.setattr(FileStore, "unfinished", replaced)
    with pytest.raises(SendError, match="rows were written"):
        write(filled, place / "out")
    assert (data / "a.parquet").read_bytes() == b"precious"
