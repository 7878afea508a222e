"""The commands pause-gpu and resume-gpu: a daemon closes the GPUs' device files, and opens them again."""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from trackside_daemon.cli.errors import errors_reported, fail
from trackside_daemon.cli.options import Url, option
from trackside_daemon.model.text import duration_seconds, shown


def pause(
    *,
    length: Annotated[
        str, option("TIME", "Length of the pause, such as 10m. [default: until trackside resume-gpu]", "--for")
    ] = "",
    url: Url = "",
) -> None:
    """Make the daemon release the GPUs, so that you can reset, reconfigure or remove them.

    Everything else continues. The exit status is 1 if the process that reads the GPUs hangs in the driver and does
    not end.
    """
    answer = _request(url, "pause", {"for": _length(length)})
    if not answer["released"]:
        fail(paused(answer), 1)
    typer.echo(paused(answer))


def resume(*, url: Url = "") -> None:
    """Make the daemon read the GPUs again."""
    typer.echo("resumed" if _request(url, "resume", None)["resumed"] else "the GPUs were not paused")


def paused(answer: Mapping[str, Any]) -> str:
    """Return a daemon's answer to a pause as one line."""
    end = answer["paused_until"]
    until = clock(end) if isinstance(end, float) else "you run trackside resume-gpu"
    state = "the pause is already over" if end is None else f"paused until {until}"
    holders = ", ".join(shown(f"{process['name']} (pid {process['pid']})") for process in answer["holders"])
    if not answer["released"]:
        names = f": {holders}" if holders else ""
        return f"{state}, but the process that reads the GPUs hangs in the driver{names}; a reboot ends it"
    if end is None:
        return f"{state}, and the daemon reads the GPUs again; a longer --for keeps their device files closed"
    return f"{state}; the device files are {f'still open in {holders}' if holders else 'closed'}"


def _length(text: str) -> float | None:
    if not text:
        return None
    length = duration_seconds(text, bare=False)
    if not 0 < length < float("inf"):
        fail(f"--for: {text!r} is not a duration such as 10m or 1h30m")
    return length


def _request(url: str, action: str, body: Any) -> dict[str, Any]:
    with errors_reported():
        from trackside_daemon.cli.sources.daemon_lookup import find_daemon

        return find_daemon(url).gpu(action, body)


def clock(moment: float) -> str:
    """Return a local time, with its date unless that is today."""
    then = datetime.fromtimestamp(moment).astimezone()
    today = datetime.fromtimestamp(time.time()).astimezone().date()
    return f"{then:%H:%M:%S}" if then.date() == today else f"{then:%Y-%m-%d %H:%M:%S}"
