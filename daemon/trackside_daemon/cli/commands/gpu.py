"""The commands pause-gpu and resume-gpu: a daemon lets go of the GPUs, and takes them again."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from trackside_daemon.model.setting_types import seconds
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.cli.sources.source import ApiSource

Url = Annotated[
    str,
    typer.Option(
        "--url",
        help="A daemon elsewhere: its address, with #token=… if it wants one. [default: the one of this machine]",
        metavar="URL",
        show_default=False,
    ),
]


def pause(
    *,
    length: Annotated[
        str,
        typer.Option(
            "--for",
            help="For so long, such as 10m. [default: until trackside resume-gpu]",
            metavar="TIME",
            show_default=False,
        ),
    ] = "",
    url: Url = "",
) -> None:
    """Have the daemon let go of the GPUs, so that they can be reset, reconfigured or taken away.

    Ends the process that reads them, and with it its open device files; everything else goes on. Exit status 1 when
    that process hangs in the driver and does not end.
    """
    body = {"for": _length(length)}
    said = _ask(url, "pause", body)
    if not said["released"]:
        _fail(paused(said), 1)
    typer.echo(paused(said))


def resume(*, url: Url = "") -> None:
    """Have the daemon read the GPUs again."""
    said = _ask(url, "resume", None)
    typer.echo("resumed" if said["resumed"] else "the GPUs were not paused")


def paused(said: Mapping[str, Any]) -> str:
    """What a daemon answers to a pause, in one line."""
    end = said["paused_until"]
    until = clock(end) if isinstance(end, float) else "it is ended by trackside resume-gpu"
    state = "the pause is over already" if end is None else f"paused until {until}"
    holders = ", ".join(shown(f"{one['name']} (pid {one['pid']})") for one in said["holders"])
    if not said["released"]:
        holding = f": {holders}" if holders else ""
        return f"{state}, but the process that reads the GPUs hangs in the driver{holding}; a reboot ends it"
    if end is None:
        return f"{state}, and the daemon reads the GPUs again; a longer --for keeps their device files free"
    return f"{state}; the device files are {f'still held by {holders}' if holders else 'free'}"


def _length(text: str) -> float | None:
    if not text:
        return None
    try:
        length = float(str(seconds(text)))
    except ValueError:
        length = 0.0
    if not 0 < length < float("inf"):
        _fail(f"--for: {text!r} is not a duration such as 10m or 1h30m", 2)
    return length


def _ask(url: str, what: str, body: Any) -> dict[str, Any]:
    from trackside_daemon.cli.sources.errors import SourceError

    try:
        return _daemon(url).gpu(what, body)
    except SourceError as error:
        _fail(str(error), error.status)


def _daemon(url: str) -> ApiSource:
    from trackside_daemon.cli.sources.daemon_lookup import daemon

    return daemon(url)


def clock(moment: float) -> str:
    """A time of today, or with its date."""
    then = datetime.fromtimestamp(moment).astimezone()
    today = datetime.fromtimestamp(time.time()).astimezone().date()
    return f"{then:%H:%M:%S}" if then.date() == today else f"{then:%Y-%m-%d %H:%M:%S}"


def _fail(message: str, status: int) -> NoReturn:
    typer.echo(f"trackside: {message}", err=True)
    raise typer.Exit(status)
