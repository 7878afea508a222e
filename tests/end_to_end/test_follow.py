"""Following what scripts write for TensorBoard: `trackside run --follow`, and a follower that is restarted."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING

import processes
from bridges.directories import events, file_name
from processes import ROOT, clean_environ, command, eventually

from trackside_daemon.bridges.following import Follower
from trackside_daemon.cli.run.follower import stored_in_daemon
from trackside_daemon.cli.sources.api_source import ApiSource
from trackside_daemon.questions import table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    from processes import Daemon

SCRIPT = """
import sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from bridges.directories import events, file_name
begin = int(time.time()) - 5
for end in (5, 20, 31):  # it grows, as a file that a writer flushes now and then
    events(Path("runs/exp", file_name(begin)), range(end), "train/loss", begin)
    time.sleep(0.3)
sys.exit(3)
"""


def test_a_script_without_a_line_for_trackside_becomes_a_run_with_the_status_of_the_command(place: Path) -> None:
    events(place / "runs" / "older" / file_name(), range(3))
    os.utime(place / "runs" / "older" / file_name(), (1.0, 1.0))
    (place / "train.py").write_text(
        SCRIPT.format(path=[str(ROOT / "tests"), str(ROOT / "daemon"), str(ROOT / "client")])
    )
    environ = clean_environ({"XDG_RUNTIME_DIR": str(place), "TRACKSIDE_STORAGE__PATH": str(place / "history")})
    listen = "--web.listen-address=127.0.0.1:0"
    done = processes.run(command("run", listen, "--follow", "--", sys.executable, "train.py"), cwd=place, env=environ)
    assert done.returncode == 3
    assert "trackside: exp: failed, step 30 after" in done.stderr, done.stderr
    assert "loss 15, 1 s per step" in done.stderr or "loss 15" in done.stderr
    assert "older" not in done.stderr
    shown = processes.run(command("show", "exp"), env=environ, check=True).stdout
    assert "train/loss" in shown
    of_command = rf"^command +{re.escape(sys.executable)}\s+train\.py$"  # and not that of the process that follows
    assert re.search(of_command, shown, re.MULTILINE), shown
    refused = processes.run(command("run", "--follow", "--log.level=info", "--", "true"), env=environ)
    assert (refused.returncode, refused.stderr) == (
        2,
        "trackside: --follow --log.level=info: a directory is expected; without one, put --follow right before --\n",
    )


def test_a_follower_that_is_restarted_pushes_only_what_is_new(
    start_daemon: Callable[..., Daemon], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", daemon.endpoint)
    source = ApiSource(daemon.url, (place / "push.token").read_text().strip())
    begin = int(time.time()) - 100
    path = place / "runs" / "exp" / file_name(begin)
    warnings: list[str] = []
    for end in (30, 70):
        events(path, range(end), at=begin)
        with path.open("ab") as file:
            file.write(b"torn")
        follower = Follower([str(place / "runs")], {}, stored_in_daemon(source), warnings.append)
        assert follower.poll() == end - 30 if end > 30 else 30
        assert follower.close("stopped") == ["exp"]

    def counted() -> dict[str, int]:
        (run,) = source.ask(table.Runs())["runs"]
        return {
            f"{one['attempt']} {one['key']}": one["count"] for one in source.ask(table.Run(id=run["id"]))["metrics"]
        }

    eventually(lambda: counted() == {"0 loss": 30, "1 loss": 40})
    (series,) = source.ask(table.Series(run=("exp",), key=("loss",), points=0, attempt=1))["series"]
    points = series["points"]
    assert [point[0] for point in points] == list(range(30, 70))
    assert all(abs(time_ - begin - step) < 0.01 for step, time_, _ in points)
    assert warnings == []
