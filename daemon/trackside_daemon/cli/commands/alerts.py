"""The commands about alerts: what fires and what has of late, and all that is known of one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.alerts.descriptions import PREFIX
from trackside_daemon.cli.commands.runs import Json, StoragePath, Url, WrongError, find_history, print_lines, say, told
from trackside_daemon.cli.commands.table import short_moment, table, wrapped
from trackside_daemon.model.text import duration, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trackside_daemon.cli.sources.source import Source

app = typer.Typer(rich_markup_mode=None)

OfRun = Annotated[
    str, typer.Option("--run", help="Only those of this run: its name, id, or how that begins.", metavar="RUN")
]


@app.callback(
    invoke_without_command=True,
    epilog="\b\nExample: trackside alerts --firing\nExample: trackside alerts show 17",
)
def alerts(
    context: typer.Context,
    *,
    run: OfRun = "",
    firing: Annotated[bool, typer.Option("--firing", help="Only what fires now.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="So many of the newest; 0 for all.", metavar="N")] = 50,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """List the alerts that fire and those that did, the newest first; or show one of them."""
    if context.invoked_subcommand is not None:
        with told():
            if run or firing or as_json or storage_path or url:
                raise WrongError(
                    f"options go behind the command: trackside alerts {context.invoked_subcommand} … --run=RUN"
                )
        return
    with told():
        source = find_history(storage_path, url)
        uid = source.run(run)["id"] if run else ""
        found = [one for one in reversed(source.alerts(uid)) if one["ended"] is None or not firing]
        found = found[: limit or None]
        if not source.live and any(one["ended"] is None for one in found):
            say("no daemon answers here: what has not ended is told as it was last written")
        if as_json:
            typer.echo(json.dumps({"alerts": found}, indent=2))
        elif found:
            print_lines(_list(found, time.time()))
        else:
            typer.echo("trackside: nothing fires" + ("" if firing else ", and nothing has yet"), err=True)


@app.command(epilog="\b\nExample: trackside alerts show TrainingStalled --run gpt-small")
def show(
    alert: Annotated[
        str, typer.Argument(metavar="ID|NAME", help="An id, or a name: the newest of it.", show_default=False)
    ],
    *,
    run: OfRun = "",
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """Tell all of one alert: what, since when, who was told, and what helps to understand it."""
    with told():
        from trackside_daemon.cli.commands.alert_evidence import describe

        source = find_history(storage_path, url)
        found = _found(source, alert, run)
        if as_json:
            typer.echo(json.dumps(found, indent=2))
        else:
            print_lines(describe(found, time.time()))


def _found(source: Source, text: str, run: str) -> dict[str, Any]:
    """The alert of an id, or the newest of a name."""
    if text.isascii() and text.isdecimal() and len(text) <= 18:
        return source.alert(int(text))
    every = source.alerts(source.run(run)["id"] if run else "")
    named = [one for one in every if one["alert"].lower() == text.removeprefix(PREFIX).lower()]
    if named:
        return named[-1]
    names = ", ".join(dict.fromkeys(one["alert"] for one in reversed(every)))
    there = f"there are {names}" if names else "there are none at all yet"
    raise WrongError(f"alert {text!r}: there is none{f' of run {run}' if run else ''}; {there}")


def _list(found: Sequence[Mapping[str, Any]], now: float) -> Iterator[str]:
    """What fires first of all; its summary has the line below to itself."""
    header = ["ID", "ALERT", "SEVERITY", "RUN", "SINCE", "FOR", "STATE"]
    ordered = sorted(found, key=lambda one: one["ended"] is not None)
    rows = [
        [
            str(one["id"]),
            shown(one["alert"]),
            shown(one["severity"]),
            shown(one["name"] or "-"),
            short_moment(one["started"], now),
            duration((now if one["ended"] is None else one["ended"]) - one["started"]),
            _state(one),
        ]
        for one in ordered
    ]
    first, *lines = table(header, rows, right="><<<<><", flexible="   ~")
    yield first
    for line, one in zip(lines, ordered, strict=True):
        yield line
        if one["ended"] is None and (end := one.get("silenced_until")) is not None:
            yield f"  silenced until {short_moment(end, now)}"
        yield from wrapped(shown(one["summary"]))


def _state(alert: Mapping[str, Any]) -> str:
    if alert["ended"] is not None:
        return "resolved"
    return "firing" if alert.get("silenced_until") is None else "silenced"  # a daemon of an older version does not say
