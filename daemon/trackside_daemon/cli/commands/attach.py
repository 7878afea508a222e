"""The command attach."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trackside_daemon.cli.errors import CommandError, errors_reported
from trackside_daemon.cli.options import argument, option
from trackside_daemon.cli.output import print_lines
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.cli.attach.target import AttachedProcess


def attach(
    pid: Annotated[int, argument("PID", "The process.", min=1)],
    *,
    name: Annotated[str, option("NAME", "Name of the run. [default: that of its script]")] = "",
) -> None:
    """Monitor a running process that was started without trackside: its resources, GPUs and stacks.

    From Python 3.14 on, its steps and losses too, as trackside run --auto finds them: the client starts in the
    process, and the command ends. Else it reports the process until that ends, or until Ctrl-C.
    """
    with errors_reported():
        from trackside.environment.discovery import find
        from trackside_daemon.cli.attach.injection import InjectionError, begin_inside
        from trackside_daemon.cli.attach.target import read_target
        from trackside_daemon.cli.sources.daemon_lookup import find_daemon

        target = read_target(pid)
        daemon = find_daemon("")
        for process in daemon.processes():
            if process["pid"] == pid:
                raise CommandError(
                    f"process {pid} belongs to run {process['run']} already: trackside show {process['run']}"
                )
        endpoint = find(None, os.environ)[0]
        if endpoint is None:
            raise CommandError(f"the daemon at {daemon.url} has no socket for pushes here")
        try:
            run = begin_inside(target, endpoint)
        except InjectionError as error:
            _speak_for(target, endpoint, name, str(error))
        else:
            print_lines([f"run {run}: the process pushes by itself now; trackside show {run}"])


def _speak_for(target: AttachedProcess, endpoint: str, name: str, why: str) -> None:
    from trackside_daemon.cli.attach.proxy import Proxy

    try:
        proxy = Proxy(target, endpoint, name)
    except OSError:
        raise CommandError(f"process {target.pid} has just ended") from None
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: stopped.append(received))
    print_lines(map(shown, _possible(target, endpoint, proxy.session.identity.name, why)))
    proxy.wait(lambda: bool(stopped))


def _possible(target: AttachedProcess, endpoint: str, run: str, why: str) -> Iterator[str]:
    from trackside.captures.kineto import socket_directory, variables
    from trackside_daemon.cli.attach.injection import way

    yield f"run {run}: process {target.pid}, until it ends; Ctrl-C stops this command alone"
    yield f"process and GPUs: trackside show {run}, and the dashboard"
    yield f"steps and losses: not possible: {why}; restart it under trackside run --auto"
    yield f"stacks: {way(target)}"
    place = socket_directory(Path(endpoint.removeprefix("ipc://"))) if endpoint.startswith("ipc://") else None
    wanted = {} if place is None else variables(place)
    if place is not None and all(
        target.environ.get(key) == wanted[key] for key in ("KINETO_USE_DAEMON", "KINETO_IPC_SOCKET_DIR")
    ):
        yield f"captures: trackside capture {run}"
    else:
        yield "captures: only of stacks: it was started without $KINETO_USE_DAEMON for this daemon, as trackside run sets it"
