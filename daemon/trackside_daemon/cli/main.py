"""The command line: the table of commands by group, and the options that all share.

A command's module is imported when the command runs: ``--help`` and ``--version`` need none of them.
"""

import os
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from trackside_daemon import __version__
from trackside_daemon.cli.credentials_flag import FLAG, VARIABLE, split_flag
from trackside_daemon.cli.options import GroupedCommand, flag, option


class _Command(NamedTuple):
    """A command."""

    source: str  # its module in `cli.commands`, and the name there of its function, or of the app that it belongs to
    summary: str  # one line for the list of commands
    example: str = ""  # arguments for the example below its help; a command of an app has its own
    interspersed: bool = True  # options may follow arguments


GROUPS = {
    "Run": {
        "daemon": _Command(
            "daemon:daemon",
            "Run the daemon: sample, accept pushes, serve /metrics.",
            "--sample.interval=500ms --web.listen-address=127.0.0.1:9999",
        ),
        "demo": _Command(
            "demo:demo", "Run the daemon with a small real training.", "--ranks 4 --gpus 8 --trouble straggler"
        ),
        "run": _Command(
            "run:run",
            "Run a command with the daemon; print a summary at its end.",
            "--storage.path=/data/history -- python train.py",
            interspersed=False,
        ),
        "attach": _Command("attach:attach", "Monitor a process that was started without trackside.", "4711"),
    },
    "Look": {
        "runs": _Command("runs:app", "List the runs in the history, the newest first."),
        "show": _Command("runs:app", "Show a run: its state, metrics, configuration and alerts."),
        "top": _Command(
            "top:top", "Show runs, GPUs, host and alerts in the terminal.", "--url=http://127.0.0.1:21790 --interval 2s"
        ),
        "open": _Command(
            "open:open_", "Print the link to the dashboard, with its token.", "--url=http://127.0.0.1:21790"
        ),
        "layers": _Command("layers:layers", "List the layers of a model that stand out most.", "gpt-small"),
        "checkpoints": _Command(
            "checkpoints:checkpoints",
            "List the checkpoints of a run, or print the path of one.",
            "latest gpt-small --good",
        ),
    },
    "Explain": {
        "why": _Command("why:why", "Show where the time of a run went, and what to do.", "gpt-small"),
        "batch": _Command("batch:batch", "Show which samples were in the batches of a step.", "gpt-small --step 2813"),
        "compare": _Command(
            "compare:compare",
            "Compare runs and seeds; fail if a condition holds, for CI.",
            "baseline wider --fail-if 'loss > 1.02 * baseline'",
        ),
        "capture": _Command(
            "capture:capture",
            "Record a run for some steps; print where their time goes.",
            "gpt-small --steps 20 --stacks",
        ),
        "captures": _Command("capture:captures", "List the captures of a run, or of all.", "gpt-small"),
        "report": _Command(
            "report:report",
            "Write a report about runs, as HTML or in other formats.",
            "gpt-small --output gpt-small.html",
        ),
        "benchmark": _Command(
            "benchmark:benchmark",
            "Measure the speed of a model, a function or an endpoint.",
            "model:load --variant fp32 --variant int8-dynamic --batch-size 1 --batch-size 8",
        ),
        "fleet": _Command(
            "fleet:fleet",
            "Query the archived runs of all machines.",
            '"worst 20 runs by lost GPU hours" --from archive',
        ),
        "mcp": _Command("mcp:mcp", "Answer agents over the Model Context Protocol.", "--allow-actions"),
    },
    "Keep": {
        "export": _Command("runs:app", "Export a run with every sample."),
        "import": _Command(
            "import_runs:import_", "Import runs of TensorBoard, W&B, MLflow and others.", "runs/exp1 --name baseline"
        ),
        "archive": _Command(
            "archive:archive", "Write ended runs to a directory or bucket, as Parquet.", "s3://training/trackside"
        ),
        "pin": _Command("runs:app", "Pin a run, so that retention never deletes it."),
        "delete": _Command("runs:app", "Delete runs from the history permanently."),
        "spool": _Command("spool:app", "Show or send what jobs stored while no daemon was running."),
    },
    "Notify": {
        "alerts": _Command("alerts:app", "List alerts, show one, or dismiss a false alarm."),
        "silence": _Command("silence:silence", "Mute alerts for a while.", 'LossSpike --run "debug-*" --for 2h'),
        "test-alert": _Command(
            "test_alert:raise_test_alert",
            "Raise a test alert, and report which sinks deliver it.",
            "--severity critical",
        ),
        "replay": _Command(
            "replay:replay", "Run the detectors over a file or a stored run.", "pushes.jsonl --severity warning"
        ),
        "tune": _Command(
            "tune:tune",
            "Propose thresholds from your runs and your false alarms.",
            "--config.file=trackside.yml --runs 5",
        ),
        "rules": _Command(
            "rules:rules",
            "Print Prometheus rules for a configuration.",
            "--config.file=/etc/trackside/trackside.yml > trackside.rules.yml",
        ),
    },
    "Administer": {
        "doctor": _Command("doctor:doctor", "Check the daemon, its sockets and disk, the driver and GPUs."),
        "check-config": _Command(
            "check_config:check_config", "Check a configuration file.", "/etc/trackside/trackside.yml"
        ),
        "dashboards": _Command(
            "dashboards:dashboards", "Write the Grafana dashboards and their provisioning.", "/etc/grafana"
        ),
        "token": _Command("token:token", "Print the token of the dashboard, or replace it.", "--rotate"),
        "keys": _Command(
            "keys:keys",
            "Make keys for training jobs on other machines.",
            "/etc/trackside/keys --client gpu7 --client gpu8",
        ),
        "pause-gpu": _Command("gpu:pause", "Release the GPUs, for a reset or a new driver.", "--for 10m"),
        "resume-gpu": _Command("gpu:resume", "Read the GPUs again, after pause-gpu."),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


class _Commands(TyperGroup):
    """Commands in groups, loaded when they run, after the option that all share, wherever it stands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = dict[str, Any](COMMANDS)  # of their names alone a list and a suggestion is made

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write the list of commands, group by group, in columns of the same width."""
        width = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), one.summary) for name, one in commands.items()])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the shared option before the command."""
        shared, others = split_flag(args)
        return super().parse_args(ctx, [*shared, *others])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  of the base class
        """Load a command; None for no command."""
        try:
            return load(cmd_name) if cmd_name in COMMANDS else None
        except KeyboardInterrupt:  # stopped as asked, before it began
            raise typer.Exit from None


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


def load(name: str) -> Any:
    """Import a command, and return it as click has it."""
    command = COMMANDS[name]
    module, _, attribute = command.source.partition(":")
    found = getattr(import_module(f"trackside_daemon.cli.commands.{module}"), attribute)
    if isinstance(found, typer.Typer):
        for one in found.registered_commands:
            one.cls = GroupedCommand
        group: Any = get_command(found)
        return group.commands.get(name, group)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"allow_interspersed_args": command.interspersed}
    epilog = f"\b\nExample: trackside {name} {command.example}".rstrip()
    alone.command(name, cls=GroupedCommand, epilog=epilog, context_settings=settings)(found)
    return get_command(alone)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trackside {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[  # noqa: ARG001  its callback handles it
        bool, flag("--version", "Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    credentials_file: Annotated[
        str,
        option(
            "FILE",
            "YAML file with basic_auth and tls_config, for commands that query a daemon with a web configuration.",
            FLAG,
        ),
    ] = "",
) -> None:
    """Monitor a training job, its GPUs and its host, step by step, for Prometheus."""
    if credentials_file:
        os.environ[VARIABLE] = credentials_file
