"""The command check-config."""

from functools import reduce
from pathlib import Path
from typing import Annotated, Any

import typer

from trackside_daemon.cli.errors import fail
from trackside_daemon.cli.options import argument, flag


def check_config(
    file: Annotated[Path, argument("FILE", "YAML file of the daemon's settings.")],
    *,
    settings: Annotated[bool, flag("--settings", "Also print all settings.")] = False,
) -> None:
    """Check a configuration file, and print ok.

    The command prints the first errors and how to fix them. The exit status is then 2.
    """
    from trackside_daemon.alerts.rules.custom import RuleError
    from trackside_daemon.alerts.sinks.registry import sinks
    from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkError
    from trackside_daemon.config.loading import ConfigError, dotted, file_warnings, load, setting_paths
    from trackside_daemon.history.directory import OPTION, HistoryError, check_named_directory
    from trackside_daemon.service import finding_sources
    from trackside_daemon.service.config import Config, check_roots
    from trackside_daemon.web.http.config import WebConfigError
    from trackside_daemon.web.http.config_file import ConfigFile

    try:
        config = load(Config, file)
        # `load` checks only the settings themselves, not the rules and files that they name.
        finding_sources.rules(config.alerts)
        sinks(config.alerts.sinks, DaemonInfo("this machine"))
        check_roots(config.path)
        ConfigFile(config.web.config.file)
        for directory, option in ((config.storage.path, OPTION), (config.storage.jsonl, "--storage.jsonl")):
            if directory:
                check_named_directory(Path(directory), option)
    except (ConfigError, HistoryError, WebConfigError) as error:
        fail(str(error))
    except (RuleError, SinkError) as error:
        fail(f"{file}: {error}")
    for line in file_warnings(Config, file):
        typer.echo(f"trackside: {line}", err=True)
    for line in finding_sources.unknown_alerts(config.alerts):
        typer.echo(f"trackside: {file}: {line}", err=True)
    for path in setting_paths(Config) if settings else ():
        typer.echo(f"{dotted(path)}: {_text(reduce(getattr, path, config))}")
    typer.echo("ok")


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
