"""A loop in a shell that restarts a training from its newest intact checkpoint."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from processes import DEADLINE, clean_environ, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from processes import Daemon

LOOP = """
trackside() { "$PYTHON" -m trackside_daemon "$@"; }
for start in 1 2 3; do
    "$PYTHON" train.py "$(trackside checkpoints latest loop-1 --good)" && exit
    echo restart
done
exit 1
"""
TRAINING = """
import json, os, pathlib, random, signal, sys, time, zipfile
import trackside

run = trackside.init("loop")
done = 0
if sys.argv[1]:
    with zipfile.ZipFile(sys.argv[1]) as archive:
        done = json.loads(archive.read("archive/data.pkl"))
print(f"from {done}", flush=True)
for step in range(done + 1, 41):
    run.push(loss=4 / step + random.random() / 10, step=step)
    if step % 10 == 0:
        path = os.path.abspath(f"step-{step}.pt")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", json.dumps(step))
            archive.writestr("archive/data/0", os.urandom(100_000))
        run.event("checkpoint", path=path)
        if step == 30 and not done:
            while not os.path.exists("crash"):
                time.sleep(0.02)
            os.truncate(path, 50_000)  # what was not synced
            os.kill(os.getpid(), signal.SIGKILL)
"""


def steps(daemon: Daemon) -> list[int]:
    """Return the steps of the checkpoints that the daemon knows of."""
    answer = daemon.api("runs/loop-1/checkpoints")
    return [one["step"] for one in answer.json()["checkpoints"]] if answer.is_success else []


def test_a_loop_resumes_from_the_checkpoint_before_the_torn_one(daemon: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "training"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    known = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "TRACKSIDE_RUN_ID": "loop-1", "PYTHON": sys.executable}
    streams: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(["sh", "-c", LOOP], cwd=folder, env=clean_environ(known), text=True, **streams) as loop:
        try:
            eventually(lambda: steps(daemon) == [10, 20, 30])
            (folder / "crash").touch()
            printed, reported = loop.communicate(timeout=DEADLINE)
        except BaseException:
            loop.kill()
            raise
    assert (loop.returncode, printed.split("\n")) == (0, ["from 0", "restart", "from 20", ""]), reported
    assert f"trackside: {folder}/step-30.pt is skipped: step-30.pt: " in reported
    assert "Traceback" not in reported
    (verdict,) = eventually(lambda: daemon.api("runs/loop-1").json()["resumes"])
    assert verdict["text"].startswith("attempt 1 goes on after step 20 of 30, ")
    assert "10 steps " in verdict["text"]
