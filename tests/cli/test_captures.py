"""`trackside captures` as a process: with a daemon and without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from cli.test_runs import Place, answering
from histories import BEGIN, history, opened

from trackside_daemon.cli.commands.capture import _save
from trackside_daemon.model.capture import Capture, CaptureFile

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = b"\x1f\x8b trace" * 20_000  # more than one chunk


def test_the_captures_of_a_run_are_listed_and_saved_with_and_without_a_daemon(tmp_path: Path) -> None:
    place = Place(tmp_path)
    files = (CaptureFile(0, "trace_0.json.gz", len(CONTENT), "trace"),)
    kept = Capture("aa0011223344", "aaaa1111", 0, "profile", "person", BEGIN + 9, state="summarised", files=files)
    failed = Capture("bb0011223344", "bbbb2222", 0, "profile", "api", BEGIN + 10, state="failed", reason="no process")
    with history(place.history) as one:
        one.put([opened("aaaa1111", name="gpt-small"), opened("bbbb2222", name="other"), kept, failed])
    directory = place.history / "captures" / kept.id
    directory.mkdir(parents=True)
    (directory / files[0].name).write_bytes(CONTENT)

    alone = place.run("captures", columns=120)
    assert (alone.status, alone.errors) == (0, "")
    assert [line.split()[0] for line in alone.out.splitlines()] == ["ID", kept.id, failed.id]
    saved = place.run("captures", "gpt-small", "--json", f"--output={tmp_path}/alone")
    assert (tmp_path / "alone" / kept.id / files[0].name).read_bytes() == CONTENT
    with answering(place) as api:
        assert place.run("captures", columns=120).out == alone.out
        assert place.run("captures", "gpt-small", "--json", f"--output={tmp_path}/asked").out == saved.out
        assert f"GET /api/v1/captures/{kept.id}/files/{files[0].name}" in api.asked
    assert (tmp_path / "asked" / kept.id / files[0].name).read_bytes() == CONTENT

    (directory / files[0].name).unlink()
    refusal = place.run("captures", f"--output={tmp_path}/gone").refusal()
    assert refusal == f"capture {kept.id} has no file 'trace_0.json.gz' in {place.history}"


def test_a_server_writes_nothing_beside_the_directory_that_the_user_named(tmp_path: Path) -> None:
    names = ("..", ".", "", "a/../..", ".bashrc")
    found = [{"id": id_, "files": [{"name": name} for name in names]} for id_ in names]
    source: Any = SimpleNamespace(capture_file=lambda *_: [b"x"])
    _save(source, found, tmp_path / "output")
    assert [path.name for path in tmp_path.iterdir()] == ["output"]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == len(names) ** 2
    assert not any(path.name.startswith(".") for path in written)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--seconds", "100000"], "--seconds: 120 at most"),
        (["--seconds=0"], "--seconds: 0.01 at least"),
        (["--steps", "0"], "--steps: 1 at least"),
        (["--memory", "--steps", "5"], "--steps: a capture of kind memory has none"),
        (["--layers", "--stacks"], "--stacks: a capture of kind layers has none"),
        (["--layers", "--memory"], "--layers, --memory: give one of them"),
    ],
)
def test_an_option_that_the_capture_lacks_is_refused_before_a_daemon_is_sought(
    tmp_path: Path, options: list[str], expected: str
) -> None:
    assert Place(tmp_path).run("capture", "gpt-small", *options, where=False).refusal() == expected
