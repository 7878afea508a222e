"""A run on behalf of a process: its session is one of this command, which lives as long as the process."""

import os
import select
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from trackside.captures.answers import ANSWERS, AnswerKind
from trackside.environment.git import commit
from trackside.environment.identity import identify, visible_gpus
from trackside.environment.process_info import command, correlation
from trackside.redact import redact_command
from trackside.totals.resources import ResourceMonitor
from trackside.transport.sender import Sender
from trackside.transport.session import Session
from trackside.wire import Flight, ProcessInfo, Stacks
from trackside_daemon.cli.attach.injection import stacks
from trackside_daemon.cli.attach.target import PROC, AttachedProcess
from trackside_daemon.linux.process_exit import exit_code, signal_name

FLUSH_SECONDS = 2.0
WAIT_SECONDS = 0.5  # how often a signal is noticed
UNKNOWN = "its exit status is unknown to trackside attach"


class Proxy:
    """The session of a process that this command speaks for.

    Args:
        target: The process.
        endpoint: The daemon's endpoint for pushes.
        name: Name of the run; empty for that of the process's script.

    Raises:
        OSError: The process has ended.
    """

    def __init__(self, target: AttachedProcess, endpoint: str, name: str) -> None:
        self._target = target
        self._pidfd = os.pidfd_open(target.pid)
        script = Path(target.script)
        identity = identify(name or target.environ.get("TRACKSIDE_RUN_NAME") or script.stem, None, target.environ)
        self.session = Session(
            replace(
                identity,
                pid=target.pid,
                start=target.start,
                gpus=visible_gpus(target.environ, identity.local_rank),
                git_commit=commit(str(Path(target.directory, script))),
                framework="",
            ),
            about=ProcessInfo(
                command=tuple(redact_command(command(target.command))),
                directory=target.directory,
                python=".".join(map(str, target.version)),
                correlation=correlation(target.environ),
            ),
            resources=ResourceMonitor(pid=target.pid),
        )
        # The questions are about the process, and so are the answers.
        ANSWERS["stacks?"] = AnswerKind("stacks", lambda _: Stacks(stacks(target)), is_slow=True)
        ANSWERS["flight?"] = AnswerKind("flight", lambda _: Flight(stacks(target)), is_slow=True)
        self._sender = Sender(endpoint)
        self._sender.add(self.session)

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Wait until the process has ended or *stopped* returns true, and end the run."""
        while not stopped():
            if select.select([self._pidfd], [], [], WAIT_SECONDS)[0]:
                self._end(*self._outcome())
                return
        self._end("stopped", "trackside attach was stopped; the process runs on")

    def _outcome(self) -> tuple[str, str]:
        code = exit_code(self._pidfd, self._target.pid, self._target.start, PROC)
        if code is None:
            return "stopped", UNKNOWN
        return ("finished", "") if code == 0 else ("failed", signal_name(-code) if code < 0 else f"exit status {code}")

    def _end(self, status: str, cause: str) -> None:
        end = partial(self._sender.end, self.session, status, cause, provisional=False)
        end(timeout=FLUSH_SECONDS)
        self._sender.stop(FLUSH_SECONDS)
        os.close(self._pidfd)
