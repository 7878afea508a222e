"""The command keys: keys that let training jobs on other machines push to the daemon of this one."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from trackside_daemon.cli.errors import fail
from trackside_daemon.cli.options import argument, option


def keys(
    directory: Annotated[Path, argument("DIR", "Directory of the keys, for --push.keys.")],
    *,
    client: Annotated[
        list[str] | None, option("NAME", "Name of a client, such as its machine; may be repeated.", "--client")
    ] = None,
) -> None:
    """Make keys that let training jobs on other machines push to the daemon of this machine.

    The command makes the daemon's key, and a key file for each client. It never overwrites a file, so you can add
    clients at any time. Everything that is pushed over TCP is then encrypted.
    """
    from trackside.environment.keys import KeyFileError
    from trackside_daemon.ingest.keyring import make

    directory = directory.absolute()
    if not client and (directory / "daemon.key").exists():
        fail(f"{directory}/daemon.key exists and is kept; add a client with --client NAME")
    try:
        made = make(directory, list(dict.fromkeys(client or ["client"])))
    except KeyFileError as error:
        fail(str(error))
    for file in made:
        typer.echo(f"made {file}: {_purpose(file)}")
    private = next(file.name for file in made if file.parent.name == "clients")
    port = 21791
    typer.echo(
        f"\non the daemon's machine, as the owner of {directory}:\n"
        f"    trackside daemon --push.endpoint=tcp://0.0.0.0:{port} --push.keys={directory}\n"
        "on the machine of a training job:\n"
        f"    export TRACKSIDE_ENDPOINT=tcp://{socket.gethostname()}:{port} TRACKSIDE_KEY_FILE=/PATH/{private}\n"
    )


def _purpose(file: Path) -> str:
    """Return what a file is for and where it belongs."""
    if file.parent.name == "authorized":
        return f"stays here and lets {file.stem} push; delete it to lock {file.stem} out"
    if file.parent.name == "clients":
        return f"secret; copy it to the machine of {file.stem}, and delete it here"
    return "secret key of the daemon; stays here"
