"""The command run."""

import os
import shlex
from typing import Annotated

import typer

from trackside_daemon.cli.errors import fail
from trackside_daemon.cli.options import ConfigFile, argument, flag, option
from trackside_daemon.cli.setting_options import Flags, arguments, from_settings, nested
from trackside_daemon.model.text import shown


@from_settings(
    "sample.interval",
    "web.listen-address",
    "web.config.file",
    "push.endpoint",
    "collector.gpu.simulate",
    "collector.gpu.profile",
    "capture.auto",
    "storage.path",
    "log.level",
)
def run(
    command: Annotated[list[str], argument("-- COMMAND [ARGUMENT]...", "The command to run.")],
    *,
    auto: Annotated[
        bool, flag("--auto", "Find steps, losses and what trackers get in trainings without trackside.")
    ] = False,
    console: Annotated[
        bool, flag("--console", "Keep the last 10 MiB of what the command prints, without secrets, for the run's page.")
    ] = False,
    follow: Annotated[
        list[str] | None,
        option(
            "[DIR]",
            "Make runs of what the command writes for TensorBoard or W&B in runs, lightning_logs, wandb, and DIR; may be "
            "repeated.",
            "--follow",
        ),
    ] = None,
    restart: Annotated[
        str,
        option(
            "[N]",
            "Start the command again after a crash or a proven hang, up to N times, from the newest intact checkpoint [default:"
            " 5].",
            "--restart",
        ),
    ] = "",
    restart_on: Annotated[
        str, option("KINDS", "What --restart answers: crash, hang, nan.", "--restart.on")
    ] = "crash,hang",
    restart_args: Annotated[
        str, option("TEXT", "Arguments when it starts again: '--resume {checkpoint}'.", "--restart.args")
    ] = "",
    requeue: Annotated[bool, flag("--requeue", "With --restart: have Slurm requeue the job instead.")] = False,
    stop_on: Annotated[
        str,
        option(
            "ALERTS",
            "End the command when one of these alerts fires, or fires so long: NonFinite,LossDiverging:10m.",
            "--stop-on",
        ),
    ] = "",
    nccl_inspector: Annotated[
        str,
        option(
            "PATH|auto|off",
            "Measure NCCL's collectives with its Inspector: the path of its library, or where it is found.",
            "--nccl-inspector",
        ),
    ] = "auto",
    config_file: ConfigFile = None,
    name: Annotated[str, option("NAME", "", "--name", hidden=True)] = "",
    flags: Flags,
) -> None:
    """Run a command together with the daemon, and print a summary of its runs at the end.

    If no daemon is running, one is started, which ends with the last command that uses it; its log is daemon.log in
    the directory of the history. If it cannot start, the command runs without it.

    With --follow, what the command writes for TensorBoard or W&B becomes runs. With --console, it prints through
    another terminal, or a pipe if standard output is none; otherwise its output is untouched.

    With --restart, it starts again as the next attempt of the same run, with the path of the checkpoint in
    $TRACKSIDE_RESUME. Ctrl-C, and SIGTERM to this command, end it for good.

    The exit status is that of the command, or 128 plus the number of the signal that ended it; 79 after an alert of
    --stop-on, 75 after --requeue, 126 if the command is not executable, 127 if it is not found, and 2 if this command
    line or the configuration is wrong.
    """
    from trackside_daemon.cli.run.nccl_inspector import library
    from trackside_daemon.cli.run.restarts import restarts, stop_alerts
    from trackside_daemon.cli.run.session import RunOptions, run
    from trackside_daemon.config.loading import ConfigError, load
    from trackside_daemon.service.config import Config

    if name:
        shown_name = shlex.quote(shown(name))
        fail(
            f"--name {shown_name}: the training names its run: set TRACKSIDE_RUN_NAME={shown_name}, or call trackside.init"
        )
    try:
        config = load(Config, config_file, nested(flags))
    except ConfigError as error:
        fail(str(error))
    if wrong := next((place for place in follow or () if place.startswith("-") and place != "--"), ""):
        fail(f"--follow {wrong}: a directory is expected; without one, put --follow right before --")
    # A value "--" is the end of the options, which follows --follow without a directory.
    places = None if follow is None else [place for place in follow if place != "--"]
    file = [f"--config.file={config_file}"] if config_file is not None else []
    if (requeue or restart_args) and not restart:
        fail(f"{'--requeue' if requeue else '--restart.args'} is for restarts: give --restart, too")
    if not (job := os.environ.get("SLURM_JOB_ID", "")) and requeue:
        fail("--requeue: $SLURM_JOB_ID is not set, so this is no job of Slurm")
    try:
        options = RunOptions(
            places,
            auto,
            console,
            restarts(restart, restart_on, int(os.environ.get("SLURM_RESTART_COUNT", "0")) if requeue else 0),
            shlex.split(restart_args),
            job if requeue else "",
            stop_alerts(stop_on),
            library(nccl_inspector, command, os.environ),
        )
    except ValueError as error:
        fail(str(error))
    raise typer.Exit(run(command, config, [*file, *arguments(flags)], options))
