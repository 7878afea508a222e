"""`trackside run -- COMMAND`: the daemon beside a command, and a summary behind it."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from trackside_daemon.cli.commands.run_daemon import Beside, NoDaemonError, Place
from trackside_daemon.cli.commands.run_summary import Launch
from trackside_daemon.cli.signal_forwarding import Signals, Witness
from trackside_daemon.linux.child_process import Command
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.service.config import Config

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""As shells have it."""


def run(command: Sequence[str], config: Config, flags: Sequence[str]) -> int:
    """Run a command to its end, with a daemon beside it if there can be one.

    Args:
        command: The program and what it is given.
        config: Of a daemon that would have to be started.
        flags: The same as a daemon's flags.

    Returns:
        The command's exit status as a shell has it, 126 and 127 where it cannot be started; 128 and the signal's number
        when one has come before it could be.
    """
    if shutil.which(command[0]) is None:
        is_there = os.sep in command[0] and Path(command[0]).exists()  # else it is looked for in $PATH alone
        return _unstarted(command[0], PermissionError() if is_there else FileNotFoundError())
    _open_standard_files()
    signals = Signals()
    witness = Witness(signals.heeded)
    try:
        return _Session(command, signals, witness).run(config, flags)
    finally:
        witness.end()


class _Session:
    """A command and the daemon beside it.

    Args:
        command: The program and what it is given.
        signals: That come here.
        witness: Which of them the command gets too.
    """

    def __init__(self, command: Sequence[str], signals: Signals, witness: Witness) -> None:
        self._command = command
        self._signals, self._witness = signals, witness
        self._launch = uuid4().hex[:16]
        self._died_after: float | None = None

    def run(self, config: Config, flags: Sequence[str]) -> int:
        """All of it; the exit status."""
        place = daemon = None
        try:
            place = Place(config)
            daemon = place.daemon(flags, self._signals)
            say(daemon.line)
        except NoDaemonError as error:
            say(f"no daemon is beside the command: {error}")
        except Exception as error:  # noqa: BLE001  whatever it is, the command has to run
            say(f"no daemon is beside the command: {type(error).__name__}: {error}")
        try:
            if number := self._signals.asked:
                return 128 + number
            return self._run(daemon)
        finally:
            if place is not None:
                place.leave()

    def _run(self, daemon: Beside | None) -> int:
        environ = {"TRACKSIDE_LAUNCH": self._launch}
        if daemon is not None:
            environ["TRACKSIDE_ENDPOINT"] = daemon.endpoint
        try:
            command = Command(self._command, environ)
        except OSError as error:
            return _unstarted(self._command[0], error)
        try:
            status = self._wait(command, daemon)
            self._signals.forget()
            if daemon is not None:
                self._sum_up(daemon)
        finally:
            command.reap()
        return status

    def _sum_up(self, daemon: Beside) -> None:
        try:
            Launch(self._launch, daemon, self._died_after).tell(self._signals, say)
        except Exception as error:  # noqa: BLE001  whatever it is, the exit status is the command's
            say(f"there is no summary: {type(error).__name__}: {error}")

    def _wait(self, command: Command, daemon: Beside | None) -> int:
        """The command's exit status; until then it gets the signals that are meant for it."""
        begun = time.monotonic()
        while (status := command.status) is None:
            number = self._signals.next()
            if self._died_after is None and daemon is not None and daemon.died is not None:
                self._died_after = time.monotonic() - begun
            if number in self._signals.heeded and not self._witness.saw(number):
                command.send(number)
        return status


def _open_standard_files() -> None:
    """Have none of ours take the place of one that the user has closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def _unstarted(program: str, error: OSError) -> int:
    missing = isinstance(error, FileNotFoundError)
    reason = "not found" if missing else "not executable" if isinstance(error, PermissionError) else error.strerror
    say(f"{program}: {reason}")
    return NOT_FOUND if missing else NOT_EXECUTABLE


def say(text: str) -> None:
    """A line on standard error, for standard output is the command's; nobody may be there to read it."""
    with suppress(OSError):
        os.write(2, f"trackside: {shown(text)}\n".encode(errors="backslashreplace"))
