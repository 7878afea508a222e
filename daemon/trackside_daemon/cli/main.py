"""The command line: every command, and the options that all share."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trackside_daemon import __version__
from trackside_daemon.cli.commands import (
    alerts,
    check_config,
    daemon,
    dashboards,
    demo,
    doctor,
    gpu,
    keys,
    replay,
    rules,
    run,
    runs,
    silence,
    spool,
    test_alert,
    top,
)
from trackside_daemon.cli.sources import credentials


class _Commands(TyperGroup):
    """Accepts the option that all commands share before the command and after it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the shared option before the command."""
        shared, others = credentials.split_flag(args)
        return super().parse_args(ctx, [*shared, *others])


app = typer.Typer(
    name="trackside",
    cls=_Commands,
    help="Monitor a training job, its GPUs and its host, step by step, for Prometheus.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trackside {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[  # noqa: ARG001  its callback handles it
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    credentials_file: Annotated[
        str,
        typer.Option(
            credentials.FLAG,
            help="YAML file with basic_auth and tls_config, for commands that query a daemon with a web configuration.",
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Monitor a training job, its GPUs and its host, step by step, for Prometheus."""
    if credentials_file:
        os.environ[credentials.VARIABLE] = credentials_file


def _add(name: str, function: Any, example: str, **options: Any) -> None:
    app.command(name, epilog=f"\b\nExample: trackside {name} {example}".rstrip(), **options)(function)


_add("daemon", daemon.daemon, "--sample.interval=500ms --web.listen-address=127.0.0.1:9999")
_add("demo", demo.demo, "--ranks 4 --gpus 8 --trouble straggler")
_add(
    "run",
    run.run,
    "--storage.path=/data/history -- python train.py",
    context_settings={"allow_interspersed_args": False},
)
_add("check-config", check_config.check_config, "/etc/trackside/trackside.yml")
app.add_typer(runs.app)
app.add_typer(alerts.app, name="alerts")
_add("top", top.top, "--url=http://127.0.0.1:21790 --interval 2s")
_add("silence", silence.silence, 'LossSpike --run "debug-*" --for 2h')
_add("test-alert", test_alert.raise_test_alert, "--severity critical")
_add("replay", replay.replay, "pushes.jsonl --severity warning")
_add("rules", rules.rules, "--config.file=/etc/trackside/trackside.yml > trackside.rules.yml")
_add("dashboards", dashboards.dashboards, "/etc/grafana")
app.add_typer(spool.app, name="spool")
_add("pause-gpu", gpu.pause, "--for 10m")
_add("resume-gpu", gpu.resume, "")
_add("doctor", doctor.doctor, "")
_add("keys", keys.keys, "/etc/trackside/keys --client gpu7 --client gpu8")
