"""The command alerts: what fires, and what has of late."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trackside_daemon.commands.runs import Json, StoragePath, Url, find_history, print_lines, say, told
from trackside_daemon.commands.table import duration, short_moment, shown, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def alerts(
    *,
    run: Annotated[str, typer.Option(help="Only those of this run: its name, id, or how that begins.")] = "",
    firing: Annotated[bool, typer.Option("--firing", help="Only what fires now.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="So many of the newest; 0 for all.", metavar="N")] = 50,
    as_json: Json = False,
    storage_path: StoragePath = None,
    url: Url = "",
) -> None:
    """List the alerts that fire and those that did, the newest first."""
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


def _list(found: Sequence[Mapping[str, Any]], now: float) -> Iterator[str]:
    """What fires first of all; its summary has the line below to itself."""
    header = ["ALERT", "SEVERITY", "RUN", "SINCE", "FOR", "STATE"]
    ordered = sorted(found, key=lambda one: one["ended"] is not None)
    rows = [
        [
            shown(one["alert"]),
            shown(one["severity"]),
            shown(one["name"] or "-"),
            short_moment(one["started"], now),
            duration((now if one["ended"] is None else one["ended"]) - one["started"]),
            _state(one, now),
        ]
        for one in ordered
    ]
    first, *lines = table(header, rows, right="<<<<><", flexible="~ ~")
    yield first
    for line, one in zip(lines, ordered, strict=True):
        yield line
        yield from _wrapped(shown(one["summary"]))


def _state(alert: Mapping[str, Any], now: float) -> str:
    if alert["ended"] is not None:
        return "resolved"
    end = alert.get("silenced_until")  # a daemon of an older version does not say
    return "firing" if end is None else f"silenced until {short_moment(end, now)}"


def _wrapped(text: str) -> Iterator[str]:
    """A text in lines of the terminal's width, set in by two."""
    import textwrap

    from trackside_daemon.commands.table import width

    return iter(textwrap.wrap(text, max(20, width()), initial_indent="  ", subsequent_indent="  "))
