"""The command spool send: what processes that are gone have left goes to a daemon."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path  # noqa: TC003  typer reads the annotations while running
from typing import Annotated, NoReturn

import typer

from trackside.transport.discovery import find
from trackside.transport.paths import spool_directories
from trackside.transport.sender import Sender

CONNECT_SECONDS = 5.0

app = typer.Typer(help="What trainings have left on disk while no daemon was there.", rich_markup_mode=None)


@app.callback(epilog="\b\nExample: trackside spool send")
def spool() -> None:
    """What trainings have left on disk while no daemon was there."""


@app.command(epilog="\b\nExample: trackside spool send ~/.local/state/trackside/MACHINE-ID/spool")
def send(
    places: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="Directories of spools. [default: this user's]", show_default=False),
    ] = None,
    *,
    endpoint: Annotated[
        str,
        typer.Option(
            "--endpoint",
            metavar="ENDPOINT",
            help="The daemon's ipc:///PATH or tcp://HOST:PORT. [default: as trainings find it]",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Send what is left in a spool to a daemon, also what another machine has left in a shared directory.

    A daemon takes the spools of its machine and its user by itself; this is for all others. What is sent is taken away.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        wanted = places or list(spool_directories(os.environ, os.getuid()))
    except LookupError as error:
        _fail(f"no spool to send: {error}; name a directory")
    for place in places or ():
        if not place.is_dir():
            _fail(f"{place}: no such directory")
    found, failures = find(endpoint or None, os.environ)
    if found is None:
        _fail(f"no daemon found at {', '.join(failures)}; start one, or name another with --endpoint")
    waiting = {path.name.partition(".")[0] for place in wanted for path in place.glob("*.spool")}
    sender = Sender(found, spools=wanted)
    try:
        _wait(sender, found)
    except KeyboardInterrupt:
        typer.echo("interrupted; what is not sent yet stays where it is", err=True)
    finally:
        sender.stop(2.0)
    left = {path.name.partition(".")[0] for place in wanted for path in place.glob("*.spool")} & waiting
    typer.echo(f"sent {_shown(len(sender.sent))}{': ' if sender.sent else ''}{', '.join(sorted(set(sender.sent)))}")
    if left:
        typer.echo(f"left {_shown(len(left))}: their trainings live, or they cannot be read")


def _wait(sender: Sender, endpoint: str) -> None:
    """Until nothing is left that can be sent."""
    until = time.monotonic() + CONNECT_SECONDS
    while not sender.swept.wait(0.05):
        if sender.connected or sender.sent:
            until = time.monotonic() + CONNECT_SECONDS
        elif time.monotonic() > until:
            _fail(f"{endpoint} does not answer; nothing was sent")


def _shown(number: int) -> str:
    return "1 session" if number == 1 else f"{number} sessions"


def _fail(message: str) -> NoReturn:
    typer.echo(f"trackside: {message}", err=True)
    raise typer.Exit(2)
