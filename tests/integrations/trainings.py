"""Trainings with a daemon beside them: several at once, since each spends most of its time in imports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diffs import applied, shown
from processes import ROOT, Daemon, clean_environ

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE = 240.0
"""Seconds: several processes at once import PyTorch and a framework."""


class Trained(NamedTuple):
    """What is left of trainings that have ended.

    Attributes:
        daemon: Still there.
        folder: That was passed for ``{folder}``.
        printed: By each of them.
        said: What each has complained of.
    """

    daemon: Daemon
    folder: Path
    printed: list[str]
    said: list[str]

    def run(self, name: str) -> dict[str, Any]:
        """What the API has of a run."""
        [run] = [one for one in self.daemon.api("runs").json()["runs"] if one["name"] == name]
        return dict(run)

    def points(self, name: str, key: str, rank: int = 0) -> dict[int, float]:
        """By step, the values of a key in the history, of all attempts."""
        page = self.daemon.api(f"series?run={self.run(name)['id']}&key={key}&rank={rank}&by=step&points=0").json()
        return {step: float(value) for series in page["series"] for step, _, value in series["points"]}

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        """The events of a run."""
        return [
            one for one in self.daemon.api("events").json()["events"] if one["name"] == name and one["kind"] == kind
        ]

    def config(self, name: str) -> dict[str, Any]:
        """The configuration that is kept with a run."""
        found = self.daemon.api(f"runs/{self.run(name)['id']}").json()
        return dict(found["attempt_list"][0]["config"])


@contextmanager
def trained(
    *commands: tuple[str, ...], status: tuple[int, ...] = (), public: tuple[str, str] | None = None
) -> Iterator[Trained]:
    """Python with each of the arguments at the same time, each in a directory of its own, which have to end with each status; without any, well.

    And, as ``{folder}/changed.py``, a *public* script with the change that a section of docs/integrations.md shows.
    """
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        folder = Path(directory)
        if public is not None:
            script, section = public
            text = (ROOT / "tests" / "public" / script).read_text("utf-8")
            (folder / "changed.py").write_text(applied(shown(section), text), "utf-8")
        daemon = Daemon(folder, "--run.linger=1h")
        environ = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "OMP_NUM_THREADS": "1", "TRACKSIDE_FLUSH_TIMEOUT": "60"}
        started = [
            subprocess.Popen(
                [sys.executable, *(one.format(folder=folder, root=ROOT) for one in command)],
                cwd=tempfile.mkdtemp(dir=folder),
                env=clean_environ(environ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for command in commands
        ]
        try:
            printed, said = zip(*(process.communicate(timeout=DEADLINE) for process in started), strict=True)
            ended = tuple(process.returncode for process in started)
            assert ended == (status or (0,) * len(commands)), "\n".join(said)
            yield Trained(daemon, folder, list(printed), list(said))
        finally:
            for process in started:
                process.kill()
                process.communicate()
            daemon.stop()
