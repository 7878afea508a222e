"""deploy/slurm with Debian's Slurm: a job's run has its name and id, and nothing of ours ever holds a job up."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from end_to_end.slurm import Slurm
from processes import DEADLINE, ROOT, Daemon, clean_environ, command, eventually, lasting_daemon, run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("slurmctld", "slurmd", "sbatch"))), reason="slurmctld and slurmd are not installed"
)

SCRIPTS = ROOT / "deploy" / "slurm"
TRAINING = """
import trackside
for step in range(1, 11):
    trackside.push(step=step, loss=1 / step)
trackside.finish()
"""


WRITTEN = """
import os, psutil, signal, sqlite3, time
at = os.environ["TRACKSIDE_ENDPOINT"].removesuffix("/push.sock").removeprefix("ipc://")
history = sqlite3.connect(f"file:{at}/history/history.db?mode=ro", uri=True)
while history.execute("SELECT state FROM run").fetchall() != [("finished",)]:
    time.sleep(0.05)
history.close()
flag = "--push.endpoint=" + os.environ["TRACKSIDE_ENDPOINT"]
found = [one for one in psutil.process_iter(["cmdline", "create_time"]) if flag in (one.info["cmdline"] or ())]
daemon = min(found, key=lambda one: one.info["create_time"]).pid  # the others are its children
"""
"""Goes on once the daemon of the job, whose process it finds, has the run in its history."""

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="slurmd has to be root's: the epilog becomes the job's user")


def left(job: str) -> Path:
    """Return the directory of a job's daemon on the node."""
    return Path(f"/tmp/trackside-{os.getuid()}-{job}")


def stored_run(directory: Path, job: str) -> tuple[str, str]:
    """Return the name and the state of the one run that a job's daemon has kept."""
    kept = directory / "trackside" / job / "gpu1"
    shown = run(command("runs", f"--storage.path={kept}", "--json"))
    assert shown.returncode == 0, shown.stderr + (directory / "job.out").read_text()
    (found,) = json.loads(shown.stdout)["runs"]
    return found["name"], found["state"]


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def called() -> Iterator[Path]:
    """The file of calls that prolog and epilog make to systemctl and logger, which are scripts here."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        place = Path(directory)
        place.chmod(0o755)
        script(place / "logger", f'echo logger "$@" >> {place}/calls')
        script(place / "systemctl", f'echo systemctl "$@" >> {place}/calls', '[ "$2" != is-active ]')
        yield place / "calls"


@pytest.fixture(scope="module")
def slurm(called: Path) -> Iterator[Slurm]:
    place = called.parent / "slurm"
    place.mkdir()
    prolog = script(
        called.parent / "prolog",
        f"PATH={called.parent}:$PATH TRACKSIDE_PORT=9 exec {SCRIPTS}/prolog.sh",
    )
    epilog = script(called.parent / "epilog", f"PATH={called.parent}:$PATH exec {SCRIPTS}/epilog.sh")
    running = Slurm(place, prolog, epilog, SCRIPTS / "task-prolog.sh")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for all jobs that do not bring one."""
    with lasting_daemon() as one:
        yield one


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory that a job is submitted from, with a training, and the command `trackside` on its PATH."""
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "trackside", f'exec {" ".join(command())} "$@"')
    script(tmp_path / "bin" / "python", f'exec {sys.executable} "$@"')
    return tmp_path


@pytest.fixture
def environ(directory: Path) -> dict[str, str]:
    paths = os.pathsep.join(str(ROOT / name) for name in ("client", "daemon"))
    paths_to = {"PYTHONPATH": paths, "TRACKSIDE_SCRIPTS": str(SCRIPTS)}
    return clean_environ({"PATH": f"{directory}/bin:{os.environ['PATH']}", **paths_to})


BATCH = "#!/bin/sh\nsrun python train.py\n"


def test_a_run_has_the_name_and_the_id_of_its_job(
    slurm: Slurm, daemon: Daemon, directory: Path, environ: dict[str, str]
) -> None:
    asked = {**environ, "TRACKSIDE_ENDPOINT": daemon.endpoint}
    job = slurm.submit(directory, BATCH, asked, "--job-name=gpt small")
    (found,) = (name for name in daemon.series() if f'job_id="{job}"' in name and "_run_info{" in name)
    assert f'run="gpt small-{job}"' in found
    assert slurm.reason() == ""


def test_a_run_is_named_after_its_job_unless_the_user_names_it_and_without_ids_those_of_a_user_share_it() -> None:
    with_ids = (SCRIPTS / "task-prolog.sh").read_text()
    without = with_ids.replace("\nwith_id=yes\n", "\nwith_id=no\n")
    array = {"SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "3"}
    for text, more, name in (
        (with_ids, {}, "gpt small-4711"),
        (with_ids, array, "gpt small-4_3"),
        (with_ids, {"TRACKSIDE_RUN_NAME": "mine"}, ""),
        (without, {}, "alice.gpt small"),
        (without, array, "alice.gpt small_3"),
    ):
        job = {"SLURM_JOB_NAME": "gpt small", "SLURM_JOB_ID": "4711", "SLURM_JOB_USER": "alice", **more}
        done = subprocess.run(["sh", "-c", text], env=job, capture_output=True, text=True, check=True)
        assert done.stdout == (name and f"export TRACKSIDE_RUN_NAME={name}\n")


def test_a_node_without_a_daemon_is_logged_and_gets_jobs_all_the_same(
    slurm: Slurm, called: Path, directory: Path, environ: dict[str, str]
) -> None:
    called.unlink(missing_ok=True)
    job = slurm.submit(directory, BATCH, environ)
    assert called.read_text().splitlines() == [
        "systemctl --quiet is-enabled trackside",
        "systemctl --quiet is-active trackside",
        "systemctl --quiet --no-block start trackside",
        f"logger --tag trackside job {job}: the service is not active; see systemctl status trackside",
    ]
    assert slurm.reason() == ""
    assert slurm.sinfo("--nodes=gpu1", "--format=%T") == "idle"


def prologue(called: Path, path: str) -> list[str]:
    """Run the prolog with the programs on a PATH; return its calls."""
    called.unlink(missing_ok=True)
    given = {"PATH": path, "SLURM_JOB_ID": "1", "TRACKSIDE_PORT": "9"}
    subprocess.run([SCRIPTS / "prolog.sh"], env=given, check=True, timeout=DEADLINE)
    return called.read_text().splitlines() if called.exists() else []


def test_the_prolog_leaves_a_daemon_that_is_disabled_as_it_is(called: Path, tmp_path: Path) -> None:
    script(tmp_path / "systemctl", f'echo systemctl "$@" >> {called}', "exit 1")
    asked = prologue(called, f"{tmp_path}:{called.parent}:{os.environ['PATH']}")
    assert asked == ["systemctl --quiet is-enabled trackside"]


@pytest.mark.parametrize("name", ["prolog.sh", "epilog.sh", "task-prolog.sh"])
def test_they_do_no_harm_where_nothing_is_there(name: str, tmp_path: Path) -> None:
    done = subprocess.run(["/bin/sh", SCRIPTS / name], env={"PATH": str(tmp_path)}, check=False, timeout=DEADLINE)
    assert done.returncode == 0


def test_a_job_brings_its_own_daemon_whichever_step_that_is_and_stores_its_history(
    slurm: Slurm, directory: Path, environ: dict[str, str]
) -> None:
    begin = "# The daemons are a step"
    text, count = re.subn(begin, f"srun true\n{begin}", (SCRIPTS / "train.sbatch").read_text())
    assert count == 1
    job = slurm.submit(directory, text, environ, "--array=3")
    assert stored_run(directory, f"{job}_3") == (f"gpt-small-{job}_3", "finished")
    assert not left(job).exists()


def test_the_history_of_a_killed_daemon_is_stored(slurm: Slurm, directory: Path, environ: dict[str, str]) -> None:
    (directory / "train.py").write_text(TRAINING + WRITTEN + "os.kill(daemon, signal.SIGKILL)\n")
    job = slurm.submit(directory, SCRIPTS / "train.sbatch", environ)
    assert stored_run(directory, job) == (f"gpt-small-{job}", "finished")


@AS_ROOT
def test_a_daemon_that_hangs_delays_no_job_and_the_epilog_stores_what_it_has_written(
    slurm: Slurm, directory: Path, environ: dict[str, str]
) -> None:
    (directory / "train.py").write_text(TRAINING + WRITTEN + "os.kill(daemon, signal.SIGSTOP)\n")
    soon = (SCRIPTS / "train.sbatch").read_text().replace("timeout 30 tail", "timeout 1 tail")
    job = slurm.submit(directory, soon, environ, "--job-name=hangs")
    eventually(lambda: not left(job).exists())
    assert stored_run(directory, job) == (f"hangs-{job}", "finished")


@AS_ROOT
def test_the_only_copy_of_a_history_stays(slurm: Slurm, called: Path, directory: Path, environ: dict[str, str]) -> None:
    blocked = "import pathlib; kept = next(pathlib.Path('trackside').glob('*/gpu1')); kept.rmdir(); kept.touch()\n"
    (directory / "train.py").write_text(TRAINING + blocked)
    job = slurm.submit(directory, SCRIPTS / "train.sbatch", environ)
    reported = f"its history could not be copied; it stays in {left(job)}/history"
    eventually(lambda: f"logger --tag trackside job {job}: {reported}" in called.read_text().splitlines())
    printed = (directory / "job.out").read_text()
    kept = directory / "trackside" / job / "gpu1"
    assert f"the history could not be copied to {kept}; it stays in {left(job)}/history of gpu1\n" in printed
    assert "to list the runs" not in printed
    assert (left(job) / "history" / "history.db").exists()
    shutil.rmtree(left(job))
    assert slurm.reason() == ""


@AS_ROOT
def test_a_directory_that_another_user_has_made_is_not_used_and_the_training_runs(
    slurm: Slurm, directory: Path, environ: dict[str, str]
) -> None:
    (directory / "train.py").write_text(TRAINING + "print('trained')\n")
    job = slurm.run(
        ["sbatch", "--hold", "--parsable", str(SCRIPTS / "train.sbatch")], environ, directory
    ).stdout.strip()
    left(job).mkdir()
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(left(job) / "push.sock"))
        foreign.listen()
        foreign.setblocking(False)
        for path in (left(job) / "push.sock", left(job)):
            path.chmod(0o777)
            os.chown(path, 12345, 12345)
        slurm.run(["scontrol", "release", job])
        eventually(lambda: "JobState=COMPLETED" in slurm.run(["scontrol", "show", "job", job]).stdout)
        with pytest.raises(BlockingIOError):
            foreign.accept()
    printed = (directory / f"slurm-{job}.out").read_text()
    assert "trained\n" in printed
    assert [line for line in printed.splitlines() if line.startswith("job-daemon.sh: ")] == [
        f"job-daemon.sh: {left(job)}: it must be a directory of this user; the training continues without a daemon"
    ]
    assert "to list the runs" not in printed
    shutil.rmtree(left(job))


def test_a_job_that_is_cancelled_stores_its_history_too(slurm: Slurm, directory: Path, environ: dict[str, str]) -> None:
    (directory / "train.py").write_text(
        TRAINING.replace(
            "trackside.finish()", "import pathlib, threading; pathlib.Path('begun').touch(); threading.Event().wait()"
        )
    )
    submitted = slurm.run(["sbatch", "--parsable", str(SCRIPTS / "train.sbatch")], environ, directory)
    job = submitted.stdout.strip()
    eventually((directory / "begun").exists)
    endpoint = f"ipc://{left(job)}/push.sock"
    within = ["srun", f"--jobid={job}", "--overlap", *command("runs", "--json")]
    asked = {**environ, "TRACKSIDE_ENDPOINT": endpoint}
    (run,) = eventually(lambda: json.loads(slurm.run(within, asked).stdout)["runs"])  # in the history within a second
    assert (run["name"], run["state"]) == (f"gpt-small-{job}", "running")
    slurm.run(["scancel", job])
    eventually((directory / "trackside" / job / "gpu1" / "history.db").exists)
    eventually(lambda: slurm.sinfo("--nodes=gpu1", "--format=%T") == "idle")


def listed(slurm: Slurm, *flags: str) -> subprocess.CompletedProcess[str]:
    return slurm.run([sys.executable, str(SCRIPTS / "file_sd.py"), *flags])


def test_the_nodes_are_targets_by_their_names(slurm: Slurm, tmp_path: Path) -> None:
    file = tmp_path / "sd.json"
    done = listed(slurm, "--partition=gpu", "--partition=long", "--label=cluster=a", "--port=9999", f"--output={file}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(file.read_text()) == [
        {"targets": ["127.0.0.1:9999"], "labels": {"instance": "gpu1", "cluster": "a"}},
        {"targets": ["192.0.2.2:9999"], "labels": {"instance": "gpu2", "cluster": "a"}},
    ]
    assert file.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["sd.json"]


def test_a_drained_node_has_its_state(slurm: Slurm) -> None:
    def states() -> dict[str, str]:
        labels = [one["labels"] for one in json.loads(listed(slurm, "--nodes=gpu[1-2]").stdout)]
        return {one["instance"]: one.get("node_state", "") for one in labels}

    assert states() == {"gpu1": "", "gpu2": ""}
    try:
        slurm.run(["scontrol", "update", "nodename=gpu[1-2]", "state=drain", "reason=rma"])
        eventually(lambda: states() == {"gpu1": "drained", "gpu2": "drained"})
    finally:
        slurm.run(["scontrol", "update", "nodename=gpu[1-2]", "state=undrain"])
    eventually(lambda: states() == {"gpu1": "", "gpu2": ""})


def test_without_a_list_the_old_one_stays_and_a_list_without_a_powered_node_is_empty(
    slurm: Slurm, tmp_path: Path
) -> None:
    file = tmp_path / "sd.json"
    file.write_text("old")
    done = listed(slurm, "--partition=nosuch", f"--output={file}")
    assert (done.returncode, file.read_text()) == (1, "old")
    reported = "sinfo lists no node; check the names of the partition and the nodes"
    assert done.stderr == f"file_sd.py: {reported}; {file} is unchanged\n"
    assert listed(slurm, "--nodes=cloud1", f"--output={file}").returncode == 0
    assert json.loads(file.read_text()) == []


@pytest.mark.parametrize(
    ("flags", "status", "reported"),
    [
        (
            ["--output=/nosuch/sd.json"],
            1,
            "file_sd.py: /nosuch/sd.json: no such file or directory; choose another --output\n",
        ),
        (["--label=rack"], 2, "'rack': write NAME=VALUE, such as cluster=a\n"),
        (["--port=99999"], 2, "'99999': a port is between 1 and 65535\n"),
    ],
)
def test_an_error_is_reported_in_one_line(slurm: Slurm, flags: list[str], status: int, reported: str) -> None:
    done = listed(slurm, *flags)
    assert done.returncode == status
    assert done.stderr.endswith(reported)
    assert "Traceback" not in done.stderr


def test_while_slurm_is_away_the_old_list_stays(slurm: Slurm, tmp_path: Path) -> None:
    file = tmp_path / "sd.json"
    file.write_text("[]")
    none = subprocess.run(
        [sys.executable, SCRIPTS / "file_sd.py", f"--output={file}"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert none.stderr == (
        "file_sd.py: sinfo is not on the PATH; run this on a machine with Slurm's commands; " + f"{file} is unchanged\n"
    )
    slurm.stop("slurmctld")
    done = listed(slurm, f"--output={file}")
    assert (done.returncode, file.read_text()) == (1, "[]")
    assert done.stderr.startswith("file_sd.py: sinfo: ")


RESUMED = """
import os, sys, trackside
count = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
for step in range(10):
    trackside.push(step=10 * count + step, loss=1.0)
sys.exit(0 if count else 3)
"""


@pytest.mark.usefixtures("only_soak")
def test_a_job_that_fails_is_requeued(slurm: Slurm, daemon: Daemon, directory: Path, environ: dict[str, str]) -> None:
    """The second start is the next attempt of the same run."""
    (directory / "train.py").write_text(RESUMED)
    batch = "#!/bin/sh\ntrackside run --restart=1 --requeue -- srun python train.py\n"
    (directory / "job.sh").write_text(batch)
    asked = {**environ, "TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_WEB__LISTEN_ADDRESS": "127.0.0.1:0"}
    command = ["sbatch", "--requeue", "--parsable", "--open-mode=append", "--output=job.out", str(directory / "job.sh")]
    job = slurm.run(command, asked, directory).stdout.strip()

    def state() -> str:
        return slurm.run(["scontrol", "show", "job", job]).stdout

    eventually(lambda: "Restarts=1" in state())
    # Slurm holds a requeued job until its credential has expired.
    eventually(lambda: slurm.run(["scontrol", "update", f"JobId={job}", "StartTime=now"]).returncode == 0)
    eventually(lambda: "JobState=COMPLETED" in state(), DEADLINE)
    assert f"job {job} is requeued after crash: exit status 3" in (directory / "job.out").read_text()
    (found,) = [one for one in daemon.api("runs").json()["runs"] if one["job_id"] == job]
    assert (found["attempt"], found["state"], found["step"]) == (1, "finished", 19)
