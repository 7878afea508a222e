"""The command open: prints the link to the dashboard again."""

import os
import webbrowser

import typer

from trackside_daemon.cli.errors import errors_reported
from trackside_daemon.cli.options import Url


def open_(*, url: Url = "") -> None:
    """Print the link to the dashboard of the running daemon, with its token, and open it on a desktop.

    Keep the link to yourself. The token lasts until trackside token --rotate.
    """
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_daemon

        source = find_daemon(url)
        source.status()
        typer.echo(source.link)
        if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            webbrowser.open(source.link)
