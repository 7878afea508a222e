"""`trackside spool send`: spools that no daemon reads without it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import processes
import pytest
from processes import clean_environ, command, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processes import Daemon


def run(*arguments: str, **environ: str) -> tuple[int, str, str]:
    done = processes.run(command("spool", "send", *arguments), env=clean_environ(environ))
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def elsewhere(place: Path) -> Path:
    """Return a directory that no daemon reads, with the spools of two training jobs."""
    directory = place / "elsewhere"
    environ = {"TRACKSIDE_SPOOL": str(directory), "TRACKSIDE_ENDPOINT": f"ipc://{place}/nobody.sock"}
    for name in ("one", "two\x1b[2J"):
        code = f"import logging, trackside; logging.disable(); trackside.init({name!r}).push(step=1, loss=0.5)"
        processes.run([sys.executable, "-c", code], env=clean_environ(environ), check=True)
    return directory


def test_leftovers_of_any_place_are_sent_and_removed_and_unreadable_files_are_left_and_reported(
    start_daemon: Callable[..., Daemon], elsewhere: Path
) -> None:
    daemon = start_daemon()
    unreadable = elsewhere / f"{'a' * 32}.{1:016d}.spool"
    unreadable.write_bytes(b"no spool")
    left = "left 1 session: their processes still run, or the files cannot be read\n"
    sent = run(TRACKSIDE_SPOOL=str(elsewhere), TRACKSIDE_ENDPOINT=daemon.endpoint)
    assert sent == (0, "sent 2 sessions: one, two\\x1b[2J\n" + left, "")
    unreadable.unlink()
    assert run(str(elsewhere), f"--endpoint={daemon.endpoint}") == (0, "sent 0 sessions\n", "")
    assert not list(elsewhere.glob("*.spool"))
    runs = eventually(lambda: daemon.api("runs").json()["runs"])
    assert {(one["name"], one["state"]) for one in runs} == {("one", "finished"), ("two\x1b[2J", "finished")}


def test_spools_are_listed_with_their_runs(elsewhere: Path, place: Path) -> None:
    (elsewhere / f"{'a' * 32}.{1:016d}.spool").write_bytes(b"no spool")
    done = processes.run(command("spool", "list", str(elsewhere)), env=clean_environ({}))
    assert (done.returncode, done.stderr) == (0, "")
    header, *lines = [line.split() for line in done.stdout.splitlines()]
    assert header == ["SESSION", "RUN", "RANK", "SIZE", "DIRECTORY"]
    assert [line[1:3] for line in lines] == [["one", "0"], ["two\\x1b[2J", "0"], ["-", "-"]]
    assert all(line[5:] == [str(elsewhere)] for line in lines)
    (place / "empty").mkdir()
    done = processes.run(command("spool", "list", str(place / "empty")), env=clean_environ({}))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "trackside: no session waits\n")


def test_what_is_missing_is_one_line(place: Path, elsewhere: Path) -> None:
    unused = f"ipc://{place}/nobody.sock"
    assert run(str(place / "nothing"), f"--endpoint={unused}") == (
        *(2, ""),
        f"trackside: {place}/nothing: no such directory\n",
    )
    assert run(str(elsewhere), f"--endpoint={unused}") == (
        *(2, ""),
        f"trackside: no daemon found at {unused} (not found); start one, or give another with --endpoint\n",
    )
    assert len(list(elsewhere.glob("*.lock"))) == 2
