"""A command of `trackside run`, from the start of its daemon to the summary of its runs."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from trackside.auto.environment import variables
from trackside.captures.kineto import SOCKET, socket_directory
from trackside.environment.paths import machine_id, orphan_directories
from trackside.os_errors import os_error_text
from trackside.transport.orphaned_spool import OrphanedSession, orphaned_hellos, orphaned_sessions
from trackside.transport.sender import now
from trackside_daemon.captures.kineto.environment import missing_variables
from trackside_daemon.captures.kineto.socket_file import remove_stale
from trackside_daemon.cli.run import nccl_inspector
from trackside_daemon.cli.run.command_daemon import NoDaemonError, SharedDaemon
from trackside_daemon.cli.run.follower import AUTOMATIC, BEHIND
from trackside_daemon.cli.run.nothing_found import why_nothing
from trackside_daemon.cli.run.restarts import CommandEnd, CommandStart
from trackside_daemon.cli.run.signal_forwarding import GroupProbe, Signals
from trackside_daemon.cli.run.summary import CommandSummary, RunFacts
from trackside_daemon.linux.child_process import ChildProcess, Command
from trackside_daemon.model.text import duration, shown
from trackside_daemon.training.end_state import Exit, verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from trackside_daemon.cli.run.command_daemon import CommandDaemon
    from trackside_daemon.cli.run.console import ConsoleCopy
    from trackside_daemon.cli.run.restarts import Restarts, StopOn
    from trackside_daemon.cli.run.trouble_watch import CommandTrouble, TroubleWatch
    from trackside_daemon.linux.job_processes import JobProcesses
    from trackside_daemon.service.config import Config

NOT_EXECUTABLE = 126  # exit status, as in shells
NOT_FOUND = 127  # exit status, as in shells
STOPPED = 79  # exit status after an alert of --stop-on, beyond those of sysexits.h
REQUEUED = 75  # exit status of a command whose job Slurm starts again: sysexits.h's EX_TEMPFAIL
TERMINATION_SECONDS = 30.0  # between SIGTERM and SIGKILL, for a command that is ended because of a trouble
MAX_CAUSE = 4096  # characters of the cause that the next start gets
FOLLOWER = "trackside_daemon.cli.run.follower"
FOLLOWER_SECONDS = 30.0  # time limit for the rest of followed files, after the command's end


class RunOptions(NamedTuple):
    """The services of `trackside run` beside its command."""

    # Directories to follow besides those in the working directory; None to follow nothing.
    follow: Sequence[str] | None = None
    auto: bool = False  # find values in trainings that do not use trackside
    console: bool = False  # keep what the command prints
    restarts: Restarts | None = None  # decides on restarts; None for none
    # Are appended to the command when it starts again; ``{checkpoint}`` is replaced in them.
    restart_arguments: Sequence[str] = ()
    requeue: str = ""  # id of the Slurm job that is requeued in place of a restart; empty for none
    stop_on: Sequence[StopOn] = ()  # alerts that end the command
    inspector: str = ""  # path of the library of NCCL's Inspector; empty for none


def run(command: Sequence[str], config: Config, flags: Sequence[str], options: RunOptions = RunOptions()) -> int:  # noqa: B008
    """Run a command to its end, with a daemon if possible.

    Args:
        command: The program and its arguments.
        config: The configuration of a daemon that has to be started.
        flags: The same as flags of `trackside daemon`.
        options: What else to do.

    Returns:
        The command's exit status as in shells; 126 or 127 if it cannot be started; 128 plus the number of a signal that
        arrived before the start; `STOPPED`.
    """
    if shutil.which(command[0]) is None:
        exists = os.sep in command[0] and Path(command[0]).exists()  # a bare name is searched in $PATH only
        return _report_unstarted(command[0], PermissionError() if exists else FileNotFoundError())
    signals = Signals()
    probe = GroupProbe(signals.handled)
    try:
        return _Session(command, signals, probe, options).run(config, flags)
    finally:
        probe.close()
        signals.close()


class _Session:
    """A command and its daemon.

    Args:
        command: The program and its arguments.
        signals: The signals that this process receives.
        probe: Reports those that the command receives, too.
        options: See `run`.
    """

    def __init__(self, command: Sequence[str], signals: Signals, probe: GroupProbe, options: RunOptions) -> None:
        self._command = command
        self._options = options
        self._signals = signals
        self._probe = probe
        self._launch = uuid4().hex[:16]
        self._died_after: float | None = None
        self._found: CommandTrouble | None = None
        self._trouble: CommandTrouble | None = None  # for which the command was ended
        self._doubted: set[tuple[str, float]] = set()  # checkpoints that no later start goes on from, by path and time
        self._is_interrupted = False
        self._is_requeued = False

    def run(self, config: Config, flags: Sequence[str]) -> int:
        """Run daemon and command, and return the exit status."""
        shared = daemon = None
        try:
            own = ["--otlp.endpoint=127.0.0.1:0"] if self._options.inspector and not config.otlp.endpoint else []
            shared = SharedDaemon(config, own)
            daemon = shared.find_or_start(flags, self._signals)
            report(daemon.line)
        except NoDaemonError as error:
            report(f"the command runs without a daemon: {error}")
        except Exception as error:  # noqa: BLE001  the command must run in any case
            report(f"the command runs without a daemon: {type(error).__name__}: {error}")
        try:
            if number := self._signals.ending:
                return 128 + number
            return self._run(daemon)
        finally:
            if shared is not None:
                shared.release()

    def _run(self, daemon: CommandDaemon | None) -> int:
        """Start the command, and again after an end that asks for it; return the exit status of the last start."""
        environ = {"TRACKSIDE_LAUNCH": self._launch}
        environ |= variables(os.environ) if self._options.auto else {}
        if daemon is not None:
            environ["TRACKSIDE_ENDPOINT"] = daemon.endpoint
            if daemon.endpoint.startswith("ipc://"):
                environ |= missing_variables(_profiler_directory(daemon), self._command, os.environ)
            environ |= self._inspector_variables(daemon)
        start = first = CommandStart(self._command, environ)
        while True:
            since = time.time()
            console = self._open_console(daemon) if self._options.console else None
            try:
                command = Command(start.command, start.environ, None if console is None else console.streams)
            except OSError as error:
                return _report_unstarted(self._command[0], error)
            try:
                status = self._run_once(command, daemon, console, since, environ)
                again = None if self._is_interrupted or self._trouble_stops else self._next_start(first, status, daemon)
                if again is None:
                    if daemon is not None:
                        self._summarize(daemon, command.code or 0)
                    # A command may answer SIGTERM by status 0, and it is not complete all the same.
                    ended = status or int(self._trouble is not None)
                    restarts = self._options.restarts
                    if restarts is not None and (line := restarts.line(time.monotonic(), failed=bool(ended))):
                        report(line)
                    return STOPPED if self._trouble_stops else REQUEUED if self._is_requeued else ended
                start = again
            finally:
                # After the summary, because before Linux 6.15 the daemon reads from the zombie how the command ended.
                command.reap()

    def _inspector_variables(self, daemon: CommandDaemon) -> dict[str, str]:
        """Return the variables of NCCL's Inspector; none without its library, or if the daemon does not accept its numbers."""
        try:
            status = daemon.source.status() if self._options.inspector and daemon.source is not None else {}
        except Exception as error:  # noqa: BLE001  the command must run in any case
            report(f"--nccl-inspector: {type(error).__name__}: {error}")
            return {}
        return nccl_inspector.variables(self._options.inspector, status)

    def _run_once(
        self,
        command: Command,
        daemon: CommandDaemon | None,
        console: ConsoleCopy | None,
        since: float,
        environ: Mapping[str, str],
    ) -> int:
        """Run a start of the command to its end, and return its exit status."""
        if console is not None:
            console.start()
        follower = None if daemon is None or self._options.follow is None else self._start_follower(since, environ)
        restarts, self._found, self._trouble = self._options.restarts, None, None
        ours = {child.pid for child in (follower, daemon and daemon.child) if child is not None}
        processes = self._processes(command, ours)
        watch = None if processes is None else self._watch(daemon, processes)
        status = self._wait(command, daemon, processes)
        self._is_interrupted = bool(self._signals.ending)
        self._signals.clear()
        if watch is not None:
            watch.stop()
        kind = "crash" if self._trouble is None else self._trouble.kind
        wanted = restarts is not None and not self._is_interrupted and restarts.may_answer(kind, status)
        if processes is not None and (wanted or self._trouble is not None):
            processes.end(TERMINATION_SECONDS, lambda: self._signals.ending)
        if console is not None:
            console.stop()
        if follower is not None:
            follower.stop(FOLLOWER_SECONDS, signal.SIGUSR1 if status else signal.SIGTERM)
        hand_over(command, self._launch, "" if daemon is None else daemon.endpoint)
        return status

    def _start_follower(self, since: float, environ: Mapping[str, str]) -> ChildProcess | None:
        """Start the process that follows files; the command runs without it if that fails."""
        places = [str(since), AUTOMATIC, *(self._options.follow or ())]
        try:
            return ChildProcess(FOLLOWER, *places, BEHIND, *self._command, environ=environ, mute=True)
        except OSError as error:
            report(f"--follow: nothing is followed: {error}")
            return None

    def _open_console(self, daemon: CommandDaemon | None) -> ConsoleCopy | None:
        """Return what keeps the output beside the history; without it the command runs all the same."""
        try:
            from trackside_daemon.cli.run.console import ConsoleCopy  # needs no import without the flag

            if daemon is None or (daemon.history is None and daemon.source is None):
                raise OSError("no daemon is known that has a history")  # noqa: TRY301
            directory = daemon.history or Path(str(daemon.source and daemon.source.status()["storage_path"]))
            return ConsoleCopy(directory, self._launch)
        except Exception as error:  # noqa: BLE001  the command must run in any case
            report(f"--console: the output is not kept: {os_error_text(error) or type(error).__name__}")
            return None

    def _summarize(self, daemon: CommandDaemon, code: int) -> None:
        try:
            nothing = why_nothing(self._command, code, auto=self._options.auto)
            CommandSummary(self._launch, daemon, self._died_after, nothing).report(self._signals, report)
        except Exception as error:  # noqa: BLE001  the exit status must be the command's in any case
            report(f"no summary: {type(error).__name__}: {error}")

    def _wait(self, command: Command, daemon: CommandDaemon | None, processes: JobProcesses | None) -> int:
        """Forward signals to the command until it ends, and return its exit status; end it if it is in trouble."""
        begun = time.monotonic()
        ends_until = 0.0
        while (status := command.status) is None:
            left = max(0.0, ends_until - time.monotonic()) if ends_until else None
            number = self._signals.get(left)
            if self._died_after is None and daemon is not None and daemon.died is not None:
                self._died_after = time.monotonic() - begun
                remove_stale(_profiler_directory(daemon) / SOCKET)  # with SIGKILL it leaves it, and so may its worker
            if number in self._signals.handled and not self._probe.received(number):
                command.send(number)
            if processes is None:
                continue
            if self._found is not None and not ends_until:
                self._trouble = self._found  # one that is found after the command's end has not ended it
                report(f"{self._trouble.line}; the command is ended")
                processes.send(signal.SIGTERM)
                ends_until = time.monotonic() + TERMINATION_SECONDS
            elif ends_until and time.monotonic() >= ends_until:
                processes.send(signal.SIGKILL)
                ends_until = time.monotonic() + TERMINATION_SECONDS
        return status

    @property
    def _trouble_stops(self) -> bool:
        return self._trouble is not None and self._trouble.kind == "stop"

    def _processes(self, command: Command, others: Collection[int]) -> JobProcesses | None:
        """Return the command's processes; None if nothing is going to end them."""
        if self._options.restarts is None and not self._options.stop_on:
            return None
        from trackside_daemon.linux.job_processes import JobProcesses  # needs no import without the flags

        return JobProcesses(command.pid, self._launch, others)

    def _watch(self, daemon: CommandDaemon | None, processes: JobProcesses) -> TroubleWatch | None:
        """Return what watches the command's runs for a trouble; None if nothing is wanted, or the daemon is not known."""
        restarts, stop_on = self._options.restarts, self._options.stop_on
        kinds = frozenset() if restarts is None else restarts.kinds - {"crash"}
        if not (kinds or stop_on):
            return None
        if daemon is None or daemon.source is None:
            report("hangs and alerts end nothing, because no daemon is known that could be asked")
            return None
        from trackside_daemon.cli.run.trouble_watch import TroubleWatch

        def found(trouble: CommandTrouble) -> None:
            self._found = trouble
            self._signals.wake()

        return TroubleWatch(daemon.source, self._launch, processes, found, kinds=kinds, stop_on=stop_on)

    def _next_start(self, first: CommandStart, status: int, daemon: CommandDaemon | None) -> CommandStart | None:
        try:
            return self._next(first, status, daemon)
        except Exception as error:  # noqa: BLE001  the exit status must be the command's in any case
            report(f"not restarted: {type(error).__name__}: {error}")
            return None

    def _pause(self, seconds: float) -> bool:
        """Wait, and return whether no signal came that ends a job."""
        until = time.monotonic() + seconds
        while not self._signals.ending and (left := until - time.monotonic()) > 0:
            self._signals.get(left)
        return not self._signals.ending

    def _next(self, first: CommandStart, status: int, daemon: CommandDaemon | None) -> CommandStart | None:
        """Return the next start of the command, after a pause; None for none."""
        restarts = self._options.restarts
        if restarts is None or not (status or self._trouble):
            return None
        trouble = self._trouble
        summary = None if daemon is None else CommandSummary(self._launch, daemon, self._died_after, "")
        facts = RunFacts() if summary is None else summary.facts(self._signals, report, trouble.run if trouble else "")
        if self._signals.ending:
            return None
        kind, cause = ("crash", facts.cause) if trouble is None else (trouble.kind, trouble.text)
        end = CommandEnd(kind, status or 1, cause, facts.step, time.monotonic())
        decision = restarts.after(end)
        if decision.pause is None:
            if decision.reason:
                report(decision.reason)
            return None
        if self._options.requeue:
            self._is_requeued = _requeue(self._options.requeue, f"{kind}: {end.text}")
            return None
        checkpoint, skipped = facts.checkpoint(trouble, self._doubted) if facts.run else ("", [])
        for text in skipped:
            report(text)
        if facts.run and not checkpoint:
            report("no intact checkpoint of its run is known: the next start decides where it begins")
        number = len(restarts.ends) + 1
        where = f" from {checkpoint}" if checkpoint else ""
        report(f"restart {number} of {restarts.most} in {duration(decision.pause)}{where}, after {kind}: {end.text}")
        if not self._pause(decision.pause):
            return None
        restarts.ends.append(end)
        again = first.again(self._options.restart_arguments, checkpoint)
        environ = {"TRACKSIDE_RESTART": shown(f"{number}: {end.text}")[:MAX_CAUSE]}  # a NUL would be refused
        # Of several runs, such as folds, the next start begins with the first again.
        if facts.runs == 1 and not os.environ.get("TRACKSIDE_RUN_ID"):
            environ |= {"TRACKSIDE_RUN_ID": facts.run, "TRACKSIDE_RESTARTED_RUN": facts.name}
        return again._replace(environ={**again.environ, **environ})


def _requeue(job: str, why: str) -> bool:
    """Have Slurm start a job again, and return whether it will."""
    try:
        failed = Command(["scontrol", "requeue", job], {}).reap()
    except OSError as error:
        report(f"job {job} is not requeued: scontrol: {os_error_text(error)}")
        return False
    report(f"job {job} is {'not ' if failed else ''}requeued after {why}")
    return not failed


def hand_over(command: Command, launch: str, endpoint: str) -> None:
    """Write how a command ended into the spools that its own process left, for the next daemon, which did not see it.

    Args:
        command: It has ended.
        launch: The id of the launch, which its sessions name.
        endpoint: That of its daemon; empty without one.
    """
    end = partial(verdict, ended=Exit(command.code))
    with suppress(LookupError, OSError, ValueError):  # there is no home, or a spool cannot be read or written
        places, machine = orphan_directories(endpoint), machine_id()
        hellos = {session: hello for session, hello, _ in orphaned_hellos(places, machine)}
        own = {
            session
            for session, hello in hellos.items()
            if hello.identity.pid == command.pid and hello.about is not None and hello.about.launch == launch
        }
        others = {place / f"{session.hex()}.lock" for place in places for session in hellos.keys() - own}
        # Of two spools of a session, the end belongs behind the rows that were kept, which are read last.
        last: dict[bytes, OrphanedSession] = {}
        for orphan in orphaned_sessions(places, machine, others) if own else ():
            if orphan.id in last:
                last[orphan.id].spool.close()
            last[orphan.id] = orphan
        for orphan in last.values():
            try:
                orphan.conclude(now(), end)
            finally:
                orphan.spool.close()


def _profiler_directory(daemon: CommandDaemon) -> Path:
    return socket_directory(Path(daemon.endpoint.removeprefix("ipc://")))


def _report_unstarted(program: str, error: OSError) -> int:
    missing = isinstance(error, FileNotFoundError)
    denied = "not executable" + (f"; use python {program}" if program.endswith(".py") else "")
    reason = "not found" if missing else denied if isinstance(error, PermissionError) else error.strerror
    report(f"{program}: {reason}")
    return NOT_FOUND if missing else NOT_EXECUTABLE


def report(text: str) -> None:
    """Write a line to standard error, because standard output is the command's; a closed one is ignored."""
    with suppress(OSError):
        os.write(2, f"trackside: {shown(text)}\n".encode(errors="backslashreplace"))
