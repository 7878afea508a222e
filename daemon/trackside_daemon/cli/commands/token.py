"""The command token: prints the token of the API, or replaces it."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from trackside_daemon.cli.errors import CommandError, errors_reported
from trackside_daemon.cli.options import StoragePath, Url, flag, option


def token(
    *,
    role: Annotated[
        Literal["read", "write", "admin"], option("read|write|admin", "What the printed token permits.", "--role")
    ] = "admin",
    rotate: Annotated[bool, flag("--rotate", "Replace the token; the old one opens nothing any more.")] = False,
    keep: Annotated[
        str, option("TIME", "With --rotate, keep the old token valid for so long, at most 30d.", "--keep")
    ] = "",
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Print the token that opens the dashboard and the API; the page of the dashboard has a field for it.

    The token lasts as long as the history. Replace it with --rotate if somebody else has it: pages that are open ask for
    the new one. Without a daemon, --rotate deletes the token, and the next daemon makes another one. The tokens of the
    other roles are made from this one, so a rotation replaces them too.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.api_source import ApiSource
        from trackside_daemon.cli.sources.daemon_lookup import VARIABLE, find_daemon, find_history
        from trackside_daemon.history.directory import default_directory
        from trackside_daemon.model.text import seconds
        from trackside_daemon.web.http.auth_token import MAX_KEEP_SECONDS, STORED, token_of_role

        try:
            keep_seconds = float(str(seconds(keep or 0)))
        except ValueError:
            keep_seconds = -1.0
        if not 0 <= keep_seconds <= MAX_KEEP_SECONDS or (keep and not rotate):
            raise CommandError(f"--keep {keep}: give a time such as 1h, 30d at most, together with --rotate")

        if not rotate:
            source = find_history(storage_path, url) if storage_path else find_daemon(url)
            if not isinstance(source, ApiSource):
                raise CommandError(
                    f"--storage.path {storage_path}: no daemon with this history runs here; start it first"
                )
            source.status()
            if not source.token:
                raise CommandError(f"{source.url}: this daemon answers without a token")
            typer.echo(token_of_role(source.token, role))
            return
        found = find_history(storage_path, url)
        if isinstance(found, ApiSource):
            typer.echo(token_of_role(found.rotate_token(keep_seconds), role))
            return
        if keep:
            raise CommandError("--keep needs a daemon that runs")
        named = os.environ.get(VARIABLE)
        directory = storage_path or (Path(named) if named else default_directory(os.environ, os.getuid()))
        (directory / STORED).unlink(missing_ok=True)
        typer.echo(f"{directory / STORED} is deleted; the next daemon makes a new token")
