"""The command demo."""

from __future__ import annotations

from typing import Annotated

import typer

from trackside_daemon.cli.errors import fail


def demo(
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after that many steps. [default: run until Ctrl-C]")
    ] = None,
    trouble: Annotated[
        str,
        typer.Option(
            help="What goes wrong in the training: nan, spike, stall, leak, straggler or crash.", metavar="NAME"
        ),
    ] = "",
    after: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Seconds of training before it goes wrong.")
    ] = 15.0,
    ranks: Annotated[
        int | None,
        typer.Option(help="Simulate a training with that many ranks. [default: a real training]", metavar="N"),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(help="Simulate that many GPUs. [default: one per rank; 2 without a driver]", metavar="N"),
    ] = None,
) -> None:
    """Run the daemon with a small real training, and print what to open.

    A character-level language model learns English from Python's help texts; nothing is downloaded. With --ranks the
    training is simulated: its processes wait for each other and push all that a training can, but compute nothing.
    """
    from trackside_daemon.config.loading import ConfigError, load
    from trackside_daemon.demo.options import DemoOptions, DemoOptionsError
    from trackside_daemon.demo.supervisor import run
    from trackside_daemon.service.config import Config

    options = DemoOptions(steps, trouble, after, ranks, gpus)
    try:
        options.check()
        config = load(Config, flags=options.flags())
    except (DemoOptionsError, ConfigError) as error:
        fail(str(error))
    raise typer.Exit(run(config.web, config.push.endpoint, options))
