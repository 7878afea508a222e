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
        Literal["metrics", "read", "write", "admin"],
        option("metrics|read|write|admin", "What the printed token permits.", "--role"),
    ] = "admin",
    rotate: Annotated[bool, flag("--rotate", "Replace the token; the old one opens nothing any more.")] = False,
    keep: Annotated[str, option("TIME", "With --rotate, keep the old one valid so long, at most 30d.", "--keep")] = "",
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Print the token that opens the dashboard and the API; the page of the dashboard has a field for it.

    Replace it with --rotate if somebody else has it, and with it the tokens of the other roles: pages that are open
    ask for the new one. Without a daemon, --rotate deletes it, and the next daemon makes another.
    """
    with errors_reported():
        from trackside.os_errors import os_error_text
        from trackside_daemon.cli.sources.api_source import ApiSource
        from trackside_daemon.cli.sources.daemon_lookup import VARIABLE, find_daemon, find_history
        from trackside_daemon.history.directory import default_directory
        from trackside_daemon.model.text import duration_seconds
        from trackside_daemon.web.http.auth_token import MAX_KEEP_SECONDS, STORED, token_of_role

        keep_seconds = duration_seconds(keep or "0")
        if not 0 <= keep_seconds <= MAX_KEEP_SECONDS or (keep and not rotate):
            raise CommandError(f"--keep {keep}: give a time such as 1h, 30d at most, together with --rotate")

        found = find_history(storage_path, url) if rotate or storage_path else find_daemon(url)
        if isinstance(found, ApiSource):
            if rotate:
                typer.echo(token_of_role(found.rotate_token(keep_seconds), role))
                return
            found.status()
            if not found.token:
                raise CommandError(f"{found.url}: this daemon answers without a token")
            typer.echo(token_of_role(found.token, role))
            return
        if keep:
            raise CommandError("--keep needs a daemon that runs")
        named = os.environ.get(VARIABLE)
        stored = (storage_path or (Path(named) if named else default_directory(os.environ, os.getuid()))) / STORED
        if rotate:
            stored.unlink(missing_ok=True)
            typer.echo(f"{stored} is deleted; the next daemon makes a new token")
            return
        try:  # of a daemon that has ended, or has no socket on this machine
            typer.echo(token_of_role(stored.read_text().strip(), role))
        except OSError as error:
            raise CommandError(f"{stored}: {os_error_text(error)}; a daemon with this history makes it") from None
