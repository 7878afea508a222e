"""The command token: prints the token of the API, or replaces it."""

import os
from pathlib import Path
from typing import Annotated

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported
from trackside_daemon.cli.options import StoragePath, Url, flag


def token(
    *,
    rotate: Annotated[bool, flag("--rotate", "Replace the token; the old one opens nothing any more.")] = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Print the token that opens the dashboard and the API; the page of the dashboard has a field for it.

    The token lasts as long as the history. Replace it with --rotate if somebody else has it: pages that are open ask for
    the new one. Without a daemon, --rotate deletes the token, and the next daemon makes another one.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.api_source import ApiSource
        from trackside_daemon.cli.sources.daemon_lookup import VARIABLE, find_daemon, find_history
        from trackside_daemon.history.directory import default_directory
        from trackside_daemon.web.http.auth_token import STORED

        if not rotate:
            source = find_daemon(url)
            source.status()
            if not source.token:
                raise CommandError(f"{source.url}: this daemon answers without a token")
            typer.echo(source.token)
            return
        found = find_history(storage_path, url)
        if isinstance(found, ApiSource):
            typer.echo(found.rotate_token())
            return
        named = os.environ.get(VARIABLE)
        directory = storage_path or (Path(named) if named else default_directory(os.environ, os.getuid()))
        (directory / STORED).unlink(missing_ok=True)
        typer.echo(f"{directory / STORED} is deleted; the next daemon makes a new token")
