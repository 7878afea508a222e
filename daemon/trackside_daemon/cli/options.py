"""Options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config.file",
        help="YAML file of the daemon's settings: sample: {interval: 2s}",
        metavar="FILE",
        show_default=False,
    ),
]


def _print_all_options(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for option in context.command.params:
            option.hidden = False  # type: ignore[attr-defined]  # arguments are none of those
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", help="Show all options and exit.", callback=_print_all_options, is_eager=True),
]
StoragePath = Annotated[
    Path | None,
    typer.Option(
        "--storage.path",
        help="Directory of the history. [default: that of the running daemon, else your own]",
        metavar="DIR",
        show_default=False,
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        help="Address of a daemon elsewhere, with #token=… if it requires one.",
        metavar="URL",
        show_default=False,
    ),
]
DaemonUrl = Annotated[
    str,
    typer.Option(
        "--url",
        help="Address of a daemon elsewhere, with #token=… if it requires one. [default: the daemon of this machine]",
        metavar="URL",
        show_default=False,
    ),
]
Form = Annotated[str, typer.Option("--format", metavar="text|markdown|html|csv|json", help="Format of the output.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Run = Annotated[
    str,
    typer.Argument(metavar="RUN", help="An id, the beginning of one, or a name: its newest run.", show_default=False),
]
RunOrNewest = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="An id, the beginning of one, or a name: its newest run. [default: the newest run]",
        show_default=False,
    ),
]
Query = Annotated[
    str,
    typer.Option(
        "--query",
        help="All runs that this selects, such as 'failed lr>=1e-3 -tag:keep older:30d': docs/queries.md.",
        metavar="QUERY",
    ),
]
RunOrQuery = Annotated[
    str,
    typer.Argument(metavar="[RUN]", help="An id, the beginning of one, or a name: its newest run.", show_default=False),
]
RunsOrQuery = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...", help="Ids, beginnings of ids, or names: the newest run of each.", show_default=False
    ),
]
Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN", help="Ids, beginnings of ids, or names: the newest run of each.", show_default=False),
]
