"""A module that another user has put into the working directory runs in none of our processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, ROOT, clean_environ, eventually

from trackside_daemon.bridges.mirrors import supervisor
from trackside_daemon.captures.summary import request as summary
from trackside_daemon.checkpoints.audit import request as audit
from trackside_daemon.documents import request as report
from trackside_daemon.history.salvage import salvage
from trackside_daemon.linux.child_process import ChildProcess, import_warnings, own_module
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Tell that it was imported.
PLANTED = """
import os
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "proof"), "a") as file:
    file.write(f"{os.getpid()}\\n")
"""

WORKERS = {
    "mirror": own_module(supervisor.MODULE),
    "report": own_module(report.MODULE),
    "audit": own_module(audit.MODULE),
    "summary": own_module(summary.MODULE),
    "salvage": own_module(salvage.MODULE),
    "nvml": own_module("trackside_daemon.nvml.worker", "{}"),
    "ingest": own_module("trackside_daemon.ingest.worker", "{}"),
    "benchmark": own_module("trackside.benchmark", python=f"{sys.prefix}/bin/../bin/python"),
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with modules of the names that ours import, and the file that they write."""
    for name in ("msgspec", "zmq", "json", "typing", "trackside", "trackside_daemon"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return tmp_path / "proof"


def run(command: Sequence[str]) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE, check=False)


def test_python_itself_would_import_them(planted: Path) -> None:
    run([sys.executable, "-m", "trackside_daemon.checkpoints.audit"])
    assert planted.exists()


@pytest.mark.parametrize("name", WORKERS)
def test_no_worker_imports_them(planted: Path, name: str) -> None:
    run(WORKERS[name])
    assert not planted.exists()


def test_python_3_10_imports_none_either(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    command = own_module("trackside_daemon.checkpoints.audit")
    assert "-P" not in command
    run(command)
    assert not planted.exists()


def test_an_empty_entry_of_pythonpath_is_not_the_directory_of_a_worker(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":/nonexistent")
    with CallWorker(audit.MODULE, str) as worker, pytest.raises(WorkerFailed, match="it exited"):
        worker.ask({}, DEADLINE)
    assert not planted.exists()


def test_no_child_of_a_command_imports_them(planted: Path) -> None:
    child = ChildProcess("trackside_daemon", "--version", mute=True)
    assert eventually(lambda: child.status is not None)
    assert child.status == 0
    assert not planted.exists()


def test_trackside_run_imports_none_when_it_checks_why_nothing_was_found(planted: Path, place: Path) -> None:
    environ = clean_environ({"XDG_RUNTIME_DIR": str(place), "XDG_STATE_HOME": str(place)})
    command = [
        str(Path(sys.executable).with_name("trackside")),
        "run",
        "--auto",
        "--",
        sys.executable,
        "-c",
        "print(1)",
    ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert "no optimizer of PyTorch made a step" in done.stderr
    assert not planted.exists()


def test_the_prolog_of_slurm_imports_none(planted: Path) -> None:
    environ = clean_environ({"TRACKSIDE_ENDPOINT": "ipc:///nonexistent/push.sock"})
    environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    prolog = ROOT / "deploy" / "slurm" / "task-prolog.sh"
    subprocess.run(["sh", prolog], env=environ, capture_output=True, timeout=DEADLINE, check=True)
    assert not planted.exists()


def test_a_daemon_that_imports_from_a_directory_of_others_logs_it(tmp_path: Path) -> None:
    assert list(import_warnings(tmp_path, ["", "/usr/lib"])) == []
    tmp_path.chmod(0o777)
    assert list(import_warnings(tmp_path, ["/usr/bin", "/usr/lib"])) == []
    [line] = import_warnings(tmp_path, [str(tmp_path), "/usr/lib"])
    assert str(tmp_path) in line
    assert "PYTHONPATH" in line
