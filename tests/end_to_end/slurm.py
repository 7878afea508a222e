"""Debian's own Slurm as processes: a controller, and one node on this machine; others are down, or powered off."""

from __future__ import annotations

import os
import pwd
import re
import socket
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

from processes import DEADLINE, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={place}/controller
SlurmdSpoolDir={place}/node
SlurmctldPidFile={place}/controller.pid
SlurmdPidFile={place}/node.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PrologFlags=Alloc
Prolog={prolog}
Epilog={epilog}
TaskProlog={task_prolog}
MessageTimeout=5
SuspendProgram=/bin/true
ResumeProgram=/bin/true
NodeName=gpu1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8
NodeName=gpu2 NodeAddr=192.0.2.2 CPUs=8 State=DOWN
NodeName=cloud1 CPUs=8 State=CLOUD
NodeName=login1 NodeAddr=192.0.2.9 CPUs=8 State=DOWN
PartitionName=gpu Nodes=gpu[1-2],cloud1 Default=YES
PartitionName=long Nodes=gpu1
PartitionName=other Nodes=login1
SlurmdParameters=config_overrides
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class Slurm:
    """A cluster that runs until it is stopped.

    Args:
        place: An empty directory with a short path.
        prolog: The script that slurmd runs before a job; likewise the others.
        epilog: The script after a job.
        task_prolog: The script before each task.

    Attributes:
        environ: The variables that Slurm's commands need.
    """

    def __init__(self, place: Path, prolog: Path, epilog: Path, task_prolog: Path) -> None:
        self._place = place
        for name in ("controller", "node"):
            (place / name).mkdir()
        config = place / "slurm.conf"
        config.write_text(
            CONFIG.format(
                host=socket.gethostname().partition(".")[0],
                ports=(_free_port(), _free_port()),
                user=pwd.getpwuid(os.getuid()).pw_name,
                place=place,
                prolog=prolog,
                epilog=epilog,
                task_prolog=task_prolog,
            )
        )
        self.environ = {"SLURM_CONF": str(config)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        with ExitStack() as undo:
            undo.callback(self.stop)
            self._start("slurmctld", "-D", "-c")
            self._start("slurmd", "-D", "-N", "gpu1")
            eventually(lambda: self.sinfo("--nodes=gpu1", "--format=%T") == "idle")
            undo.pop_all()

    def _start(self, *command: str) -> None:
        with (self._place / f"{command[0]}.log").open("wb") as log:
            self._processes[command[0]] = subprocess.Popen(
                command, env={**os.environ, **self.environ}, stdout=log, stderr=log, start_new_session=True
            )

    def sinfo(self, *flags: str) -> str:
        """Return the output of sinfo without its header."""
        return self.run(["sinfo", "--noheader", *flags]).stdout.strip()

    def run(
        self, command: list[str], environ: Mapping[str, str] = os.environ, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command with this cluster's environment."""
        return subprocess.run(
            command,
            env={**environ, **self.environ},
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )

    def submit(self, directory: Path, script: str | Path, environ: Mapping[str, str], *flags: str) -> str:
        """Submit a batch script, by its path or its text, and wait for its end; return the job's id."""
        if isinstance(script, str):
            (directory / "job.sh").write_text(script)
            script = directory / "job.sh"
        command = ["sbatch", "--wait", "--parsable", "--output=job.out", *flags, str(script)]
        done = self.run(command, environ, directory)
        printed = (directory / "job.out").read_text() if (directory / "job.out").exists() else self.log()
        assert done.returncode == 0, done.stderr + printed
        return done.stdout.strip()

    def log(self) -> str:
        """Return the logs of the cluster's processes."""
        return "".join(path.read_text(errors="replace") for path in self._place.glob("*.log"))

    def reason(self) -> str:
        """Return the reason why Slurm would give the node no further job; empty if it would."""
        found = re.search("Reason=(.*)", self.run(["scontrol", "show", "node", "gpu1"]).stdout)
        return found[1] if found is not None else ""

    def stop(self, *names: str) -> None:
        """End its processes, or those that are named."""
        for name in names or list(self._processes):
            process = self._processes.pop(name)
            process.terminate()
            process.wait(DEADLINE)
