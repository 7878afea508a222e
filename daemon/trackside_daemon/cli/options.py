"""Options: how commands declare them, and those that several share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option with a value; its help shows the default, unless the text states one."""
    return typer.Option(*names, metavar=metavar, help=text, **{"show_default": "[default:" not in text, **more})


def flag(name: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option without a value."""
    return typer.Option(name, *names, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return an argument; its help shows no default."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, **more)


ConfigFile = Annotated[
    Path | None, option("FILE", "YAML file of the daemon's settings: sample: {interval: 2s}", "--config.file")
]


def _print_all_options(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for option in context.command.params:
            option.hidden = False  # type: ignore[attr-defined]  # arguments are none of those
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[bool, flag("--help-all", "Show all options and exit.", callback=_print_all_options, is_eager=True)]
StoragePath = Annotated[
    Path | None,
    option("DIR", "Directory of the history. [default: that of the running daemon, else your own]", "--storage.path"),
]
Url = Annotated[str, option("URL", "Address of a daemon elsewhere, with #token=… if it requires one.", "--url")]
DaemonUrl = Annotated[
    str,
    option(
        "URL",
        "Address of a daemon elsewhere, with #token=… if it requires one. [default: the daemon of this machine]",
        "--url",
    ),
]
Form = Annotated[str, option("text|markdown|html|csv|json", "Format of the output.", "--format")]
Json = Annotated[bool, flag("--json", "Print JSON.")]
Run = Annotated[str, argument("RUN", "An id, the beginning of one, or a name: its newest run.")]
RunOrNewest = Annotated[
    str, argument("RUN", "An id, the beginning of one, or a name: its newest run. [default: the newest run]")
]
Runs = Annotated[list[str], argument("RUN", "Ids, beginnings of ids, or names: the newest run of each.")]
