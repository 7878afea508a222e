"""The command keys: lets the trainings of other machines push to a daemon of this one."""

from __future__ import annotations

import socket
from pathlib import Path  # noqa: TC003  typer reads the annotations while running
from typing import Annotated, NoReturn

import typer

from trackside.transport.keys import KeyFileError


def keys(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Where the keys are, or are to be made: --push.keys.", show_default=False),
    ],
    *,
    client: Annotated[
        list[str] | None,
        typer.Option(
            "--client", help="A client to make a key for, such as its machine; may be repeated.", metavar="NAME"
        ),
    ] = None,
) -> None:
    """Make the keys that let trainings on other machines push to this machine's daemon.

    Makes the daemon's key where there is none, and a key file for each client; what is there is never overwritten, so
    further clients can be added at any time, while the daemon runs. All that is pushed over TCP is then encrypted.
    """
    from trackside_daemon.ingest.keyring import make

    directory = directory.absolute()
    if not client and (directory / "daemon.key").exists():
        _fail(f"{directory}/daemon.key is there and is kept; add a client with --client NAME")
    try:
        made = make(directory, list(dict.fromkeys(client or ["client"])))
    except KeyFileError as error:
        _fail(str(error))
    for file in made:
        typer.echo(f"made {file}: {_purpose(file)}")
    private = next(file.name for file in made if file.parent.name == "clients")
    port = 21791
    typer.echo(
        f"\nwhere the daemon runs, as the owner of {directory}:\n"
        f"    trackside daemon --push.endpoint=tcp://0.0.0.0:{port} --push.keys={directory}\n"
        "where a training runs:\n"
        f"    export TRACKSIDE_ENDPOINT=tcp://{socket.gethostname()}:{port} TRACKSIDE_KEY_FILE=/PATH/{private}\n"
    )


def _fail(message: str) -> NoReturn:
    typer.echo(f"trackside: {message}", err=True)
    raise typer.Exit(2)


def _purpose(file: Path) -> str:
    """What a file is for, where it belongs."""
    if file.parent.name == "authorized":
        return f"stays here, and lets {file.stem} push; delete it, and {file.stem} cannot connect any more"
    if file.parent.name == "clients":
        return f"secret; bring it to the machine of {file.stem}, and delete it here"
    return "secret; the daemon's own, stays here"
