"""The command demo."""

from typing import Annotated

import typer

from trackside_daemon.cli.errors import fail
from trackside_daemon.cli.options import option


def demo(
    steps: Annotated[int | None, option("N", "Stop after that many steps. [default: run until Ctrl-C]", min=1)] = None,
    trouble: Annotated[str, option("NAME", "What goes wrong: nan, spike, stall, leak, straggler or crash.")] = "",
    after: Annotated[float, option("SECONDS", "Seconds of training before it goes wrong.", min=0)] = 15.0,
    ranks: Annotated[
        int | None, option("N", "Simulate a training with that many ranks. [default: a real training]")
    ] = None,
    gpus: Annotated[
        int | None, option("N", "Simulate that many GPUs. [default: one per rank; 2 without a driver]")
    ] = None,
) -> None:
    """Run the daemon with a small real training, and print what to open.

    A character-level language model learns English from Python's help texts; nothing is downloaded. With --ranks the
    training is simulated: it pushes all that a training can, but computes nothing.
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
