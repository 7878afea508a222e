"""Directories of runs that another user has made: an import reads no private file of its own user, and never waits.

Users are unused numbers.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
from bridges.directories import BEGIN, events, file_name
from processes import DEADLINE, clean_environ, command
from unprivileged_users import launcher

from trackside_daemon.bridges.foreign_run import ForeignRunError
from trackside_daemon.bridges.sqlite_file import reading
from trackside_daemon.linux.foreign_file import open_foreign

VICTIM, ATTACKER = 61301, 61302
SECRET = "KEYBODY-0123456789"

needs_users = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")


def owned(place: Path, user: int) -> None:
    """Give a directory with all that is in it to a user; what links name stays."""
    for path in (place, *place.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


def mlflow_run(directory: Path) -> Path:
    (directory / "metrics").mkdir(parents=True)
    (directory / "meta.yaml").write_text(f"run_id: {directory.name}\nrun_name: {directory.name}\n")
    (directory / "metrics" / "loss").write_text(f"{BEGIN}000 0.5 0\n{BEGIN}500 0.25 1\n")
    return directory


def csv_run(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "metrics.csv").write_text("step,loss\n0,0.5\n1,0.25\n")
    return directory / "hparams.yaml"


@pytest.fixture
def private(place: Path) -> Path:
    """A closed directory of the victim, with files of all kinds that an import reads."""
    private = place / "home" / "private"
    private.mkdir(parents=True, mode=0o700)
    (private / "id").write_text(SECRET)
    (private / "config.yaml").write_text(f"password: {SECRET}\n")
    (private / "loss").write_text(f"{BEGIN}000 777 0\n")
    (private / "trainer_state.json").write_text('{"log_history": [{"step": 1, "loss": 777}]}')
    events(private / "events", [1554], "loss")
    for path in private.iterdir():
        path.chmod(0o600)
    owned(place / "home", VICTIM)
    return private


@pytest.fixture
def shared(place: Path, private: Path) -> Path:
    """Runs of the attacker, with links to the victim's files, and FIFOs, where an import reads files."""
    shared = place / "shared"
    linked = mlflow_run(shared / "ml" / "0" / "linked")
    for folder in ("params", "tags"):
        (linked / folder).symlink_to(private)
    (linked / "metrics" / "stolen").symlink_to(private / "loss")
    hard = mlflow_run(shared / "ml" / "0" / "hard")
    (hard / "params").mkdir()
    (hard / "params" / "id").hardlink_to(private / "id")
    os.mkfifo(hard / "params" / "waits")
    os.mkfifo(hard / "metrics" / "waits")
    csv_run(shared / "csv" / "linked").symlink_to(private / "config.yaml")
    os.mkfifo(csv_run(shared / "csv" / "fifo"))
    for name in (file_name(), "run-a.wandb", "mlflow.db", "trainer_state.json"):
        (shared / "links" / name).parent.mkdir(exist_ok=True)
        (shared / "links" / name).symlink_to(private / ("events" if "tfevents" in name else "trainer_state.json"))
    events(shared / "tensorboard" / file_name(), range(3))
    owned(shared, ATTACKER)
    os.chown(private / "id", VICTIM, VICTIM)
    place.chmod(0o755)
    return shared


def as_victim(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {
        **clean_environ(),
        "HOME": str(place / "home"),
        "TRACKSIDE_STORAGE__PATH": str(place / "home" / "history"),
    }
    limits = ["prlimit", "--as=4000000000", "timeout", "40"]
    return subprocess.run(
        [*limits, *launcher(VICTIM), *command(*arguments)],
        env=environ,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@needs_users
def test_an_import_of_another_users_runs_has_nothing_of_the_private_files_that_they_point_to(
    place: Path, private: Path, shared: Path
) -> None:
    done = as_victim(place, "import", "shared")
    assert done.returncode == 0, done.stderr
    assert sorted(line.partition(" as ")[0] for line in done.stdout.splitlines()) == [
        f"imported: shared/{path}"
        for path in ("csv/fifo/metrics.csv", "csv/linked/metrics.csv", "ml/0/hard", "ml/0/linked", "tensorboard")
    ]
    stored = "".join(as_victim(place, "export", run, "--format", "jsonl").stdout for run in ("linked", "hard"))
    stored += as_victim(place, "runs", "--json").stdout + done.stdout + done.stderr
    assert '"loss":0.25' in stored
    assert SECRET not in stored
    assert "777" not in stored
    for why in (
        "params (a symbolic link)",
        "tags (a symbolic link)",
        "metrics/stolen (a symbolic link, which is not followed here)",
        "params/id (private, and not of the user who owns its directory)",
        "params/waits (not a regular file)",
        "metrics/waits (not a regular file)",
        "hparams.yaml: cannot be read: a symbolic link, which is not followed here",
        "hparams.yaml: cannot be read: not a regular file",
    ):
        assert why in done.stderr
    assert private.is_dir()
    assert shared.is_dir()


def test_a_file_is_opened_only_where_no_part_of_its_path_is_a_link(place: Path) -> None:
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "file").write_text("x")
    (place / "link").symlink_to("a")
    (place / "a" / "link").symlink_to("b/file")
    os.mkfifo(place / "a" / "fifo")
    with open_foreign(place / "a" / "b" / "file") as file:
        assert file.read() == b"x"
    for name in ("link/b/file", "a/link", "a/fifo", "a/b", "a/nothing"):
        with pytest.raises(OSError, match=f"{place}/{name}"):
            open_foreign(place / name)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="symbolic link"):
        open_foreign(place / "link" / "b" / "file")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@needs_users
@pytest.mark.parametrize(
    ("directory", "file", "mode", "opened"),
    [
        (ATTACKER, VICTIM, 0o600, False),
        (ATTACKER, VICTIM, 0o640, False),
        (ATTACKER, VICTIM, 0o644, True),  # a run in a container writes so
        (ATTACKER, ATTACKER, 0o600, True),
        (0, VICTIM, 0o600, True),
    ],
)
def test_a_private_file_in_the_directory_of_another_user_is_not_read(
    place: Path, directory: int, file: int, mode: int, *, opened: bool
) -> None:
    path = place / "runs" / "loss"
    path.parent.mkdir()
    path.write_text("1 0.5 0\n")
    path.chmod(mode)
    os.chown(path, file, file)
    os.chown(path.parent, directory, directory)
    if opened:
        open_foreign(path).close()
    else:
        with pytest.raises(PermissionError, match="private"):
            open_foreign(path)


def test_a_database_behind_a_link_is_not_read(place: Path) -> None:
    sqlite3.connect(place / "real.db").executescript("CREATE TABLE x (y)")
    (place / "link.db").symlink_to("real.db")
    with reading(place / "real.db") as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("x",)]
    with pytest.raises((ForeignRunError, OSError), match="symbolic link"), reading(place / "link.db"):
        pass
