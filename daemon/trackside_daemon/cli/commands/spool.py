"""The commands of spools: list them, and send those of ended processes to a daemon."""

import logging
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from trackside.environment.discovery import find
from trackside.environment.paths import spool_directories
from trackside.transport.orphaned_spool import orphaned_hellos
from trackside.transport.sender import Sender
from trackside_daemon.cli.errors import fail, warn
from trackside_daemon.cli.options import argument, option
from trackside_daemon.cli.output import print_lines
from trackside_daemon.documents.text import table
from trackside_daemon.model.text import byte_size, shown

CONNECT_SECONDS = 5.0

app = typer.Typer(
    help="Spools: samples that training jobs stored on disk while no daemon was running.",
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback(epilog="\b\nExample: trackside spool list")
def spool() -> None:
    """Spools: samples that training jobs stored on disk while no daemon was running."""


@app.command("list", epilog="\b\nExample: trackside spool list")
def list_(
    places: Annotated[list[Path] | None, argument("DIR", "Directories of spools. [default: your own]")] = None,
) -> None:
    """List the sessions in spools, oldest first: their run, rank, size and directory.

    A session whose process still runs, or that cannot be read, has no run.
    """
    rows = []
    wanted = _places(places)
    hellos = {session.hex(): hello.identity for session, hello, _ in orphaned_hellos(wanted, None)}
    for place in wanted:
        sizes: dict[str, int] = {}
        for file in sorted(place.glob("*.spool"), key=lambda path: path.stat().st_mtime):
            session = file.name.partition(".")[0]
            sizes[session] = sizes.get(session, 0) + file.stat().st_size
        for session, size in sizes.items():
            identity = hellos.get(session)
            run = ["-", "-"] if identity is None else [shown(identity.name), str(identity.rank)]
            rows.append([session[:12], *run, byte_size(size), shown(str(place))])
    if rows:
        print_lines(table(["SESSION", "RUN", "RANK", "SIZE", "DIRECTORY"], rows, right="<<>><", flexible=" ~  ~"))
    else:
        warn("no session waits")


@app.command(epilog="\b\nExample: trackside spool send ~/.local/state/trackside/MACHINE-ID/spool")
def send(
    places: Annotated[list[Path] | None, argument("DIR", "Directories of spools. [default: your own]")] = None,
    *,
    endpoint: Annotated[
        str,
        option(
            "ENDPOINT",
            "Endpoint of the daemon, ipc:///PATH or tcp://HOST:PORT. [default: the one that training jobs find]",
            "--endpoint",
        ),
    ] = "",
) -> None:
    """Send spools to a daemon, for example those of another machine in a shared directory, and delete them.

    A daemon reads the spools of its machine and its user without this command.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    wanted = _places(places)
    found, failures = find(endpoint or None, os.environ)
    if found is None:
        fail(f"no daemon found at {', '.join(failures)}; start one, or give another with --endpoint")
    waiting = {path.name.partition(".")[0] for place in wanted for path in place.glob("*.spool")}
    sender = Sender(found, spools=wanted)
    try:
        _wait(sender, found)
    except KeyboardInterrupt:
        typer.echo("interrupted; what is not sent yet stays in the spool", err=True)
    finally:
        sender.stop(2.0)
    # Without the spools that jobs have begun meanwhile.
    left = {path.name.partition(".")[0] for place in wanted for path in place.glob("*.spool")} & waiting
    names = ", ".join(sorted(set(sender.sent)))
    typer.echo(shown(f"sent {_shown(len(sender.sent))}{': ' if names else ''}{names}"))
    if left:
        typer.echo(f"left {_shown(len(left))}: their processes still run, or the files cannot be read")


def _places(given: list[Path] | None) -> list[Path]:
    """Return the given directories, else those of this user."""
    for place in given or ():
        if not place.is_dir():
            fail(f"{place}: no such directory")
    try:
        return given or list(spool_directories(os.environ, os.getuid()))
    except LookupError as error:
        fail(f"no spool: {error}; give a directory")


def _wait(sender: Sender, endpoint: str) -> None:
    """Wait until everything that can be sent is sent."""
    until = time.monotonic() + CONNECT_SECONDS
    while not sender.swept.wait(0.05):
        # No limit while the daemon accepts pushes, because spools may be large.
        if sender.connected or sender.sent:
            until = time.monotonic() + CONNECT_SECONDS
        elif time.monotonic() > until:
            fail(f"{endpoint} does not answer; nothing was sent")


def _shown(number: int) -> str:
    return "1 session" if number == 1 else f"{number} sessions"
