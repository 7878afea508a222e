"""Trainings with a daemon, several at once, since each spends most of its time in imports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from integrations.in_turn import THEN
from processes import ROOT, Daemon, alarms, clean_environ, start

from trackside_daemon.checkpoints.audit.audit import audit
from trackside_daemon.checkpoints.audit.request import AuditRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TORCHRUN = (
    *("-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"),
    *("--rdzv-endpoint={folder}/meeting", "--rdzv-conf=store_type=file"),
)

DEADLINE = 240.0
"""Seconds: several processes at once import PyTorch and a framework."""


class Trained(NamedTuple):
    """Results of trainings that have ended.

    Attributes:
        daemon: The daemon, still running.
        folder: The folder that was passed for ``{folder}``.
        printed: The output of each; for scripts run by in_turn.py, the output of each script.
        errors: The messages of each process on standard error.
    """

    daemon: Daemon
    folder: Path
    printed: list[str]
    errors: list[str]

    def run(self, name: str) -> dict[str, Any]:
        """Return a run as the API shows it."""
        [run] = [one for one in self.daemon.api("runs").json()["runs"] if one["name"] == name]
        return dict(run)

    def points(self, name: str, key: str, rank: int = 0) -> dict[int, float]:
        """Return the values of a key in the history, of all attempts, by step."""
        page = self.daemon.api(
            f"series?run={self.run(name)['id']}&key={quote(key)}&rank={rank}&by=step&points=0"
        ).json()
        return {step: float(value) for series in page["series"] for step, _, value in series["points"]}

    def layers(self, name: str) -> dict[str, list[str]]:
        """Return the layers that a run has measured, by kind."""
        kinds = self.daemon.api(f"runs/{self.run(name)['id']}/layer-values").json()["kinds"]
        return {kind: list(found["layers"]) for kind, found in kinds.items()}

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Return the events of a run."""
        return [
            one for one in self.daemon.api("events").json()["events"] if one["name"] == name and one["kind"] == kind
        ]

    def intact(self, name: str) -> dict[str, str]:
        """Return the format of each checkpoint of a run in which an audit finds nothing wrong, by the last part of its path."""
        paths = [one["fields"]["path"] for one in self.events(name, "checkpoint")]
        audits = {Path(path).name: audit(AuditRequest(path)) for path in paths}
        return {path: one.format for path, one in audits.items() if not (one.problem or one.unread or one.gone)}

    def alarms(self, name: str) -> dict[str, float]:
        """Return the alerts of a run so far with a severity of warning or critical."""
        return alarms(self.daemon, f'run="{name}"')

    def page(self, name: str) -> dict[str, Any]:
        """Return the API's page of a run, which has no samples."""
        return dict(self.daemon.api(f"runs/{self.run(name)['id']}").json())

    def config(self, name: str) -> dict[str, Any]:
        """Return the stored configuration of a run."""
        return dict(self.page(name)["attempt_list"][0]["config"])


def in_turn(*scripts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments that run scripts one after the other in one process."""
    first, *others = scripts
    return "{root}/tests/integrations/in_turn.py", *first, *(part for one in others for part in (THEN, *one))


@contextmanager
def trained(
    *commands: tuple[str, ...],
    status: tuple[int, ...] = (),
    changed: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Trained]:
    """Run Python with each of the commands at the same time, each in a new directory.

    Each must exit with its *status*, by default 0. *changed* has the texts of scripts to write first, by name in ``{folder}``.
    """
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        folder = Path(directory)
        for name, text in (changed or {}).items():
            (folder / name).write_text(text, "utf-8")
        daemon = Daemon(folder, "--run.linger=1h")
        known = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "OMP_NUM_THREADS": "1", "TRACKSIDE_FLUSH_TIMEOUT": "60"}
        started = [
            start(
                [sys.executable, *(one.format(folder=folder, root=ROOT) for one in command)],
                cwd=tempfile.mkdtemp(dir=folder),
                env=clean_environ({**known, **(environ or {})}),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for command in commands
        ]
        try:
            printed, errors = zip(*(process.communicate(timeout=DEADLINE) for process in started), strict=True)
            ended = tuple(process.returncode for process in started)
            assert ended == (status or (0,) * len(commands)), "\n".join(errors)
            each = [part for text in printed for part in text.split(f"{THEN}\n")]
            yield Trained(daemon, folder, each, list(errors))
        finally:
            for process in started:
                process.kill()
                process.communicate()
            daemon.stop()
