"""The command line: typer → `Config` → `Daemon`."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path  # noqa: TC003  typer reads the annotations while running
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from trackside_daemon import __version__
from trackside_daemon.cli.commands import (
    alerts,
    dashboards,
    doctor,
    gpu,
    keys,
    replay,
    rules,
    runs,
    silence,
    spool,
    test_alert,
    top,
)
from trackside_daemon.cli.sources import credentials
from trackside_daemon.config.environment import WEB_CREDENTIALS, warn_of_unknown_variables
from trackside_daemon.config.loading import ConfigError, load
from trackside_daemon.config.names import describe, setting_paths
from trackside_daemon.ingest.endpoint import EndpointError
from trackside_daemon.ingest.server import PushSocket
from trackside_daemon.linux.file_limit import raise_limit
from trackside_daemon.linux.signals import block_signals
from trackside_daemon.service import logging
from trackside_daemon.service.config import Config, check_roots
from trackside_daemon.web.http.address import AddressError, listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


class _Commands(TyperGroup):
    """Takes the flag that all commands share before them and behind them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See click."""
        ours, others = credentials.taken_out(args)
        return super().parse_args(ctx, [*ours, *others])


app = typer.Typer(
    name="trackside",
    cls=_Commands,
    help="A sidecar that tells Prometheus what a training job, its GPUs and its host are doing, step by step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _option(name: str) -> Any:
    value = name.rpartition(".")[2].upper()
    return typer.Option(f"--{name}", help=describe(Config, name), metavar=value, show_default=False)


def _flag(name: str) -> Any:
    return typer.Option(f"--{name}", help=describe(Config, name), show_default=False)


def _switch(name: str) -> Any:
    what = name.removeprefix("collector.")
    return typer.Option(
        f"--{name}/--no-{name}", help=f"Collect {what} metrics, or do not. [default: collect]", show_default=False
    )


def _either(name: str) -> Any:
    return typer.Option(f"--{name}/--no-{name}", help=describe(Config, name), show_default=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trackside {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    credentials_file: Annotated[
        str,
        typer.Option(
            credentials.FLAG,
            help="For commands that ask a daemon with a web configuration: a YAML file with basic_auth and tls_config.",
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
) -> None:
    """A sidecar that tells Prometheus what a training job, its GPUs and its host are doing, step by step."""
    if credentials_file:
        os.environ[WEB_CREDENTIALS] = credentials_file


@app.command(epilog="\b\nExample: trackside daemon --sample.interval=500ms --web.listen-address=127.0.0.1:9999")
def daemon(
    context: typer.Context,
    *,
    config_file: Annotated[
        Path | None,
        typer.Option("--config.file", help="A YAML file of these settings: sample: {interval: 2s}", metavar="FILE"),
    ] = None,
    sample__interval: Annotated[str | None, _option("sample.interval")] = None,
    path__procfs: Annotated[str | None, _option("path.procfs")] = None,
    path__sysfs: Annotated[str | None, _option("path.sysfs")] = None,
    path__rootfs: Annotated[str | None, _option("path.rootfs")] = None,
    run__linger: Annotated[str | None, _option("run.linger")] = None,
    web__listen_address: Annotated[str | None, _option("web.listen-address")] = None,
    web__config__file: Annotated[str | None, _option("web.config.file")] = None,
    web__allowed_hosts: Annotated[str | None, _option("web.allowed-hosts")] = None,
    web__public_read: Annotated[bool | None, _flag("web.public-read")] = None,
    web__enable_lifecycle: Annotated[bool | None, _flag("web.enable-lifecycle")] = None,
    push__endpoint: Annotated[list[str] | None, _option("push.endpoint")] = None,
    push__keys: Annotated[str | None, _option("push.keys")] = None,
    push__group: Annotated[str | None, _option("push.group")] = None,
    collector__cpu__enabled: Annotated[bool | None, _switch("collector.cpu")] = None,
    collector__cpu__per_cpu: Annotated[bool | None, _flag("collector.cpu.per-cpu")] = None,
    collector__load__enabled: Annotated[bool | None, _switch("collector.load")] = None,
    collector__memory__enabled: Annotated[bool | None, _switch("collector.memory")] = None,
    collector__vmstat__enabled: Annotated[bool | None, _switch("collector.vmstat")] = None,
    collector__pressure__enabled: Annotated[bool | None, _switch("collector.pressure")] = None,
    collector__disk__enabled: Annotated[bool | None, _switch("collector.disk")] = None,
    collector__disk__exclude: Annotated[str | None, _option("collector.disk.exclude")] = None,
    collector__filesystem__enabled: Annotated[bool | None, _switch("collector.filesystem")] = None,
    collector__filesystem__paths: Annotated[str | None, _option("collector.filesystem.paths")] = None,
    collector__network__enabled: Annotated[bool | None, _switch("collector.network")] = None,
    collector__network__exclude: Annotated[str | None, _option("collector.network.exclude")] = None,
    collector__infiniband__enabled: Annotated[bool | None, _switch("collector.infiniband")] = None,
    collector__cgroup__enabled: Annotated[bool | None, _switch("collector.cgroup")] = None,
    collector__process__enabled: Annotated[bool | None, _switch("collector.process")] = None,
    collector__process__smaps: Annotated[bool | None, _flag("collector.process.smaps")] = None,
    collector__time__enabled: Annotated[bool | None, _switch("collector.time")] = None,
    collector__thermal__enabled: Annotated[bool | None, _switch("collector.thermal")] = None,
    collector__gpu__enabled: Annotated[bool | None, _switch("collector.gpu")] = None,
    collector__gpu__extra: Annotated[str | None, _option("collector.gpu.extra")] = None,
    collector__gpu__skip: Annotated[str | None, _option("collector.gpu.skip")] = None,
    collector__gpu__expected: Annotated[int | None, _option("collector.gpu.expected")] = None,
    collector__gpu__simulate: Annotated[int | None, _option("collector.gpu.simulate")] = None,
    collector__gpu__profile: Annotated[str | None, _option("collector.gpu.profile")] = None,
    collector__gpu__trouble: Annotated[str | None, _option("collector.gpu.trouble")] = None,
    collector__ranks__enabled: Annotated[bool | None, _switch("collector.ranks")] = None,
    collector__ranks__others: Annotated[bool | None, _either("collector.ranks.others")] = None,
    storage__path: Annotated[str | None, _option("storage.path")] = None,
    storage__retention__size: Annotated[str | None, _option("storage.retention.size")] = None,
    storage__retention__age: Annotated[str | None, _option("storage.retention.age")] = None,
    storage__synchronous: Annotated[str | None, _option("storage.synchronous")] = None,
    storage__interval: Annotated[str | None, _option("storage.interval")] = None,
    storage__jsonl: Annotated[str | None, _option("storage.jsonl")] = None,
    log__level: Annotated[str | None, _option("log.level")] = None,
    log__format: Annotated[str | None, _option("log.format")] = None,
    require_gpu: Annotated[bool | None, _flag("require-gpu")] = None,
) -> None:
    """Run the daemon: sample GPUs and host, take pushes, keep the history of runs, and serve /metrics.

    Every setting can also be given in the file, or as a variable: --sample.interval is TRACKSIDE_SAMPLE__INTERVAL.
    """
    flags = _nested(context.params)

    def reload() -> Config:
        return load(Config, config_file, flags)

    try:
        config = reload()
        check_roots(config.path)
        logging.set_up(config.log.level, config.log.format)
        warn_of_unknown_variables(Config)
        raise_limit()
        block_signals()
        with closing(PushSocket(config.push.endpoint, keys=config.push.keys, group=config.push.group)) as push_socket:
            status = _serve(config, reload, push_socket, listen(config.web.listen_address))
    except (ConfigError, EndpointError, AddressError) as error:
        _fail(str(error))
    raise typer.Exit(status)


def _serve(config: Config, reload: Callable[[], Config], push_socket: PushSocket, listener: socket.socket) -> int:
    """Run the daemon on what is bound already; returns its exit status."""
    from trackside_daemon.history.directory import HistoryError
    from trackside_daemon.service.daemon import Daemon, StartError
    from trackside_daemon.web.http.config import WebConfigError

    try:
        running = Daemon(config, reload, push_socket, listener)
        if sys.stdout.isatty():
            typer.echo(f"dashboard: {running.link}")
        return running.run()
    except (StartError, HistoryError, WebConfigError) as error:
        _fail(str(error))


@app.command(epilog="\b\nExample: trackside demo --ranks 4 --gpus 8 --trouble straggler")
def demo(
    steps: Annotated[
        int | None, typer.Option(min=1, help="End after that many steps. [default: go on until Ctrl-C]")
    ] = None,
    trouble: Annotated[
        str,
        typer.Option(
            help="What goes wrong in the training: nan, spike, stall, leak, straggler or crash.", metavar="NAME"
        ),
    ] = "",
    after: Annotated[float, typer.Option(min=0, help="Seconds of training before it goes wrong.")] = 15.0,
    ranks: Annotated[
        int | None, typer.Option(help="Simulate a training of that many ranks. [default: a real one]", metavar="N")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(help="Simulate that many GPUs. [default: one for each rank; 2 without a driver]", metavar="N"),
    ] = None,
) -> None:
    """Run the daemon with a small real training beside it, and say where to look.

    A character-level language model learns English from Python's own help texts; nothing is downloaded. With --ranks
    the training is simulated: processes that wait for each other and tell all that a training can, but compute nothing.
    """
    from trackside_daemon.demo.options import DemoOptions, DemoOptionsError
    from trackside_daemon.demo.supervisor import run

    options = DemoOptions(steps, trouble, after, ranks, gpus)
    try:
        options.check()
        config = load(Config, flags=options.flags())
    except (DemoOptionsError, ConfigError) as error:
        _fail(str(error))
    raise typer.Exit(run(config.web, config.push.endpoint, options))


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExample: trackside run --storage.path=/data/history -- python train.py",
)
def run(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND [ARGUMENT]...", help="What to run.", show_default=False)
    ],
    *,
    config_file: Annotated[
        Path | None, typer.Option("--config.file", help="The daemon's settings, a YAML file.", metavar="FILE")
    ] = None,
    sample__interval: Annotated[str | None, _option("sample.interval")] = None,
    web__listen_address: Annotated[str | None, _option("web.listen-address")] = None,
    web__config__file: Annotated[str | None, _option("web.config.file")] = None,
    push__endpoint: Annotated[list[str] | None, _option("push.endpoint")] = None,
    collector__gpu__simulate: Annotated[int | None, _option("collector.gpu.simulate")] = None,
    collector__gpu__profile: Annotated[str | None, _option("collector.gpu.profile")] = None,
    storage__path: Annotated[str | None, _option("storage.path")] = None,
    log__level: Annotated[str | None, _option("log.level")] = None,
) -> None:
    """Run a command with the daemon beside it, and sum up its runs at the end.

    A daemon that is there already is used; else one is started, and ends with the last command that needs it. Its log is
    daemon.log beside the history. Where it cannot start, the command runs without it.

    The exit status is the command's; 128 and the signal's number when a signal ended it; 126 when it cannot be executed,
    127 when it is not found, 2 when this command line or the configuration is wrong.
    """
    from trackside_daemon.cli.commands.run import run

    given = {name: value for name, value in context.params.items() if name != "command" and value not in (None, ())}
    try:
        config = load(Config, config_file, _nested(given))
    except ConfigError as error:
        _fail(str(error))
    raise typer.Exit(run(command, config, _flags(given)))


@app.command("check-config", epilog="\b\nExample: trackside check-config /etc/trackside/trackside.yml")
def check_config(
    file: Annotated[Path, typer.Argument(help="A YAML file of the daemon's settings.", show_default=False)],
) -> None:
    """Say what is wrong with a configuration file, and how to mend it."""
    from trackside_daemon.alerts.rules.custom import RuleError
    from trackside_daemon.alerts.sinks.registry import sinks
    from trackside_daemon.alerts.sinks.sink import DaemonInfo, SinkError
    from trackside_daemon.service import watchers
    from trackside_daemon.web.http.config import WebConfigError
    from trackside_daemon.web.http.config_file import ConfigFile

    try:
        config = load(Config, file)
        watchers.rules(config.alerts)
        sinks(config.alerts.sinks, DaemonInfo("this machine"))
        check_roots(config.path)
        ConfigFile(config.web.config.file)
    except (ConfigError, WebConfigError) as error:
        _fail(str(error))
    except (RuleError, SinkError) as error:
        _fail(f"{file}: {error}")
    for line in watchers.misspelt(config.alerts):
        typer.echo(f"trackside: {file}: {line}", err=True)
    for path in setting_paths(Config):
        value: Any = config
        for part in path:
            value = getattr(value, part)
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        typer.echo(f"{'.'.join(path).replace('_', '-')}: {shown.lower() if isinstance(value, bool) else shown}")


app.add_typer(runs.app)
app.add_typer(alerts.app, name="alerts")
app.command("top", epilog="\b\nExample: trackside top --url=http://127.0.0.1:21790 --interval 2s")(top.top)
app.command("silence", epilog='\b\nExample: trackside silence LossSpike --run "debug-*" --for 2h')(silence.silence)
app.command("test-alert", epilog="\b\nExample: trackside test-alert --severity critical")(test_alert.trial)
app.command("replay", epilog="\b\nExample: trackside replay pushes.jsonl --severity warning")(replay.replay)
app.command(
    "rules", epilog="\b\nExample: trackside rules --config.file=/etc/trackside/trackside.yml > trackside.rules.yml"
)(rules.rules)
app.command("dashboards", epilog="\b\nExample: trackside dashboards /etc/grafana")(dashboards.dashboards)
app.add_typer(spool.app, name="spool")
app.command("pause-gpu", epilog="\b\nExample: trackside pause-gpu --for 10m")(gpu.pause)
app.command("resume-gpu", epilog="\b\nExample: trackside resume-gpu")(gpu.resume)
app.command("doctor", epilog="\b\nExample: trackside doctor")(doctor.doctor)
app.command("keys", epilog="\b\nExample: trackside keys /etc/trackside/keys --client gpu7 --client gpu8")(keys.keys)


def _nested(params: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, nested as the settings are: ``sample__interval`` becomes ``sample: {interval: …}``."""
    flags: dict[str, Any] = {}
    for name, value in params.items():
        if value is None or value == () or name == "config_file":
            continue
        *sections, last = name.split("__")
        section = flags
        for part in sections:
            section = section.setdefault(part, {})
        section[last] = value
    return flags


def _flags(params: dict[str, Any]) -> list[str]:
    """The same as they were given: ``sample__interval`` becomes ``--sample.interval=…``."""
    named = {name.replace("config_file", "config.file").replace("__", ".").replace("_", "-"): name for name in params}
    values = {key: params[name] if isinstance(params[name], list) else [params[name]] for key, name in named.items()}
    return [f"--{key}={value}" for key, several in values.items() for value in several]


def _fail(message: str) -> NoReturn:
    """Say what is wrong and how to mend it, and exit 2: wrong usage, or it cannot start."""
    typer.echo(f"trackside: {message}", err=True)
    raise typer.Exit(2)
